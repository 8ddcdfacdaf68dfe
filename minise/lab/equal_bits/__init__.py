"""Equal bits: a decoder that is put in the place of the plain one, by `--equal-bits`.

minise/model.py and minise/attention.py define what is computed. Here the engines separate, packed
and tree get the same bits: attention in calls of fixed shapes (attention.py), linear layers in
numbers of rows (layers.py, calls.py) that were measured on this machine (probe.py, remembered.py).
decoder.py puts them together. Nothing in the core imports it. See docs/verify.md.
"""
