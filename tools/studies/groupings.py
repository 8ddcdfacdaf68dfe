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

from minise.engines import LanguageModel
from minise.errors import InputError, one_line
from minise.evaluation.metrics import SMALLEST_PROBABILITY
from minise.evaluation.samples import DAMAGE
from minise.grouping import Group, Trial, make_groups
from minise.groupings.exact import all_ordered_groups
from minise.groupings.registry import GROUPINGS
from minise.layout import pack
from minise.method import Answer, Method, Plan, SelfEnsemble
from minise.methods.sample import Sample
from minise.methods.sequential import trial_values
from minise.question import Question

SAMPLED = ("random", "balanced")
TRIALS = (1, 2, 5, 7, 10, 14, 20, 28, 40, 80)
REPETITIONS = 16
_CELL = ("grouping", "trials", "variance", "accuracy", "nll", "tokens")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class GroupingStudy(Method):
    """Self-Ensemble over all ordered groups. The notes say how far samples of them are from it."""

    name: ClassVar[str] = "grouping-study"
    group_size: int = 4

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        return SelfEnsemble(self.group_size, grouping=all_ordered_groups).plan(lm, question, seed)

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """For each grouping and number of trials, means over the repetitions: the squared distance
        of the scores from the exact ones ("variance"), accuracy, NLL (nats), tokens. The
        last record is the exact grouping's, with 0 trials."""
        known, id = Known(lm, plan, answer), plan.question.id
        K, right, least = known.K, known.right, SMALLEST_PROBABILITY
        nll = -float(answer.probabilities[right].clamp_min(least).log())
        exact = ("exact", 0, 0.0, float(answer.prediction == right), nll, known.size)
        found: list[tuple[Any, ...]] = []
        for grouping, trials in product(SAMPLED, TRIALS):
            ids = [id, *(f"{id}/{i}" for i in range(REPETITIONS))]
            run, *drawn = [
                make_groups(K, self.group_size, trials, seed, i, GROUPINGS[grouping]) for i in ids
            ]
            scores = np.stack([known.values(groups.trials).mean(axis=0) for groups in drawn])
            variance = float(np.mean((scores - answer.scores.numpy()) ** 2))
            accuracy = float(np.mean(scores.argmax(1) == right))
            nll = float(np.mean(-np.log(np.maximum(scores[:, right] / scores.sum(1), least))))
            found.append((grouping, trials, variance, accuracy, nll, known.tokens(run.flat)))
        cells = [dict(zip(_CELL, values, strict=True)) for values in [*found, exact]]
        return {"group_size": self.group_size, "repetitions": REPETITIONS, "cells": cells}


class Known:
    """What every ordered group of a question says, and which of the tokens that run its prompt
    takes."""

    def __init__(self, lm: LanguageModel, plan: Plan, answer: Answer) -> None:
        tree = pack(plan.prefix, plan.branches, tree=lm.counted_as("tree") == "tree")
        self.rows = dict(zip(plan.groups.flat, map(np.array, tree.paths()), strict=True))
        self.said = {group.choices: group.probabilities.numpy() for group in answer.groups}
        self.size, self.K = len(tree.tokens), len(plan.question.choices)
        assert plan.question.answer is not None, "the questions of a task have answers"
        self.right, self.prediction = plan.question.answer, answer.prediction
        self.exact: Array = answer.probabilities.numpy()

    def values(self, trials: Sequence[Trial]) -> Array:
        """The probability that each trial gives each choice: (N, K)."""
        return trial_values(trials, self.said, self.K)

    def tokens(self, groups: Sequence[Group]) -> int:
        """Of one pass of the engine tree."""
        used = np.zeros(self.size)
        for group in groups:
            used[self.rows[group]] = 1
        return int(used.sum())


def summarise_study(samples: dict[str, list[Sample]], resamples: int = 1000) -> dict[str, Any]:
    """A task's study, from its samples by variant: means over its questions under the first seed.

    A balanced number of trials also gets "worth": how many random trials have its variance, with a
    95% bootstrap interval over questions ("worth_interval"), and how many tokens they take
    ("tokens_of_worth", None beyond the largest number measured). The variance of N random trials is
    that of one, divided by N: that one number is fitted on all N. Where no number of trials has a
    variance, because all groups are the same, a balanced number has no worth.

    Raises InputError for notes that are not those of GroupingStudy.
    """
    return of_notes(samples, resamples, _measure)


def of_notes(
    samples: dict[str, list[Sample]], resamples: int, measure: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """A task's study, from the only variant's notes under the first seed: its sizes, and what
    `measure(notes, drawn)` makes of them; `drawn` are `resamples` bootstrap samples of indices.
    Raises InputError where the notes are not such as it reads."""
    ((name, given),) = samples.items()
    try:
        notes = [s.notes for s in given if s.notes is not None and s.seed == given[0].seed]
        n, generator = len(notes), np.random.Generator(np.random.PCG64(0))
        measured = measure(notes, generator.integers(n, size=(resamples, n)))
        sizes = {size: notes[0][size] for size in ("group_size", "repetitions")}
        return {**sizes, "questions": n, **measured}
    except DAMAGE as error:
        remedy = "delete its samples file, then go on with --resume"
        raise InputError(f"{name}: notes are damaged ({one_line(error)}); {remedy}") from error


def by_cell(notes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], ...]]:
    """For each cell its records, one of each question."""
    return list(zip(*(note["cells"] for note in notes), strict=True))


def means(records: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, float]:
    return {name: float(np.mean([record[name] for record in records])) for name in names}


def _measure(notes: Sequence[dict[str, Any]], drawn: NDArray[np.int64]) -> dict[str, Any]:
    cells = [{**records[0], **means(records, _CELL[2:])} for records in by_cell(notes)]
    variances = [np.array([one["variance"] for one in records]) for records in by_cell(notes)]
    both = list(zip(cells, variances, strict=True))
    random = [(cell, own) for cell, own in both if cell["grouping"] == "random"]
    trials, tokens = ([cell[name] for cell, _ in random] for name in ("trials", "tokens"))
    of_one = np.mean([cell["trials"] * own for cell, own in random], axis=0)
    for cell, own in both:
        if cell["grouping"] == "balanced" and own.mean() > 0:
            worth, resampled = float(of_one.mean() / own.mean()), own[drawn].mean(1)
            ratios = of_one[drawn].mean(1)[resampled > 0] / resampled[resampled > 0]
            inside = worth <= trials[-1]
            cell["worth"] = worth
            cell["worth_interval"] = np.quantile(ratios, [0.025, 0.975]).tolist()
            cell["tokens_of_worth"] = float(np.interp(worth, trials, tokens)) if inside else None
    return {"cells": cells}
