"""Ways to ask a question, beside those of the core: one file for each, named in registry.py."""
