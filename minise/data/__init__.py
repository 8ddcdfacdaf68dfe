"""Questions: the readers of their files, the paper's data sets, and the tasks that a run can name.

miniature.py makes the questions of the small world on which the shipped checkpoints were trained.
This room may import `loading` and the core.
"""
