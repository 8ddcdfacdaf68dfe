"""The page, the figure, and how a notebook shows the page."""

from __future__ import annotations

import base64
import html
import unicodedata
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from minise.engines import LanguageModel
from minise.explaining.collect import explain_data
from minise.explaining.data import Data
from minise.explaining.figure import mask_picture
from minise.grouping import Grouping
from minise.method import SelfEnsemble
from minise.methods.groupings import grouping_named
from minise.question import Question

_HERE = Path(__file__).parent
_SCRIPTS = ("page.js", "sequence.js", "mask.js", "charts.js", "answer.js", "events.js")


@dataclass(frozen=True, eq=False)
class Page:
    """What `explain` returns. `data` has every number that the page shows: see `data.Data`."""

    data: Data

    @cached_property
    def html(self) -> str:
        """The page: one file, which needs no other file and no network."""
        scores = self.data["self_ensemble"]["running"][-1]
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        style, script = _source("page.css"), _source(*_SCRIPTS)
        return _render("page.html", data=self.data, order=order, style=style, script=script)

    @cached_property
    def figure(self) -> str:
        """The first trial's packed sequence and mask as SVG, for a paper or a slide."""
        return _render("mask.svg", **mask_picture(self.data))

    def _repr_html_(self) -> str:
        """The page in a notebook: in a frame, so that neither can change the other."""
        style = "width: 100%; height: 85vh; border: 1px solid #8884"
        page = html.escape(self.html)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'

    def __repr__(self) -> str:
        return f"Page({self.data['question']!r}, {len(self.html):,} characters of HTML)"


def explain(
    lm: LanguageModel,
    question: Question,
    group_size: int = 4,
    trials: int = 20,
    seed: int = 0,
    grouping: str | Grouping = "random",
    null_option: bool = True,
    detail: str | None = None,
) -> Page:
    """A page that shows how Self-Ensemble answers a question: `.data`, `.html` and `.figure`. A
    notebook shows it.

    The settings are those of `self_ensemble`. `detail` is "full" (every head's attention) or "low"
    (their mean); by default "full" if the page stays below 5 MB. Raises InputError as
    `self_ensemble` does, and for what a page cannot hold (`collect.explain_data`).
    """
    method = SelfEnsemble(group_size, trials, grouping_named(grouping), null_option)
    return Page(explain_data(lm, method, question, seed, detail))


def visible(text: str) -> str:
    """A token's text with white space and control characters shown as marks.

    >>> visible(" a\\n")
    '␣a⏎'
    """
    marks = {" ": "␣", "\n": "⏎", "\t": "⇥"}
    return "".join(
        marks.get(c, "�" if unicodedata.category(c) in ("Cc", "Cs") else c) for c in text
    )


def _render(template: str, **values: Any) -> str:
    """A template of this folder, filled in. All values are escaped except Markup; `tojson` also
    escapes what could end a script."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    compact = {"separators": (",", ":"), "allow_nan": False}
    environment.policies["json.dumps_kwargs"] = {"default": _packed, **compact}
    environment.filters["visible"] = visible
    return environment.get_template(template).render(values)


def _source(*names: str) -> str:
    """Files of this folder, unchanged: they have no text of a user."""
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)


def _packed(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON: little-endian bytes, deflated, in base64. page.js unpacks it."""
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    text = base64.b64encode(zlib.compress(raw, 9)).decode()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "deflated": text}
