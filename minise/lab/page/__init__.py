"""The page of `minise explain`: scenes in which a model answers, live or from recorded answers.

explain.py chooses between the two. page.py joins the JavaScript modules of this folder, page.css,
page.html and a checkpoint to one file. recorded.py asks a model that does not run in a page.
tokenizer.js, layout.js, model.js and method.js do what the Python files of these names do,
worker.js runs them beside the page, app.js and the scenes draw.
"""
