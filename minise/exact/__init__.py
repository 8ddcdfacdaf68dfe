"""Equal bits: an appendix to the core, which can be left out of a first reading.

minise/model.py and minise/attention.py define what is computed. Here it is computed so that every
engine gives the same bits: attention in calls of fixed shapes (attention.py), linear layers and
activations in calls of numbers of rows that this machine treats alike (layers.py, calls.py), which
are measured and not believed (probe.py), and kept for it (machine.py). run.py drives it.
docs/bits.md says on what this rests and where it was seen.
"""
