"""Ways to answer a question, beside Self-Ensemble and standard inference, which are in the core.

Each family of methods has one file, and groupings.py has the other ways to choose groups;
registry.py makes methods from their names and settings.
"""
