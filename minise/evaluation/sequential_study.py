"""What stopping when it is decided costs, and how often it is wrong, against the exact expectation.

All ordered groups of a question are run once (`grouping_study`). Any rounds of groups, and what a
rule says of them, then follow from their probabilities. So all rules, block sizes and repetitions
take one exact run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from math import ceil, log
from typing import Any, ClassVar

import numpy as np

from minise.designs import balanced_partitions
from minise.engines import LanguageModel
from minise.ensemble import Answer, Plan
from minise.evaluation.grouping_study import Array, GroupingStudy, of_notes
from minise.evaluation.metrics import SMALLEST_PROBABILITY
from minise.evaluation.samples import Sample
from minise.grouping import Group, Groups, Trial, random_partitions
from minise.layout import pack
from minise.plugin import load_extra
from minise.sequential import UntilDecided, fresh, log_wealth, standard_leads, trial_values

BLOCKS = (3, 4, 5, 6, 7, 8, 10)
LEVELS: dict[str, tuple[float, ...]] = {"alpha": (0.1, 0.05, 0.01), "z": (1, 1.5, 2, 3, 4)}
FIXED = (3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 640, 1280)
BALANCED = (8, 20, 40, 80)
MOST_TRIALS = (80, 320)  # the second for the default block alone
REPETITIONS = 4
_KEY = ("rule", "level", "grouping", "block", "max_trials")
# By repetition: the trials asked and the tokens they took. Means over the repetitions: the shares
# that are decided, predict as the exact expectation does ("same"), are decided but do not ("error")
# and are right; NLL (nats); the predicted choice's probability minus its exact one ("bias").
_LISTS = ("trials", "tokens")
_MEANS = ("decided", "same", "error", "accuracy", "nll", "bias")


class SequentialStudy(GroupingStudy):
    """Self-Ensemble over all ordered groups. The notes say where rules would have stopped."""

    name: ClassVar[str] = "sequential-study"

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """A cell for each rule with its level, grouping and block; rule "fixed" has a number of
        trials as its level and asks them in one pass."""
        known, found = _Known(plan, answer), dict[tuple[Any, ...], list[tuple[float, ...]]]()
        for number in range(REPETITIONS):
            for key, outcome in self._outcomes(known, seed, f"{plan.question.id}/{number}"):
                found.setdefault(key, []).append(outcome)
        cells = []
        for key, outcomes in found.items():
            columns = list(zip(*outcomes, strict=True))
            lists = dict(zip(_LISTS, map(list, columns[:2]), strict=True))
            means = {n: float(np.mean(c)) for n, c in zip(_MEANS, columns[2:], strict=True)}
            cells.append({**dict(zip(_KEY, key, strict=True)), **lists, **means})
        exact = {"accuracy": float(answer.prediction == known.right), "nll": known.nll(known.exact)}
        facts = {"group_size": self.group_size, "repetitions": REPETITIONS}
        return {**facts, "exact": exact, "cells": cells}

    def _outcomes(
        self, known: _Known, seed: int, key: str
    ) -> Iterator[tuple[tuple[Any, ...], tuple[float, ...]]]:
        K, m, drawn = known.K, self.group_size, random_partitions
        for grouping, numbers in (("random", FIXED), ("balanced", BALANCED)):
            for N in numbers:
                groups = drawn(K, m, N, seed, key)
                scores = known.values(groups.trials).mean(axis=0)
                told = known.outcome(N, known.tokens(groups.flat), scores)
                yield ("fixed", N, grouping, N, N), told
            drawn = balanced_partitions
        usual = [(block, MOST_TRIALS[0]) for block in BLOCKS]
        sizes = [*usual, (2 * m, MOST_TRIALS[1])]
        for grouping, (block, most) in product(("random", "balanced"), sizes):
            method = UntilDecided(m, max_trials=most, block=block, grouping=grouping)
            rounds = range(most // block)
            asked = [method.draw(K, number, seed, key) for number in rounds]
            tokens = list(accumulate(known.tokens_of_rounds(asked)))
            values = np.stack([known.values(groups.trials) for groups in asked])  # (R, block, K)
            so_far = np.cumsum(values.mean(axis=1), axis=0) / np.arange(1, len(asked) + 1)[:, None]
            leader = so_far.argmax(axis=1)
            for rule, level, excluded in _excluded(values, grouping == "random"):
                # Where the leader itself is excluded there is no decision.
                done = (excluded.sum(axis=1) == K - 1) & ~excluded[rounds, leader]
                at = int(done.argmax()) if done.any() else len(asked) - 1
                told = known.outcome((at + 1) * block, tokens[at], so_far[at], bool(done.any()))
                yield (rule, level, grouping, block, most), told


def _excluded(values_RBK: Array, independent: bool) -> Iterator[tuple[str, float, Any]]:
    """For each rule and level which choices are excluded after each round: (R, K) bool."""
    R, B, K = values_RBK.shape
    means_RK = values_RBK.mean(axis=1)
    wealth = log_wealth(values_RBK.reshape(R * B, K) if independent else means_RK)
    most = np.maximum.accumulate(wealth)[B - 1 :: B] if independent else wealth
    most = np.maximum.accumulate(most)
    leads = np.stack([standard_leads(means_RK[: r + 1]) for r in range(R)])
    for alpha in LEVELS["alpha"]:
        yield "alpha", alpha, most >= -log(alpha)
    for z in LEVELS["z"]:
        yield "z", z, leads > z


class _Known:
    """What every ordered group of a question says, and which rows of the tree its prompt takes."""

    def __init__(self, plan: Plan, answer: Answer) -> None:
        tree = pack(plan.prefix, plan.branches, tree=True)
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
        used = np.zeros(self.size, dtype=bool)
        for group in groups:
            used[self.rows[group]] = True
        return int(used.sum())

    def tokens_of_rounds(self, rounds: Sequence[Groups]) -> Iterator[int]:
        seen = set[Group]()
        for drawn in rounds:
            asked = fresh(drawn, seen)
            seen.update(asked)
            yield self.tokens(asked)

    def nll(self, p: Array) -> float:
        return -log(max(float(p[self.right]), SMALLEST_PROBABILITY))

    def outcome(
        self, trials: int, tokens: int, scores: Array, decided: bool = False
    ) -> tuple[float, ...]:
        """The numbers of a cell, in the order of _LISTS and _MEANS."""
        p, best = scores / scores.sum(), int(scores.argmax())
        same, bias = best == self.prediction, p[best] - self.exact[best]
        error, right = decided and not same, best == self.right
        return (trials, tokens, decided, same, error, right, self.nll(p), float(bias))


def summarise_sequential(samples: dict[str, list[Sample]], resamples: int = 1000) -> dict[str, Any]:
    """A task's study, from its samples by variant: for each cell means over its questions under the
    first seed, and the quantiles of trials and tokens over questions and repetitions ("_quantiles":
    10%, 50%, 90%).

    "error_interval": 95%, exact binomial, in which a question counts once, and the errors are
    rounded up. "same_interval": 95%, bootstrap over questions. "tokens_of_fixed": how many tokens
    fixed numbers of random trials take for the same share of equal predictions, interpolated; None
    where none of them has that share.

    Raises InputError for notes that are not those of SequentialStudy.
    """
    return of_notes(samples, lambda given: _summarise(given, resamples))


def _summarise(given: list[Sample], resamples: int) -> dict[str, Any]:
    notes = [s.notes for s in given if s.notes is not None and s.seed == given[0].seed]
    n = len(notes)
    drawn = np.random.Generator(np.random.PCG64(0)).integers(n, size=(resamples, n))
    binomial = load_extra("scipy.stats").binomtest
    cells = []
    for records in zip(*(note["cells"] for note in notes), strict=True):
        cell = {name: records[0][name] for name in _KEY}
        for name in _LISTS:
            every = np.array([record[name] for record in records], dtype=np.float64)
            cell[name] = float(every.mean())
            cell[f"{name}_quantiles"] = np.quantile(every, [0.1, 0.5, 0.9]).tolist()
        cell |= {name: float(np.mean([r[name] for r in records])) for name in _MEANS}
        same = np.array([record["same"] for record in records])[drawn].mean(axis=1)
        cell["same_interval"] = np.quantile(same, [0.025, 0.975]).tolist()
        wrong = ceil(round(n * cell["error"], 6))
        cell["error_interval"] = [*binomial(wrong, n).proportion_ci()]
        cells.append(cell)
    fixed = [c for c in cells if c["rule"] == "fixed" and c["grouping"] == "random"]
    shares, first = np.unique(
        np.maximum.accumulate([cell["same"] for cell in fixed]), return_index=True
    )
    tokens = [fixed[i]["tokens"] for i in first]
    for cell in cells:
        reached = cell["same"] <= shares[-1]
        of_fixed = float(np.interp(cell["same"], shares, tokens)) if reached else None
        cell["tokens_of_fixed"] = of_fixed
    exact = {
        name: float(np.mean([note["exact"][name] for note in notes]))
        for name in ("accuracy", "nll")
    }
    facts = {name: notes[0][name] for name in ("group_size", "repetitions")}
    return {**facts, "questions": n, "exact": exact, "cells": cells}
