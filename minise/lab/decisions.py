"""Decisions: many typed questions on one text, the state, answered in one pass. Their prompts are
one tree, whose trunk is the state, so that no question sees another (docs/decisions.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from minise.lab.data.typed import METHOD, TypedQuestion, read_questions
from minise.lab.evaluation.pipeline import join, tokens_of
from minise.lab.methods.registry import methods_to_ask
from minise.method import Answer, Method, combine
from minise.prompts import LanguageModel, Prompts, check_prompts

TRIALS = 5  # of self-ensemble, unless it names its own
Questions = Mapping[str, TypedQuestion]  # on one state, by their ids
Decisions = dict[str, "Decision"]  # their answers


@dataclass(frozen=True)
class Decision:
    """The answer to a question. probabilities: of its options by their ids, sum 1.
    standard_errors: theirs over the method's trials, None where it has one. on_labels: the labels'
    share of the probability of the whole vocabulary. null: the mean probability of "None of the
    above", None where it was not offered."""

    type: str
    probabilities: dict[str, float]
    standard_errors: dict[str, float] | None
    on_labels: float | None
    null: float | None

    def as_json(self) -> dict[str, Any]:
        """In the wire format, and what it does not have. A score is its mean level, from 0."""
        shares = self.probabilities
        found: dict[str, Any] = {"type": self.type, "probabilities": shares}
        if self.type == "noul":
            found = {"type": "noul", "noul": shares["true"]}
        elif self.type == "choice":
            found["choice"] = max(shares, key=shares.__getitem__)
        else:
            found["score"] = sum(level * share for level, share in enumerate(shares.values()))
        more = {"on_labels": self.on_labels, "null": self.null}
        return {**found, "standard_errors": self.standard_errors, **more}


def decide(
    lm: LanguageModel,
    state: Any,
    questions: Mapping[str, Any],
    method: str | Method = METHOD,
    seed: int = 0,
) -> Decisions:
    """The answers to all questions on a state, by the questions' ids, from one pass.

    state: a text, or JSON, which is written as text. questions: as data/typed.py has them. method:
    as `minise ask --method` takes it. Raises InputError for any other, and as the method does.
    """
    if isinstance(method, str):
        method = method_named(method, {})
    planned = plan(lm, method, read_questions(state, questions), seed)
    [found] = run_pass(lm, method, [planned])
    return found


def method_named(text: str, settings: Mapping[str, Any]) -> Method:
    """A method with settings for all: `minise ask --method` takes the same."""
    [method] = methods_to_ask(text, {"trials": TRIALS, **settings}).values()
    return method


@dataclass(frozen=True, eq=False)
class Planned:
    """Questions that are ready to be asked. plans: for each, what `Method.answer` has to remember.
    several: its prompts. prompts: those of all. tokens: how many run."""

    questions: Questions
    plans: list[Any]
    several: list[Prompts]
    prompts: Prompts
    tokens: int


def plan(lm: LanguageModel, method: Method, questions: Questions, seed: int) -> Planned:
    plans = []
    several = []
    for one in questions.values():
        remembered, prompts = method.prompts(lm, one.question, seed)
        plans.append(remembered)
        several.append(prompts)
    joined = join(several)
    check_prompts(lm, joined)
    return Planned(questions, plans, several, joined, tokens_of(lm, joined))


def run_pass(lm: LanguageModel, method: Method, states: Sequence[Planned]) -> list[Decisions]:
    """The answers on each state, from one pass."""
    logits = iter(lm.logits(join([planned.prompts for planned in states])))
    found: list[Decisions] = []
    for planned in states:
        of_state = {}
        each = zip(planned.questions.items(), planned.plans, planned.several, strict=True)
        for (id, one), remembered, prompts in each:
            own = list(islice(logits, len(prompts.branches)))
            of_state[id] = decision(one, method.answer(remembered, own))
        found.append(of_state)
    return found


def decision(asked: TypedQuestion, answer: Answer) -> Decision:
    """What an answer says of the question's options."""
    # fsum rounds once: no bit depends on the order of the options.
    shares = answer.scores / math.fsum(answer.scores.tolist())
    errors = standard_errors(answer)
    nulls = [group.null for group in answer.groups if group.null is not None]
    return Decision(
        asked.type,
        of_options(asked, shares),
        None if errors is None else of_options(asked, errors),
        answer.on_labels,
        math.fsum(nulls) / len(nulls) if nulls else None,
    )


def of_options(asked: TypedQuestion, values: Tensor) -> dict[str, float]:
    """Of the values (K,) of the choices each option's; those of one choice have equal parts."""
    places = list(asked.options.values())
    return {id: float(values[i]) / places.count(i) for id, i in asked.options.items()}


def standard_errors(answer: Answer) -> Tensor | None:
    """Of the probabilities (K,), by the jackknife over trials (Tukey 1958): how far they move where
    one is left out. None for one trial, and for an answer that is no plain mean over groups."""
    K = len(answer.scores)
    trials = {group.trial for group in answer.groups}
    is_mean = combine(K, answer.groups).scores.allclose(answer.scores, atol=1e-4)
    if len(trials) < 2 or not is_mean:
        return None
    without = []
    for trial in trials:
        rest = [group for group in answer.groups if group.trial != trial]
        without.append(combine(K, rest).probabilities)
    return ((len(trials) - 1) * torch.stack(without).var(dim=0, correction=0)).sqrt()
