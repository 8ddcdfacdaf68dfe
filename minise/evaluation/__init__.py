"""What is built on the core: tasks, methods, runs, metrics, reports. The core never imports it.

Read in this order: tasks (questions, from a name or a file), methods (what is asked of the model),
run and samples (every answer on disk), metrics and calibration (numbers from the answers),
experiments (the paper's, as data), results, tables and figures (from results.json alone).
"""
