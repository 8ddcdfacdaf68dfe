"""Answers on the disk, line by line; numbers, tables and pictures made from them alone.

In the order of a run: experiments.py and request.py (what is asked for), facts.py and folder.py
(run.json), run.py (each answer a line), rows.py and lines.py (the lines), texts.py (what models
wrote first). Then results.py (results.json), metrics.py (the numbers), tables.py, figures.py.
"""
