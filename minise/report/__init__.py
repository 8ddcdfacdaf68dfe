"""What people see of finished runs: tables, figures, and the questions on which methods disagree.

All of it is made from results.json and the samples of a folder (results), with no model. It may
import evaluation and what lies below it, and nothing of evaluation imports it.
"""
