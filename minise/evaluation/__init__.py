"""Runs: tasks x variants x seeds on one model, every answer on the disk, and what is measured.

A run plans and asks (usable, asking), keeps samples in its folder (run, samples), and measures
them (metrics, predictions). The experiments of the paper are data (experiments, extras). It may
import methods, checking, writing, groupings, data, loading and the core; reports read it.
"""
