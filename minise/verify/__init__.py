"""What shows that a run is right. This room may import loading, data and the core, and needs only
the core.

recording.py sees inside a decoder. comparison.py and verify.py compare packed runs with separate
ones; symbols.py and proof.py prove the same for all weights; training.py has the loss of packed
prompts and its gradients; bits.py measures this machine's kernels; formats.py, packing.py
and judging.py check the packed rows of others, and guard.py a model that runs.
"""
