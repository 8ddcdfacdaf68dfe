"""How close sampled groupings come to the exact expectation, and what they cost.

All ordered groups of a question are run once. The scores of any sample of groups then follow from
their probabilities, so all groupings, numbers of trials and repetitions take one exact run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from minise.engines import LanguageModel
from minise.ensemble import Answer, Plan, SelfEnsemble, mean_answer
from minise.errors import InputError, one_line
from minise.evaluation.metrics import SMALLEST_PROBABILITY
from minise.evaluation.samples import DAMAGE, Sample
from minise.grouping import Group, make_groups
from minise.question import Question

GROUPINGS = ("random", "balanced")
TRIALS = (1, 2, 5, 7, 10, 14, 20, 28, 40, 80)
REPETITIONS = 16
_CELL = ("grouping", "trials", "variance", "accuracy", "nll", "tokens")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GroupingStudy:
    """Self-Ensemble over all ordered groups. The notes say how far samples of them are from it."""

    name: ClassVar[str] = "grouping-study"
    group_size: int = 4

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        return SelfEnsemble(self.group_size, grouping="exact").plan(lm, question, seed)

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        return mean_answer(plan, logits)

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """For each grouping and number of trials, means over the repetitions: the squared distance
        of the scores from the exact ones ("variance"), accuracy, NLL (nats), merged tokens. The
        last record is the exact grouping's, with 0 trials."""
        question = plan.question
        K, right = len(question.choices), question.answer
        assert right is not None, "the questions of a task have answers"
        said = {group.choices: group.probabilities.numpy() for group in answer.groups}
        least = SMALLEST_PROBABILITY
        nll = -float(answer.probabilities[right].clamp_min(least).log())
        exact = ("exact", 0, 0.0, float(answer.prediction == right), nll, plan.tokens("tree"))
        found: list[tuple[Any, ...]] = []
        for grouping, trials in product(GROUPINGS, TRIALS):
            ids = [f"{question.id}/{i}" for i in range(REPETITIONS)]
            drawn = [make_groups(K, self.group_size, trials, seed, i, grouping) for i in ids]
            scores = np.stack([_scores(groups.flat, said, K) for groups in drawn])
            variance = float(np.mean((scores - answer.scores.numpy()) ** 2))
            accuracy = float(np.mean(scores.argmax(1) == right))
            nll = float(np.mean(-np.log(np.maximum(scores[:, right] / scores.sum(1), least))))
            one = SelfEnsemble(self.group_size, trials, grouping).plan(lm, question, seed)
            found.append((grouping, trials, variance, accuracy, nll, one.tokens("tree")))
        cells = [dict(zip(_CELL, values, strict=True)) for values in [*found, exact]]
        return {"group_size": self.group_size, "repetitions": REPETITIONS, "cells": cells}


def summarise_study(samples: dict[str, list[Sample]], resamples: int = 1000) -> dict[str, Any]:
    """A task's study, from its samples by variant: means over its questions under the first seed.

    A balanced number of trials also gets "worth": how many random trials have its variance, with a
    95% bootstrap interval over questions ("worth_interval"), and how many tokens they take
    ("tokens_of_worth", None beyond the largest number measured). The variance of N random trials is
    that of one, divided by N: that one number is fitted on all N. Where no number of trials has a
    variance, because all groups are the same, a balanced number has no worth.

    Raises InputError for notes that are not those of GroupingStudy.
    """
    return of_notes(samples, lambda given: _summarise(given, resamples))


def of_notes(
    samples: dict[str, list[Sample]], summarise: Callable[[list[Sample]], dict[str, Any]]
) -> dict[str, Any]:
    """What `summarise` makes of the only variant's samples. Raises InputError where their notes are
    not such as it reads."""
    ((name, given),) = samples.items()
    try:
        return summarise(given)
    except DAMAGE as error:
        remedy = "delete its samples file, then go on with --resume"
        raise InputError(f"{name}: notes are damaged ({one_line(error)}); {remedy}") from error


def _summarise(given: list[Sample], resamples: int) -> dict[str, Any]:
    notes = [s.notes for s in given if s.notes is not None and s.seed == given[0].seed]
    records = list(zip(*(note["cells"] for note in notes), strict=True))  # by cell, then question
    means = [{name: float(np.mean([r[name] for r in of])) for name in _CELL[2:]} for of in records]
    cells = [{**of[0], **mean} for of, mean in zip(records, means, strict=True)]
    variance = [np.array([one["variance"] for one in of]) for of in records]
    random = [i for i, cell in enumerate(cells) if cell["grouping"] == "random"]
    trials, tokens = ([cells[i][name] for i in random] for name in ("trials", "tokens"))
    of_one = np.mean([n * variance[i] for n, i in zip(trials, random, strict=True)], axis=0)
    generator = np.random.Generator(np.random.PCG64(0))
    drawn = generator.integers(len(notes), size=(resamples, len(notes)))
    for cell, own in zip(cells, variance, strict=True):
        if cell["grouping"] == "balanced" and own.mean() > 0:
            worth, resampled = float(of_one.mean() / own.mean()), own[drawn].mean(1)
            ratios = of_one[drawn].mean(1)[resampled > 0] / resampled[resampled > 0]
            interval = np.quantile(ratios, [0.025, 0.975])
            cell["worth"], cell["worth_interval"] = worth, interval.tolist()
            inside = worth <= trials[-1]
            cell["tokens_of_worth"] = float(np.interp(worth, trials, tokens)) if inside else None
    facts = {name: notes[0][name] for name in ("group_size", "repetitions")}
    return {**facts, "questions": len(notes), "cells": cells}


def _scores(groups: Sequence[Group], said: dict[Group, Array], K: int) -> Array:
    """The mean (Eq. 2) of looked-up probabilities: (K,)."""
    places = np.concatenate(groups)
    values = np.concatenate([said[group] for group in groups])
    return np.bincount(places, values, K) / np.bincount(places, minlength=K)
