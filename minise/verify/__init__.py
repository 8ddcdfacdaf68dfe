"""What shows that a run is right, by the core alone: packed runs against separate ones, the same as
a proof for all weights, the loss of packed prompts, this machine's kernels, other people's rows.
"""
