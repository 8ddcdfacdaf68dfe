"""Permutation self-consistency: the ranking that is nearest to the rankings of all orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from minise.errors import InputError
from minise.methods.fitted import Fitted
from minise.methods.sample import Sample

EXACT = 10  # up to so many choices the best ranking is searched among all

Matrix = list[list[float]]


@dataclass(frozen=True)
class PermutationSelfConsistency(Fitted):
    """Permutation self-consistency (Tang et al. 2023, arXiv 2310.07712), over the orders of
    `permutations`.

    The publication ranks passages: the list in the prompt is shuffled again and again, the model
    writes a ranking of each, and the central ranking is the one that minimises the sum of Kendall
    tau distances to them. Its authors' code finds it by integer programming. Here the model writes
    no ranking. Each order ranks the choices by their probabilities in that prompt, and then

        central = argmin over rankings r of sum over orders o, over pairs r(i) < r(j) of
                  [p_o(i) < p_o(j)] + [p_o(i) = p_o(j)] / 2

    (the Kemeny ranking). It is found exactly for up to 10 choices, by dynamic programming over the
    sets of choices that come first. Above that it is the ranking by mean rank (Borda), after moves
    of single choices until no move brings it nearer. Of equally near rankings it is the one that
    has choices of a larger mean probability first. The answer is the first of the ranking.

    A ranking is no distribution: p(i) is proportional to 1 / rank(i). So accuracy means something
    here, NLL and calibration do not. Nothing more is asked; the tokens are those of `permutations`.
    """

    name: ClassVar[str] = "permutation-self-consistency"
    needs = ("permutations",)

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        """A sample for each of `permutations`, in their order. Raises InputError for samples
        without their groups."""
        return [sample.remade(_by_rank(_ranking(sample))) for sample in samples["permutations"]]


def central_ranking(rankings: Sequence[Sequence[float]], start: Sequence[int]) -> list[int]:
    """The ranking, best first, that is nearest to all `rankings`, each a score for every choice of
    which the larger is the better. `start`: all choices in the order that decides between equally
    near rankings."""
    K = len(start)
    # The cost of i before j: how many rankings have j before i; an equal score counts half.
    cost: Matrix = [
        [sum((s[j] > s[i]) + (s[j] == s[i]) / 2 for s in rankings) for j in range(K)]
        for i in range(K)
    ]
    return _exact(cost, start) if K <= EXACT else _moved(cost, start)


def total_cost(cost: Matrix, ranking: Sequence[int]) -> float:
    """The sum over pairs of a ranking."""
    return sum(cost[i][j] for place, i in enumerate(ranking) for j in ranking[place + 1 :])


def _exact(cost: Matrix, start: Sequence[int]) -> list[int]:
    """The cheapest ranking of a set is a first choice and the cheapest ranking of the others."""
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}  # by the set as bits
    for bits in range(1, 1 << len(start)):
        members = [i for i in start if bits >> i & 1]
        options = []
        for first in members:
            rest, ranking = best[bits ^ 1 << first]
            options.append((rest + sum(cost[first][j] for j in ranking), [first, *ranking]))
        best[bits] = min(options, key=lambda option: option[0])  # the first of equals
    return best[(1 << len(start)) - 1][1]


def _moved(cost: Matrix, start: Sequence[int]) -> list[int]:
    """The ranking by mean rank, improved by single moves."""
    # The costs of a choice before all others sum to its mean rank, apart from a constant.
    ranking = sorted(start, key=lambda i: sum(cost[i]))
    while True:
        now = total_cost(cost, ranking)
        for i in ranking:
            others = [j for j in ranking if j != i]
            moved = [[*others[:place], i, *others[place:]] for place in range(len(ranking))]
            nearest = min(moved, key=lambda one: total_cost(cost, one))
            if total_cost(cost, nearest) < now:
                ranking = nearest
                break
        else:
            return ranking


def _ranking(sample: Sample) -> list[int]:
    if not sample.groups:
        raise InputError(f"question {sample.id}: its orders are not kept; run permutations again")
    by_choice = [
        [p for _, p in sorted(zip(group["choices"], group["probabilities"], strict=True))]
        for group in sample.groups
    ]
    start = sorted(range(len(sample.scores)), key=lambda i: -sample.scores[i])
    return central_ranking(by_choice, start)


def _by_rank(ranking: Sequence[int]) -> list[float]:
    shares: dict[int, Any] = {choice: 1 / place for place, choice in enumerate(ranking, 1)}
    return [shares[i] / sum(shares.values()) for i in range(len(ranking))]
