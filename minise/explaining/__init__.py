"""A page that explains one answer: `minise.explain(lm, question)` and `minise explain`.

data.py says what the page shows, and asks the model; runs.py compares packed with separate runs, of
which watch.py tells the inside; page.py writes page.html, with page.css and page.js, and mask.svg.
The page only shows the data.
"""
