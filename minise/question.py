"""A question with its choices; in definition.py they are plain texts. Next to read: tokenizer.py,
prompts.py and template.py, which make token ids."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from minise.errors import InputError, quote

MOST_CHOICES = 1000  # of one question


@dataclass(frozen=True)
class Question:
    """A K-choice question. `answer` is the index of the right choice, if known.

    `id` seeds the grouping. Without one it is a hash of text and choices. Raises InputError (a
    ValueError of one line) for a malformed question.
    """

    text: str
    choices: Sequence[str]
    id: str = ""
    answer: int | None = None

    def __post_init__(self) -> None:
        check_question(self)
        # A copy: the caller's list is not shared. A frozen class sets fields through object.
        object.__setattr__(self, "choices", tuple(self.choices))
        object.__setattr__(self, "id", self.id or self.content_hash)

    @property
    def content_hash(self) -> str:
        """The hash of text and choices, in their order."""
        return hashlib.sha256(json.dumps([self.text, self.choices]).encode()).hexdigest()[:16]


# What is refused. A first reading can leave it out.


def check_question(question: Question) -> None:
    """Refuse a question that cannot be asked."""
    choices, answer = question.choices, question.answer
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        how = "give a list, as .jsonl has them, or columns A, B, ..."
        raise InputError(f"the choices are {quote(choices)}; {how}")
    check_text("question", question.text)
    for number, choice in enumerate(choices, 1):
        check_text(f"choice {number}", choice)
    if question.id:
        check_text("question's id", question.id)
    K = len(choices)
    if not 2 <= K <= MOST_CHOICES:
        what = f"the question {quote(question.text)} has {K} choice{'s' * (K != 1)}"
        raise InputError(f"{what}; give at least two, at most {MOST_CHOICES:,}")
    number_of: dict[str, int] = {}
    for number, choice in enumerate(choices, 1):
        first = number_of.setdefault(choice.strip(), number)
        if first != number:
            what = f"choices {first} and {number} are both {quote(choice.strip())}"
            raise InputError(f"{what}; leave one out")
    if answer is not None and (type(answer) is not int or not 0 <= answer < K):
        what = f"answer {quote(answer)} is no choice"
        raise InputError(f"{what}; give an index from 0 to {K - 1}")


def check_text(name: str, value: object) -> None:
    """Refuse what is no text, is empty, or cannot be written as UTF-8. name: what it is."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"the {name} is {quote(value)}; write its text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from JSON or undecoded bytes
        encoding = sys.getfilesystemencoding()
        if encoding != "utf-8":
            why = f"the locale reads {name} as {encoding}; set LC_ALL=C.UTF-8"
            raise InputError(why) from None
        raise InputError(f"the {name} is not UTF-8; save or type it as UTF-8") from None
