"""A page that explains one answer: `minise.explain(lm, question)` and `minise explain`.

data.py has the type of what the page shows, collect.py asks the model for it, runs.py compares
packed with separate runs, and ablations.py runs the sequence with a wrong mask or wrong positions;
page.py fills page.html, with page.css and the scripts, and mask.svg.
"""
