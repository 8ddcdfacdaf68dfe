"""Equal bits: an appendix to the core, which a first reading can leave out.

minise/model.py and minise/attention.py define what is computed; this room computes it so that the
engines separate, dense and tree give the same bits. Attention runs in calls of fixed shapes
(attention.py), linear layers and activations in calls with fixed numbers of rows (layers.py,
calls.py) that are measured on this machine (probe.py) and stored for it (machine.py); run.py
combines them. It may import the core below engines.py (config, layout, attention, cache, model,
errors), and nothing else.

docs/bits.md says why this works, and on which machines it was measured.
"""
