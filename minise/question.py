"""A question with its choices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from minise.errors import InputError


@dataclass(frozen=True)
class Question:
    """A K-choice question. `answer` is the index of the right choice, if known.

    `id` seeds the grouping. Without one it is a hash of text and choices. Raises InputError for
    fewer than two choices, empty text, or an answer that is no choice.
    """

    text: str
    choices: Sequence[str]
    id: str = ""
    answer: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence):
            raise InputError(f"choices are {type(self.choices).__name__}; give a list of texts")
        # A copy: the caller's list is not shared. A frozen class sets fields through object.
        object.__setattr__(self, "choices", tuple(self.choices))
        numbered = [(f"choice {number}", text) for number, text in enumerate(self.choices, 1)]
        for name, text in [("question", self.text), *numbered]:
            if not isinstance(text, str):
                raise InputError(f"the {name} is {json.dumps(text, default=str)}; it must be text")
            if not text.strip():
                raise InputError(f"the {name} is empty; write its text")
        if len(self.choices) < 2:
            have = "1 choice" if self.choices else "no choices"
            raise InputError(f'the question "{self.text}" has {have}; give at least two')
        last, right = len(self.choices) - 1, self.answer
        if right is not None and (type(right) is not int or not 0 <= right <= last):
            raise InputError(f"answer {right!r} is no choice; give an index from 0 to {last}")
        if not isinstance(self.id, str):
            raise InputError(f"the question's id is {self.id!r}; it must be text")
        if not self.id:
            object.__setattr__(self, "id", self.content_hash)

    @property
    def content_hash(self) -> str:
        """The hash of text and choices, in their order."""
        return hashlib.sha256(json.dumps([self.text, self.choices]).encode()).hexdigest()[:16]
