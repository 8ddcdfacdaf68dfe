"""Decisions: many typed questions on one text, the state, answered in one pass. Their prompts are
one tree, whose trunk is the state, so that no question sees another (docs/decisions.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from minise.errors import InputError, quote
from minise.lab.data.typed import METHOD, TypedQuestion, read_questions
from minise.lab.evaluation.pipeline import join
from minise.lab.methods.registry import methods_to_ask
from minise.method import Answer, Logits, Method, combine
from minise.prompts import LanguageModel, Prompts, check_prompts

TRIALS = 5  # of self-ensemble, unless it names its own


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
) -> dict[str, Decision]:
    """The answers to all questions on a state, by the questions' ids, from one pass.

    state: a text, or JSON, which is written as text. questions: as data/typed.py has them. method:
    as `minise ask --method` takes it. Raises InputError for any other, and as the method does.
    """
    if isinstance(method, str):
        method = method_named(method, {})
    together = Together(method)
    parts, prompts = together.prompts(lm, read_questions(state, questions), seed)
    return together.answer(parts, lm.logits(prompts))


def method_named(text: str, settings: Mapping[str, Any]) -> Method:
    """A method with settings for all: `minise ask --method` takes the same."""
    [method] = methods_to_ask(text, settings, {"trials": TRIALS}).values()
    return method


@dataclass(frozen=True, eq=False)
class Part:
    """A question of several. plan: what `Method.answer` has to remember. prompts: its number."""

    asked: TypedQuestion
    plan: Any
    prompts: int


@dataclass(frozen=True)
class Together:
    """Asks several questions at once by a method. It is called as a method is, with questions where
    that has one, so evaluation/pipeline.py asks requests as it asks questions."""

    method: Method

    def prompts(
        self, lm: LanguageModel, questions: Mapping[str, TypedQuestion], seed: int = 0
    ) -> tuple[dict[str, Part], Prompts]:
        """Raises InputError that names the question, as the method does, and for one too long."""
        parts = {}
        several = []
        for id, one in questions.items():
            try:
                plan, prompts = self.method.prompts(lm, one.question, seed)
                check_prompts(lm, prompts)
            except InputError as error:
                raise type(error)(f"question {quote(id, 40)}: {error}") from None
            parts[id] = Part(one, plan, len(prompts.branches))
            several.append(prompts)
        return parts, join(several)

    def answer(self, parts: Mapping[str, Part], logits: Logits) -> dict[str, Decision]:
        left = iter(logits)
        found = {}
        for id, part in parts.items():
            own = list(islice(left, part.prompts))
            found[id] = decision(part.asked, self.method.answer(part.plan, own))
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
    if len(trials) < 2 or not combine(K, answer.groups).scores.allclose(answer.scores, atol=1e-4):
        return None
    without = []
    for trial in trials:
        rest = [group for group in answer.groups if group.trial != trial]
        without.append(combine(K, rest).normalized)
    return ((len(trials) - 1) * torch.stack(without).var(dim=0, correction=0)).sqrt()
