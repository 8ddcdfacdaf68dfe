"""Bridges to other libraries, each behind an extra: models of transformers, tasks of lm-eval.

transformers_model.py and library.py run a library's model, promises.py checks it, harness.py reads
tasks. This room may import evaluation, checking, data, loading and the core, and none of the core
knows of it.
"""
