"""What shows that a run is right, by the core alone: packed runs against separate ones, the same as
a proof for all weights, the loss of packed prompts, this machine's kernels, other people's rows.

`minise verify`: verify.py, comparison.py, definition.py; with --proof proof.py and symbols.py, for
a server served.py. `minise check`: judging.py, which reads packing.py, which reads formats.py.
From Python: guard.py, training.py (`packed_loss`), recording.py (`record`).
"""
