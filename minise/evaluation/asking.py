"""Questions to samples: planned ahead in a thread, run in passes of several questions, answered."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from torch import Tensor

from minise.engines import LanguageModel
from minise.errors import InputError, quote
from minise.evaluation.meter import timed
from minise.method import Answer, Method, Plan
from minise.methods.build import build_asking
from minise.methods.first_trials import group_records
from minise.methods.registry import Variant
from minise.methods.sample import Sample
from minise.question import Question
from minise.rounds import run_plans

Seeded = list[tuple[int, Question]]  # questions with their seeds, seed after seed
Planned = tuple[int, Question, Plan]  # with its seed
MOST_LOGITS = 2**26  # of a pass: 512 MiB. A method may read the whole vocabulary at many places.


@dataclass(frozen=True, eq=False)
class Asker:
    """How questions are asked. With the engine tree a pass holds as many questions as have at most
    `tokens_per_pass` tokens together, and at least one."""

    lm: LanguageModel
    method: Method
    variant: Variant
    keep_groups: bool = False
    tokens_per_pass: int = 0


def ask_each(
    asker: Asker, questions: Iterable[tuple[int, Question]]
) -> Generator[Sample, None, None]:
    """The sample of each question, in their order. Raises InputError that names the question that
    cannot be answered, after the samples of those before it.

    A thread plans the next pass while the model runs this one.
    """
    passes = _passes(asker, questions)
    with ThreadPoolExecutor(1) as planner:
        ahead = planner.submit(next, passes, None)
        while planned := ahead.result():
            ahead = planner.submit(next, passes, None)
            yield from _run_pass(asker, planned)


def for_trial(variant: Variant, method: Method) -> Method:
    """The method, with a budget of one token where it lets the model write: that is enough to see
    whether it can answer."""
    if method.max_new_tokens <= 1:
        return method
    return build_asking(replace(variant, settings={**variant.settings, "max_new_tokens": 1}))


def _passes(asker: Asker, questions: Iterable[tuple[int, Question]]) -> Iterator[list[Planned]]:
    """The questions with their seeds and plans, pass by pass."""
    lm, method, engine = asker.lm, asker.method, asker.variant.engine
    one_by_one = engine != "tree" or method.max_new_tokens > 0
    limit = 0 if one_by_one else asker.tokens_per_pass
    batch, batch_tokens, batch_logits = list[Planned](), 0, 0
    for seed, question in questions:
        try:
            plan: Plan = method.plan(lm, question, seed)
            tokens = plan.tokens(lm.counted_as(engine)) if limit else 1
        except InputError as error:
            if batch:
                yield batch
            raise _with_question(question, asker.variant, error) from error
        logits = sum(len(prompt.label_ids) for prompt in plan.prompts)
        if batch and (batch_tokens + tokens > limit or batch_logits + logits > MOST_LOGITS):
            yield batch
            batch, batch_tokens, batch_logits = [], 0, 0
        batch.append((seed, question, plan))
        batch_tokens += tokens
        batch_logits += logits
    if batch:
        yield batch


def _run_pass(asker: Asker, planned: list[Planned]) -> Iterator[Sample]:
    """The samples of one pass. Of its seconds each has a share by its tokens."""
    lm, method, variant = asker.lm, asker.method, asker.variant
    run = list[tuple[Plan, list[Tensor]]]()  # each whole plan, with those of later rounds
    seeds, questions, plans = zip(*planned, strict=True)

    def ask() -> None:
        run.extend(run_plans(lm, method, plans, seeds, variant.engine))

    try:
        seconds = timed(ask, lm.decoder.device)
    except InputError as error:
        if len(planned) == 1:
            raise _with_question(questions[0], variant, error) from error
        for one in planned:  # to know which of them it is
            yield from _run_pass(asker, [one])
        return
    engine = lm.counted_as(variant.engine)
    counts = [plan.tokens(engine) for plan, _ in run]
    for seed, question, (plan, logits), tokens in zip(seeds, questions, run, counts, strict=True):
        try:
            answer: Answer = method.answer(plan, logits)
            K = len(question.choices)
            is_standard = plan.groups.flat == [tuple(range(K))] and len(logits[0]) == K
            sample = Sample(
                id=question.id,
                seed=seed,
                question_hash=question.content_hash,
                answer=question.answer,
                prediction=answer.prediction,
                probabilities=answer.probabilities.tolist(),
                scores=answer.scores.tolist(),
                tokens=tokens,
                seconds=seconds * tokens / sum(counts),
                logits=logits[0].tolist() if is_standard else None,
                groups=group_records(plan, answer, engine) if asker.keep_groups else None,
                notes=method.notes(lm, plan, answer, seed),
                cluster=question.cluster or None,
            )
            if problem := sample.problem():
                raise InputError(problem)
        except InputError as error:
            raise _with_question(question, variant, error) from error
        yield sample


def _with_question(question: Question, variant: Variant, error: InputError) -> InputError:
    """The error, with the question and the method that it is about."""
    return InputError(f"question {quote(question.id, 40)}, {variant.name}: {error}")
