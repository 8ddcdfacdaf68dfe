"""Questions -> answers, several questions in a pass. Every command asks this way.

Which questions share a pass follows from the whole list, whatever has been answered already. So a
run that was interrupted and goes on forms the same passes, and gives the same bits on the same
machine with the same number of threads. No pass crosses a multiple of BLOCK questions, so that
little is planned again. writes_first.py has methods whose model writes a text before it chooses.

This is the last file of the way of a question.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minise.errors import InputError
from minise.lab.methods.writes_first import Texts, WritesFirst, Written, write_block
from minise.layout import shared_length
from minise.lm import LabelLogits, LanguageModel, Prompts, check_prompts, join, tokens_of
from minise.method import Answer, Method
from minise.question import Asked

BLOCK = 16  # questions


@dataclass(frozen=True, eq=False)
class Answered:
    """The answer to a question, and what it was made from. tokens: how many the model ran for its
    prompts. seconds: to plan it, its share of the seconds in which texts were written, and its
    share of the seconds of its pass, by tokens."""

    asked: Asked
    prompts: Prompts
    logits: list[LabelLogits]
    answer: Answer
    tokens: int
    seconds: float


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
    first_block = done // BLOCK
    for start in range(first_block * BLOCK, len(questions), BLOCK):
        block = questions[start : start + BLOCK]
        planned, refused = plan_block(lm, method, block, start // BLOCK, texts)
        number = start  # of the question that is next
        for one_pass in passes(planned, lm.limits.together):
            if number + len(one_pass) <= done:
                number += len(one_pass)
                continue
            for answered in run_pass(lm, method, one_pass):
                if number >= done:
                    yield answered
                number += 1
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
    for asked, text in zip(block, written, strict=False):  # it is shorter if one was refused
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


def passes(planned: Sequence[Planned], most: int) -> Iterator[list[Planned]]:
    """The questions of each pass: one more joins while a pass has fewer than `most` tokens after
    what all its questions begin with. A template may begin with solved examples: they are the same
    for all questions, and run once."""
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
        # One by one: then it is known which one fails. A pass that fails will fail again, so a run
        # that goes on does the same.
        for one in one_pass:
            yield from run_pass(lm, method, [one])
        return
    seconds = time.perf_counter() - began
    tokens = sum(one.tokens for one in one_pass)
    first = 0
    for one in one_pass:
        own = logits[first : first + len(one.prompts.branches)]
        first += len(own)
        answer = method.answer(one.plan, own)
        own_seconds = one.seconds + seconds * one.tokens / tokens
        yield Answered(one.asked, one.prompts, own, answer, one.tokens, own_seconds)
