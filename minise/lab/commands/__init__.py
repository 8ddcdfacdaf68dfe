"""The commands eval, report, explain and check."""
