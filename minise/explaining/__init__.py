"""A page that explains one answer: `minise.explain(lm, question)` and `minise explain`.

data.py says what the page shows, and asks the model; runs.py compares packed with separate runs, of
which watch.py tells the inside; page.py writes page.html, with page.css and page.js, and mask.svg.
The page only shows the data.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from minise.explaining.page import Page, explain

__all__ = ["Page", "explain"]


class _Callable(ModuleType):
    """Once this package is imported, `minise.explain` names it and not the function. So it can be
    called as the function can."""

    def __call__(self, *args: Any, **options: Any) -> Page:
        return explain(*args, **options)


sys.modules[__name__].__class__ = _Callable
