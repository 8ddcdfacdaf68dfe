"""Methods whose model writes a text before it chooses, such as a chain of thought.

Three functions in place of `prompts`: after which text the model writes, what it writes, and the
prompts when that is written. The texts of a block of questions are written side by side, because
that takes hardly longer than one of them. A first reading can leave this file out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from minise.errors import InputError
from minise.lab.data.asked import Asked
from minise.method import Method
from minise.prompts import LanguageModel, Prompts
from minise.question import Question


@dataclass(frozen=True)
class Written:
    """What a model wrote. new_tokens: how many. finished: it ended by itself, not by the budget.
    seconds: its share of the time in which its block was written."""

    text: str
    new_tokens: int
    finished: bool
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Start:
    """A text after which the model is to write at most `max_new_tokens`."""

    text: str
    max_new_tokens: int
    seed: int = 0


class WritesFirst(Method):
    """A method whose model writes a text before it chooses."""

    name: ClassVar[str]

    def start(self, lm: LanguageModel, asked: Asked) -> Start:
        """After which text the model writes. Raises InputError if it cannot be asked."""
        raise NotImplementedError

    def write(self, lm: LanguageModel, starts: Sequence[Start]) -> list[Written]:
        """What the model writes after each."""
        raise NotImplementedError

    def prompts_after(
        self, lm: LanguageModel, asked: Asked, written: Written
    ) -> tuple[Any, Prompts]:
        """As `Method.prompts`, when the text is written."""
        raise NotImplementedError

    def prompts(self, lm: LanguageModel, question: Question, seed: int = 0) -> tuple[Any, Prompts]:
        asked = Asked(question, seed)
        written = self.write(lm, [self.start(lm, asked)])
        return self.prompts_after(lm, asked, written[0])


class Texts(Protocol):
    """Where the texts of a run are kept, so that a run that goes on writes none of them again."""

    def read(self, block: int, count: int) -> Sequence[Written] | None:
        """The texts of a block of `count` questions; None if they were not kept. Raises InputError
        where they are not as many."""
        ...

    def keep(self, block: int, texts: Sequence[Written]) -> None: ...


def write_block(
    lm: LanguageModel, method: WritesFirst, block: Sequence[Asked], number: int, texts: Texts | None
) -> tuple[Sequence[Written], InputError | None]:
    """The texts of a block of questions, kept or written now, up to a question that is refused."""
    starts: list[Start] = []
    refused: InputError | None = None
    for asked in block:
        try:
            starts.append(method.start(lm, asked))
        except InputError as error:
            refused = error
            break
    kept = None if texts is None else texts.read(number, len(starts))
    if kept is not None:
        return kept, refused
    if not starts:
        return [], refused
    began = time.perf_counter()
    new = method.write(lm, starts)
    seconds = (time.perf_counter() - began) / len(starts)
    written = [replace(one, seconds=seconds) for one in new]
    if texts is not None:
        texts.keep(number, written)
    return written, refused
