"""`minise.explain`: the page of one question, and how a notebook shows it."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field

from minise.errors import Unsuited
from minise.lab.page.page import live_page, why_not_live
from minise.lab.page.recorded import ShownQuestion, recorded_page
from minise.lab.recurrent.qwen35 import Qwen35
from minise.lm import LocalModel
from minise.model import Decoder
from minise.prompts import LanguageModel
from minise.question import Question


@dataclass(frozen=True)
class Page:
    """What `explain` returns. `html` is one file, which needs no other file and no network.
    `recorded` says why its answers are recorded; it is empty where the model runs in the page."""

    question: Question
    html: str = field(repr=False)
    recorded: str

    def _repr_html_(self) -> str:
        """The page in a notebook: in a frame, so that neither can change the other."""
        style = "width: 100%; height: 85vh; border: 1px solid #8884"
        page = html.escape(self.html)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="{style}"></iframe>'


def explain(
    lm: LanguageModel,
    question: Question,
    group_size: int = 4,
    trials: int = 20,
    seed: int = 0,
    tell: Callable[[str], object] | None = None,
) -> Page:
    """A page that shows how Self-Ensemble answers a question, scene by scene. A notebook shows it.

    A llama, mistral or qwen2 model of at most 10 million numbers runs in the page, and the question
    can be changed there. Of any other the answers to this question are recorded, which takes some
    60 runs of its prompts; `tell` is called with what is asked at the moment. Raises InputError for
    more than 26 choices, 25 in a group or 40 trials, for a model that runs elsewhere, and as
    `standard` and `self_ensemble` do.
    """
    if not (isinstance(lm, LocalModel) and isinstance(lm.decoder, Decoder)):
        what = f"the page looks into the layers of a model, and those of {lm.name} are not minise's"
        raise Unsuited(f"{what}; give the folder of a llama, mistral, qwen2 or qwen3")
    if isinstance(lm.decoder, Qwen35):
        what = "the page hides lines from the end of a prompt alone, and a state has them already"
        raise Unsuited(f"{what}; give the folder of a llama, mistral, qwen2 or qwen3")
    shown = ShownQuestion(lm, question, group_size, trials, seed)
    why = why_not_live(lm)
    if why:
        return Page(question, recorded_page(shown, why, tell or str), why)
    return Page(question, live_page(lm, shown.embedded()), why)
