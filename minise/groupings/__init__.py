"""Groupings beside the paper's: all ordered groups, and independent draws.

Each file has one function (K, m, trials, seed, question_id) -> Groups, and registry.py has their
names. This room may import `data`, `loading` and the core.
"""
