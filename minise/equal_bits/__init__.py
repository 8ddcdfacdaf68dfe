"""Equal bits: an appendix to the core, which a first reading can leave out.

minise/model.py and minise/attention.py define what is computed; here separate, dense and tree
get the same bits: attention in calls of fixed shapes (attention.py), linear layers in numbers
of rows (layers.py, calls.py) measured on this machine (probe.py, machine.py). See docs/verify.md.
"""
