"""The study of groups that the training could show."""

from __future__ import annotations

import pytest

from minise.data.miniature import held_out
from minise.methods.sample import Sample
from tools.studies.shown_groups import by_fact, cells, is_right, is_shown

CHOICES = ["Lima", "Oslo", "Rome", "Bern"]


def sample(question: str, groups: list[dict[str, object]] | None = None) -> Sample:
    text = {"question": question, "choices": CHOICES, "answer": "Oslo"}
    p = [0.25] * 4
    return Sample("a", 0, "h", 1, 0, p, p, 1, groups=groups, text=text, cluster="x")


def test_a_group_is_shown_if_neither_it_nor_it_with_the_answer_is_held_out() -> None:
    kinds = set()
    for number in range(200):
        one = sample(f"Question {number}")
        alone = held_out(f"Question {number}", ["Rome", "Bern"])
        with_answer = held_out(f"Question {number}", ["Oslo", "Rome", "Bern"])
        assert is_shown(one, [3, 2]) == (not alone and not with_answer)
        assert is_shown(one, [1, 2, 3]) == (not with_answer)
        kinds.add((alone, with_answer))
    assert kinds == {(False, False), (True, False), (False, True), (True, True)}


def test_a_group_is_right_by_the_right_choice_or_the_null_option() -> None:
    def right(choices: list[int], p: list[float], null: float) -> bool:
        return is_right(sample("Q"), {"choices": choices, "probabilities": p, "null": null})

    assert right([0, 1], [0.2, 0.5], 0.3)
    assert not right([0, 1], [0.5, 0.2], 0.3)
    assert not right([0, 1], [0.2, 0.3], 0.5)
    assert right([0, 2], [0.2, 0.3], 0.5)
    assert not right([0, 2], [0.5, 0.2], 0.3)


def test_groups_are_counted_by_fact() -> None:
    question = next(q for q in map("Q{}".format, range(99)) if not held_out(q, ["Lima", "Oslo"]))
    groups: list[dict[str, object]] = [
        {"choices": [0, 1], "probabilities": [0.2, 0.5], "null": 0.3},
        {"choices": [1, 0], "probabilities": [0.2, 0.5], "null": 0.3},
        {"choices": [2, 3], "probabilities": [0.2, 0.5], "null": 0.3},
    ]
    assert by_fact([sample(question, groups)], present=True) == [(2, 1, 0, 0)]


def test_the_difference_is_in_points_with_an_interval_over_facts() -> None:
    assert cells([(10, 8, 10, 5)] * 4) == ["40", "80.0", "40", "50.0", "+30.0 [+30.0, +30.0]"]
    *_, gain = cells([(10, 10, 10, 0), (10, 0, 10, 0)] * 50)
    assert gain.startswith("+50.0")
    low, high = (float(x) for x in gain[6:].strip("[]").split(", "))
    assert (low, high) == pytest.approx((40, 60), abs=3)
