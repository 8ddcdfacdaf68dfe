"""What shows that a run is right: recordings of a run, comparisons of runs, and `verify`.

recording.py and traces.py see inside the decoder, comparison.py and influence.py compare runs, and
verify.py judges. This room may import the rooms below it (writing, groupings, data, loading) and
the core, and needs only the core.
"""
