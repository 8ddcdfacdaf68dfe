"""The commands eval, report, explain, check and decide."""
