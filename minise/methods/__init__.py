"""Ways to answer a question, beside Self-Ensemble and standard inference, which are in the core.

Each family of methods has one file; registry.py names the methods, and build.py makes them from
their names and settings. This room may import `checking`, `writing`, `groupings`, `data`,
`loading`, the core and `exact`.
"""
