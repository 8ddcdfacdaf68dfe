"""Bridges to other libraries: models of transformers, tasks of lm-eval, packed rows of several.

transformers_model.py and library.py run a library's model, promises.py checks it, and harness.py
reads tasks; all need an extra. packing.py reads packed rows. This room may import evaluation,
checking, data, loading and the core, and none of the core knows of it.
"""
