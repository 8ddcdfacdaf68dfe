"""Questions: readers of files, the paper's data sets, the miniature, and tasks a run can name."""
