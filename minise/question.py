"""A question with its choices. Next to read: tokenizer.py and prompt.py, which make token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from minise.checks import check_question


@dataclass(frozen=True)
class Question:
    """A K-choice question. `answer` is the index of the right choice, if known.

    `id` seeds the grouping. Without one it is a hash of text and choices. `cluster`: what several
    questions are about; confidence intervals resample them together. Raises InputError (a
    ValueError of one line) for a malformed question.
    """

    text: str
    choices: Sequence[str]
    id: str = ""
    answer: int | None = None
    cluster: str = ""

    def __post_init__(self) -> None:
        check_question(self.text, self.choices, self.id, self.answer)
        # A copy: the caller's list is not shared. A frozen class sets fields through object.
        object.__setattr__(self, "choices", tuple(self.choices))
        object.__setattr__(self, "id", self.id or self.content_hash)

    @property
    def content_hash(self) -> str:
        """The hash of text and choices, in their order."""
        return hashlib.sha256(json.dumps([self.text, self.choices]).encode()).hexdigest()[:16]
