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
from numpy.typing import NDArray

from minise.engines import LanguageModel
from minise.evaluation.grouping_study import Array, GroupingStudy, Known, by_cell, means, of_notes
from minise.evaluation.metrics import SMALLEST_PROBABILITY
from minise.grouping import Group, Groups, random_partitions
from minise.groupings.balanced import balanced_partitions
from minise.groupings.registry import GROUPINGS
from minise.loading.plugin import load_extra
from minise.method import Answer, Plan
from minise.methods.sample import Sample
from minise.methods.sequential import UntilDecided, fresh, log_wealth, standard_leads

BLOCKS = (3, 4, 5, 6, 7, 8, 10)
LEVELS: dict[str, tuple[float, ...]] = {"alpha": (0.1, 0.05, 0.01), "z": (0.5, 0.75, 1, 1.5, 2)}
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
        known = _Scored(lm, plan, answer)
        ids = [f"{plan.question.id}/{i}" for i in range(REPETITIONS)]
        cells = []
        for outcomes in zip(*(self._outcomes(known, seed, id) for id in ids), strict=True):
            lists = {name: [one[name] for one in outcomes] for name in _LISTS}
            cells.append({**outcomes[0], **lists, **means(outcomes, _MEANS)})
        exact = {"accuracy": float(answer.prediction == known.right), "nll": known.nll(known.exact)}
        facts = {"group_size": self.group_size, "repetitions": REPETITIONS}
        return {**facts, "exact": exact, "cells": cells}

    def _outcomes(self, known: _Scored, seed: int, key: str) -> Iterator[dict[str, Any]]:
        """Each cell in one repetition."""
        K, m = known.K, self.group_size
        fixed = [("random", random_partitions, N) for N in FIXED]
        fixed += [("balanced", balanced_partitions, N) for N in BALANCED]
        for grouping, draw, N in fixed:
            groups = draw(K, m, N, seed, key)
            scores = known.values(groups.trials).mean(axis=0)
            cell = dict(zip(_KEY, ("fixed", N, grouping, N, N), strict=True))
            yield cell | known.outcome(N, known.tokens(groups.flat), scores)
        sizes = [*((block, MOST_TRIALS[0]) for block in BLOCKS), (2 * m, MOST_TRIALS[1])]
        for grouping, (block, most) in product(("random", "balanced"), sizes):
            method = UntilDecided(m, max_trials=most, block=block, grouping=GROUPINGS[grouping])
            rounds = range(most // block)
            asked = [method.draw(K, number, seed, key) for number in rounds]
            tokens = list(accumulate(known.tokens_of_rounds(asked)))
            values = np.stack([known.values(groups.trials) for groups in asked])  # (R, block, K)
            so_far = np.cumsum(values.mean(axis=1), axis=0) / np.arange(1, len(asked) + 1)[:, None]
            leader = so_far.argmax(axis=1)
            for rule, level, excluded in _excluded(values, grouping == "random"):
                # Where the leader itself is excluded there is no decision.
                done = (excluded.sum(axis=1) == K - 1) & ~excluded[rounds, leader]
                decided = bool(done.any())
                at = int(done.argmax()) if decided else len(asked) - 1
                cell = dict(zip(_KEY, (rule, level, grouping, block, most), strict=True))
                yield cell | known.outcome((at + 1) * block, tokens[at], so_far[at], decided)


def _excluded(values_RBK: Array, independent: bool) -> Iterator[tuple[str, float, Any]]:
    """For each rule and level which choices are excluded after each round: (R, K) bool."""
    R, B, K = values_RBK.shape
    values_NK = values_RBK.reshape(R * B, K)
    if independent:
        most = np.maximum.accumulate(log_wealth(values_NK))[B - 1 :: B]
    else:
        most = np.maximum.accumulate(log_wealth(values_RBK.mean(axis=1)))
    leads = np.stack([standard_leads(values_NK[: r * B]) for r in range(1, R + 1)])
    for alpha in LEVELS["alpha"]:
        yield "alpha", alpha, most >= -log(alpha)
    for z in LEVELS["z"]:
        yield "z", z, leads > z


class _Scored(Known):
    """Also how good an answer from some of the groups is."""

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
    ) -> dict[str, Any]:
        """The numbers of a cell in one repetition."""
        p, best = scores / scores.sum(), int(scores.argmax())
        same = best == self.prediction
        found = {"trials": trials, "tokens": tokens, "decided": decided, "same": same}
        found |= {"error": decided and not same, "accuracy": best == self.right}
        return found | {"nll": self.nll(p), "bias": float(p[best] - self.exact[best])}


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
    return of_notes(samples, resamples, _measure)


def _measure(notes: Sequence[dict[str, Any]], drawn: NDArray[np.int64]) -> dict[str, Any]:
    n, binomial = len(notes), load_extra("scipy.stats").binomtest
    cells = []
    for records in by_cell(notes):
        cell = {name: records[0][name] for name in _KEY}
        for name in _LISTS:
            every = np.array([record[name] for record in records], dtype=np.float64)
            cell[name] = float(every.mean())
            cell[f"{name}_quantiles"] = np.quantile(every, [0.1, 0.5, 0.9]).tolist()
        cell |= means(records, _MEANS)
        same = np.array([record["same"] for record in records])[drawn].mean(axis=1)
        cell["same_interval"] = np.quantile(same, [0.025, 0.975]).tolist()
        wrong = ceil(round(n * cell["error"], 6))
        cell["error_interval"] = [*binomial(wrong, n).proportion_ci()]
        cells.append(cell)
    fixed = [c for c in cells if c["rule"] == "fixed" and c["grouping"] == "random"]
    most = np.maximum.accumulate([cell["same"] for cell in fixed])
    shares, first = np.unique(most, return_index=True)
    tokens = [fixed[i]["tokens"] for i in first]
    for cell in cells:
        reached = cell["same"] <= shares[-1]
        of_fixed = float(np.interp(cell["same"], shares, tokens)) if reached else None
        cell["tokens_of_fixed"] = of_fixed
    exact = means([note["exact"] for note in notes], ("accuracy", "nll"))
    return {"exact": exact, "cells": cells}
