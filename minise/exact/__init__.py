"""Equal bits: an appendix to the core, which a first reading can leave out.

minise/model.py and minise/attention.py define what is computed; this room computes it so that the
engines separate, dense and tree give the same bits: attention in calls of fixed shapes
(attention.py), linear layers in calls with numbers of rows (layers.py, calls.py) that are measured
on this machine (probe.py) and stored for it (machine.py). docs/verify.md says why this works.
"""
