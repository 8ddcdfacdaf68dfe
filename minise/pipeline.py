"""Questions -> answers, several questions in a pass. Every command and every harness calls this.

Which questions share a pass follows from the whole list, whatever has been answered already. So a
run that goes on after a cut forms the same passes, and gives the same bits on the same machine with
the same number of threads. No pass crosses a multiple of BLOCK questions, so that little is planned
again after a cut.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from minise.errors import InputError
from minise.layout import shared_length
from minise.lm import LabelLogits, LanguageModel, Prompts, check_prompts, join, tokens_of
from minise.method import Answer, Method
from minise.question import Question

BLOCK = 16  # questions


@dataclass(frozen=True)
class Asked:
    """A question, and the seed of its groups."""

    question: Question
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Answered:
    """tokens: how many the model ran for this question's prompts. seconds: to plan it, with its
    share of the time in which texts were written, and its share of its pass by its tokens."""

    asked: Asked
    prompts: Prompts
    logits: list[LabelLogits]
    answer: Answer
    tokens: int
    seconds: float


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
    """A method whose model writes a text before it chooses. The texts of a block of questions are
    written side by side, because that takes hardly longer than one of them."""

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
    """Where the texts of a run are kept, so that none is written again after a cut."""

    def read(self, block: int) -> list[Written] | None:
        """All texts of a block of questions; None if they were not kept."""
        ...

    def keep(self, block: int, texts: Sequence[Written]) -> None: ...


@dataclass(frozen=True, eq=False)
class Planned:
    """A question that is ready to be asked. plan: what `Method.answer` has to remember."""

    asked: Asked
    plan: Any
    prompts: Prompts
    tokens: int
    seconds: float


def answers(
    lm: LanguageModel,
    method: Method,
    questions: Sequence[Asked],
    done: int = 0,
    texts: Texts | None = None,
) -> Iterator[Answered]:
    """The answers to all questions after the first `done`, in order. An error comes after the
    answers before it: InputError where the method or the model refuses a question."""
    for start in range(done - done % BLOCK, len(questions), BLOCK):
        block = questions[start : start + BLOCK]
        planned, refused = plan_block(lm, method, block, start // BLOCK, texts)
        number = start
        for one_pass in passes(planned, lm.limits.together):
            if number + len(one_pass) > done:
                for answered in run_pass(lm, method, one_pass):
                    if number >= done:
                        yield answered
                    number += 1
            else:
                number += len(one_pass)
        if refused is not None:
            raise refused


def plan_block(
    lm: LanguageModel, method: Method, block: Sequence[Asked], number: int, texts: Texts | None
) -> tuple[list[Planned], InputError | None]:
    """The plans of a block of questions, up to one that is refused, and its error."""
    refused: InputError | None = None
    written: Sequence[Written | None] = [None] * len(block)
    if isinstance(method, WritesFirst):
        written, refused = write_block(lm, method, block, number, texts)
    planned = []
    for asked, text in zip(block, written, strict=False):
        began = time.perf_counter()
        try:
            if isinstance(method, WritesFirst) and text is not None:
                plan, prompts = method.prompts_after(lm, asked, text)
            else:
                plan, prompts = method.prompts(lm, asked.question, asked.seed)
            check_prompts(lm, prompts)
        except InputError as error:
            refused = error
            break
        seconds = time.perf_counter() - began
        if text is not None:
            seconds += text.seconds
        planned.append(Planned(asked, plan, prompts, tokens_of(lm, prompts), seconds))
    return planned, refused


def write_block(
    lm: LanguageModel, method: WritesFirst, block: Sequence[Asked], number: int, texts: Texts | None
) -> tuple[list[Written], InputError | None]:
    """The texts of a block of questions, kept or written now, up to a question that is refused."""
    starts, refused = [], None
    for asked in block:
        try:
            starts.append(method.start(lm, asked))
        except InputError as error:
            refused = error
            break
    kept = None if texts is None else texts.read(number)
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


def passes(planned: Sequence[Planned], most: int) -> Iterator[list[Planned]]:
    """The questions of each pass: one more joins while a pass has fewer than `most` tokens after
    what its questions begin with. Solved questions are the same for all, and run once."""
    one_pass: list[Planned] = []
    for new in planned:
        shared = shared_length([one.prompts.prefix for one in [*one_pass, new]])
        beyond = sum(one.tokens - shared for one in one_pass)
        if one_pass and beyond >= most:
            yield one_pass
            one_pass = []
        one_pass.append(new)
    if one_pass:
        yield one_pass


def run_pass(lm: LanguageModel, method: Method, one_pass: Sequence[Planned]) -> Iterator[Answered]:
    """The answers of one pass."""
    began = time.perf_counter()
    try:
        logits = lm.logits(join([one.prompts for one in one_pass]))
    except InputError:
        if len(one_pass) == 1:
            raise
        # One by one: then it is known which one fails. A pass that fails fails again after a cut.
        for one in one_pass:
            yield from run_pass(lm, method, [one])
        return
    seconds_of_token = (time.perf_counter() - began) / sum(one.tokens for one in one_pass)
    first = 0
    for one in one_pass:
        own = logits[first : first + len(one.prompts.branches)]
        first += len(own)
        answer = method.answer(one.plan, own)
        seconds = one.seconds + seconds_of_token * one.tokens
        yield Answered(one.asked, one.prompts, own, answer, one.tokens, seconds)
