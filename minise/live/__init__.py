"""The live page, in which a small checkpoint runs in the reader's browser: `minise explain --live`.

page.py joins the JavaScript modules of this folder, page.css, page.html and a checkpoint to one
file. tokenizer.js, layout.js, model.js and method.js do what the Python files of these names do,
worker.js runs them beside the page, app.js and the scenes draw.
"""
