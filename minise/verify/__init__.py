"""What shows that a run is right: recordings of a run, comparisons of runs, and `verify`.

recording.py and traces.py see inside the decoder, comparison.py and influence.py compare runs, and
verify.py judges. packing.py reads the packed rows of others, mistakes.py has what they got wrong
before, and packing_check.py judges them. symbols.py and proof.py prove the same for all weights;
training.py has the loss of packed prompts. This room may import the rooms below it (writing,
groupings, data, loading) and the core, and needs only the core.
"""
