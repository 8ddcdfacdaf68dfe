"""The central ranking against all rankings, and what a sample becomes."""

from __future__ import annotations

import random
from itertools import combinations, permutations

import pytest

from minise import InputError, LanguageModel, Question, ask
from minise.methods.build import make_variants
from minise.methods.first_trials import group_records
from minise.methods.permutation_consistency import (
    EXACT,
    PermutationSelfConsistency,
    central_ranking,
)
from minise.methods.rotations import Permutations
from minise.methods.sample import Sample


def distance(ranking: list[int], scores: list[float]) -> float:
    """Kendall tau, in pairs, of a ranking to that by scores; an equal score is half a pair."""
    pairs = combinations(ranking, 2)
    return sum((scores[b] > scores[a]) + (scores[b] == scores[a]) / 2 for a, b in pairs)


def total(ranking: list[int], rankings: list[list[float]]) -> float:
    return sum(distance(ranking, scores) for scores in rankings)


def test_up_to_ten_choices_no_ranking_is_nearer() -> None:
    draw = random.Random(0)
    for K in (2, 3, 4, 5):
        for _ in range(10):
            scores = [[draw.randrange(4) / 4 for _ in range(K)] for _ in range(5)]
            found = central_ranking(scores, range(K))
            assert sorted(found) == list(range(K))
            nearest = min(total(list(one), scores) for one in permutations(range(K)))
            assert total(found, scores) == nearest


def test_up_to_ten_choices_it_is_found_where_single_moves_would_end_before() -> None:
    assert EXACT == 10
    for K, seed, nearest in ((6, 83, 12), (8, 11, 23), (10, 10, 29)):
        draw = random.Random(seed)
        scores = [[draw.random() for _ in range(K)] for _ in range(3)]
        assert total(central_ranking(scores, range(K)), scores) == nearest


def test_the_orders_that_it_needs_are_asked_first() -> None:
    variants = make_variants(["permutation-self-consistency"], {}, "tree")
    assert [variant.name for variant in variants] == [
        "permutations",
        "permutation-self-consistency",
    ]


def test_of_equally_near_rankings_the_start_decides() -> None:
    assert central_ranking([[0.6, 0.4], [0.4, 0.6]], [1, 0]) == [1, 0]
    assert central_ranking([[0.6, 0.4], [0.4, 0.6]], [0, 1]) == [0, 1]


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_more_choices_get_a_ranking_that_no_single_move_improves(seed: int) -> None:
    draw = random.Random(seed)
    K = EXACT + 3
    scores = [[draw.random() for _ in range(K)] for _ in range(5)]
    found = central_ranking(scores, range(K))
    now = total(found, scores)
    assert sorted(found) == list(range(K))
    for i in found:
        others = [j for j in found if j != i]
        for place in range(K):
            assert total([*others[:place], i, *others[place:]], scores) >= now
    by_mean_rank = sorted(
        range(K), key=lambda i: sum(s[j] > s[i] for s in scores for j in range(K))
    )
    assert now <= total(by_mean_rank, scores)
    agreed = [[float(i) for i in range(K)]] * 3
    assert central_ranking(agreed, range(K)) == list(range(K))[::-1]


def test_the_majority_can_decide_against_the_mean() -> None:
    """Two orders of three put B first, with little more; the mean is for A. The ranking is B, A, C,
    whose shares are those of 1, 1/2 and 1/3."""
    records = [
        {"choices": [0, 1, 2], "probabilities": [0.45, 0.5, 0.05]},
        {"choices": [1, 2, 0], "probabilities": [0.5, 0.05, 0.45]},
        {"choices": [2, 1, 0], "probabilities": [0.05, 0.05, 0.9]},
    ]
    mean = [0.6, 0.35, 0.05]
    given = Sample("q", 0, "", 1, 0, mean, mean, 99, 1.0, groups=records)
    (new,) = PermutationSelfConsistency().fit({"permutations": [given]})
    assert new.prediction == 1
    assert new.probabilities == pytest.approx([3 / 11, 6 / 11, 2 / 11])
    assert (new.tokens, new.seconds, new.groups) == (99, None, None)


def test_it_ranks_what_permutations_asked(lm: LanguageModel) -> None:
    question = Question("Q", ["eel", "cat", "owl"])
    method = Permutations(count=5)
    plan, answer = method.plan(lm, question), ask(lm, method, question)
    p = answer.probabilities.tolist()
    given = Sample("q", 0, "", 1, 0, p, p, 9, groups=group_records(plan, answer, "tree"))
    (new,) = PermutationSelfConsistency().fit({"permutations": [given]})
    scores = []
    for group in answer.groups:
        of = dict(zip(group.choices, group.probabilities.tolist(), strict=True))
        scores.append([of[i] for i in range(3)])
    ranking = sorted(range(3), key=lambda i: -new.probabilities[i])
    assert total(ranking, scores) == min(total(list(one), scores) for one in permutations(range(3)))


def test_orders_that_are_not_kept_are_refused() -> None:
    given = Sample("q7", 0, "", 1, 0, [0.5, 0.5], [0.5, 0.5], 9)
    with pytest.raises(InputError, match="question q7: its orders are not kept; run permutations"):
        PermutationSelfConsistency().fit({"permutations": [given]})
