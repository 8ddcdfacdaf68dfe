"""A question with its choices.

Next to read: tokenizer.py and prompt.py, which turn a question into token ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from minise.errors import InputError, quote

MOST_CHOICES = 1000


@dataclass(frozen=True)
class Question:
    """A K-choice question. `answer` is the index of the right choice, if known.

    `id` seeds the grouping. Without one it is a hash of text and choices. `cluster`: what the
    question is about, where several questions are about one thing; confidence intervals resample
    such questions together. Raises InputError for fewer than two choices or more than MOST_CHOICES,
    text that is empty or that UTF-8 cannot hold, or an answer that is no choice.
    """

    text: str
    choices: Sequence[str]
    id: str = ""
    answer: int | None = None
    cluster: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence):
            raise InputError(f"choices are {type(self.choices).__name__}; give a list of texts")
        # A copy: the caller's list is not shared. A frozen class sets fields through object.
        object.__setattr__(self, "choices", tuple(self.choices))
        _check_text("question", self.text)
        for number, choice in enumerate(self.choices, 1):
            _check_text(f"choice {number}", choice)
        _check_text("question's id", self.id, may_be_empty=True)
        K = len(self.choices)
        if not 2 <= K <= MOST_CHOICES:
            count = {0: "no choices", 1: "1 choice"}.get(K, f"{K} choices")
            limits = f"give at least two, at most {MOST_CHOICES:,}"
            raise InputError(f"the question {quote(self.text)} has {count}; {limits}")
        answer = self.answer
        if answer is not None and (type(answer) is not int or not 0 <= answer < K):
            limits = f"give an index from 0 to {K - 1}"
            raise InputError(f"answer {quote(answer)} is no choice; {limits}")
        if not self.id:
            object.__setattr__(self, "id", self.content_hash)

    @property
    def content_hash(self) -> str:
        """The hash of text and choices, in their order."""
        return hashlib.sha256(json.dumps([self.text, self.choices]).encode()).hexdigest()[:16]


def _check_text(name: str, text: object, may_be_empty: bool = False) -> None:
    if not isinstance(text, str):
        raise InputError(f"the {name} is {quote(text)}; it must be text")
    if not text.strip() and not may_be_empty:
        raise InputError(f"the {name} is empty; write its text")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON or undecoded bytes
        raise InputError(f"the {name} is not UTF-8; save or type it as UTF-8") from None
