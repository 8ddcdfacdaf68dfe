"""What is built on the core: tasks, methods, runs, metrics, reports. The core never imports it.

Read in this order: tasks (questions, from a name or a file), methods (what is asked of the model),
runs (every answer on disk, and going on after a cut), metrics and calibration (numbers from the
answers), experiments (the paper's, as presets), tables and figures (from the numbers alone).
"""
