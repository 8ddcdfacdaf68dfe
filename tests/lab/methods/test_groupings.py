"""The groupings beside the paper's: the released code's draws, and all ordered groups."""

from collections import Counter
from itertools import permutations
from math import factorial

import pytest
import torch

from minise import InputError, LocalModel, Question, self_ensemble
from minise.lab.methods.groupings import all_ordered_groups, grouping_named, independent_draws


def test_independent_draws_are_the_released_codes() -> None:
    """The paper's 20 draws of 4 of 8 with seed 0 cover A...H 11, 6, 8, 10, 14, 10, 8, 13 times."""
    draws = independent_draws(8, 4, 20, 0, "").flat
    assert all(len(set(draw)) == 4 for draw in draws)
    coverage = Counter(choice for draw in draws for choice in draw)
    assert [coverage[choice] for choice in range(8)] == [11, 6, 8, 10, 14, 10, 8, 13]
    assert independent_draws(8, 4, 3, 0, "q").trials == (
        ((4, 2, 5, 0),),
        ((3, 0, 7, 6),),
        ((0, 6, 3, 1),),
    )
    assert independent_draws(8, 4, 2, 1, "").flat != draws[:2]
    assert len(independent_draws(3, 5, 1, 0, "").flat[0]) == 3


@pytest.mark.parametrize("m", [1, 2, 3, 5, 7])
def test_exact_is_the_mean_over_all_permutations(
    qwen: LocalModel, question: Question, m: int
) -> None:
    """Brute force: each of the 5! orders of the choices is one equally likely trial."""
    answer = self_ensemble(qwen, question, group_size=m, grouping="exact")
    probabilities = {group.choices: group.probabilities for group in answer.groups}
    total = torch.zeros(5, dtype=torch.float64)
    for order in permutations(range(5)):
        for start in range(0, 5, m):
            group = order[start : start + m]
            total[list(group)] += probabilities[group]
    assert (answer.scores - total / factorial(5)).abs().max() <= 1e-12


def test_too_many_exact_groups_are_counted_and_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for k, m, count in ((20, 10, "670,442,572,800"), (1000, 999, "1000 choices")):
        with pytest.raises(InputError) as caught:
            all_ordered_groups(k, m, 0, 0, "")
        assert count in str(caught.value)
        assert len(str(caught.value)) < 300
    assert len(all_ordered_groups(10, 5, 0, 0, "").flat) == 30_240
    monkeypatch.setattr("minise.lab.methods.groupings.MOST_GROUPS", 30)
    assert len(all_ordered_groups(5, 2, 0, 0, "").flat) == 30
    with pytest.raises(InputError, match="limit of 30"):
        all_ordered_groups(6, 3, 0, 0, "")


def test_an_unknown_grouping_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r'"best".* use one of random, independent, exact'):
        grouping_named("best")
