"""What shows that a run is right, by the core alone: packed runs against separate ones in numbers
(verify.py, comparison.py, definition.py), and from Python recording.py (`record`) and training.py
(`packed_loss`). `minise verify` finds its other checks, of equal bits and by symbols, in the lab.
"""
