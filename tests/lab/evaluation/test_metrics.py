"""The numbers of a cell: each equals its definition, written out here or in another library."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from minise.lab.evaluation.metrics import BINS, difference, holm, matched, measure, scored
from minise.lab.methods.saved import SavedAnswer
from tests.lab.evaluation.conftest import saved

DRAW = np.random.default_rng(7)


def drawn(n: int, K: int = 4, sharp: float = 1.5, skill: float = 2.0) -> list[SavedAnswer]:
    """Answers of a method with some skill."""
    rows = []
    for number in range(n):
        answer = int(DRAW.integers(K))
        logits = sharp * (DRAW.normal(size=K) + skill * (np.arange(K) == answer) / 2)
        p = np.exp(logits) / np.exp(logits).sum()
        rows.append(saved(number, p.tolist(), answer, cluster=f"fact {number // 3}"))
    return rows


ROWS = drawn(90)


def test_a_cell_by_hand() -> None:
    rows = [saved(0, [0.6, 0.4], 0, null=0.2), saved(1, [0.7, 0.3], 1, null=0.4)]
    numbers = measure([*rows, saved(2, [0.2, 0.8], 1)])
    assert numbers["n"] == numbers["questions"] == numbers["clusters"] == 3
    assert numbers["accuracy"] == pytest.approx(2 / 3)
    assert numbers["confidence"] == pytest.approx(0.7)
    assert numbers["null"] == pytest.approx(0.3)
    assert numbers["picks"] == [2, 1]
    assert numbers["answers"] == [1, 2]
    assert numbers["chance"] == 0.5
    assert numbers["tokens"] == 10


def test_numbers_equal_those_of_another_library() -> None:
    numbers = measure(ROWS)
    p = np.array([one.normalized for one in ROWS])
    answers = np.array([one.answer for one in ROWS])
    right, f = p.argmax(axis=1) == answers, p.max(axis=1)
    assert numbers["accuracy"] == right.mean()
    assert numbers["nll"] == pytest.approx(log_loss(answers, p, labels=range(4)), abs=1e-12)
    assert numbers["auroc"] == pytest.approx(roc_auc_score(right, f), abs=1e-12)
    each = [brier_score_loss(answers == k, p[:, k]) for k in range(4)]
    assert numbers["brier"] == pytest.approx(sum(each), abs=1e-12)
    assert numbers["under"] == (f[right] < 0.5).mean()
    assert numbers["over"] == (f[~right] > 0.5).mean()


def test_confidence_is_the_score_and_other_scales_stand_beside_it() -> None:
    """Scores that add up to two, as of two groups: a half of each is `normalized`."""
    rows = [replace(one, scores=[2 * p for p in one.normalized]) for one in ROWS]
    numbers, before = measure(rows), measure(ROWS)
    p = np.array([one.normalized for one in ROWS])
    right = p.argmax(axis=1) == np.array([one.answer for one in ROWS])
    f = p.max(axis=1)
    assert numbers["under"] == (2 * f[right] < 0.5).mean()
    assert numbers["over"] == (2 * f[~right] > 0.5).mean()
    assert numbers["over"] > numbers["normalized_over"] == (f[~right] > 0.5).mean()
    assert numbers["normalized_under"] == (f[right] < 0.5).mean()
    for name in ("auroc", "matched_under", "matched_over", "matched_nll"):  # these have no scale
        assert numbers[name] == before[name], name


def test_a_sharper_method_has_the_same_ratios_at_a_matched_temperature() -> None:
    rows = drawn(400)
    sharper = []
    for one in rows:
        p = np.array(one.normalized) ** 3
        p /= p.sum()
        sharper.append(replace(one, normalized=p.tolist(), scores=p.tolist()))
    before, after = measure(rows), measure(sharper)
    for name in ("under", "over"):
        assert abs(before[name] - after[name]) > 0.1
        assert before[f"matched_{name}"] == pytest.approx(after[f"matched_{name}"], abs=0.02)


def test_ece_is_the_sum_over_fifteen_bins_of_equal_width() -> None:
    frame = scored(ROWS)
    expected = 0.0
    for i in range(BINS):
        inside = (frame.confidence > i / BINS) & (frame.confidence <= (i + 1) / BINS)
        if inside.any():
            gap = frame.accuracy[inside].mean() - frame.confidence[inside].mean()
            expected += inside.sum() / len(frame) * abs(gap)
    numbers = measure(ROWS)
    assert numbers["ece"] == pytest.approx(expected, abs=1e-12)
    bins = numbers["reliability"]
    assert sum(bins["count"]) == len(ROWS)
    gaps = np.abs(np.array(bins["accuracy"]) - bins["confidence"])
    assert np.average(gaps, weights=bins["count"]) == pytest.approx(expected, abs=1e-12)


def test_an_upper_edge_belongs_to_its_bin() -> None:
    assert scored([saved(0, [0.6, 0.4], 0), saved(1, [0.61, 0.39], 0)]).bin.tolist() == [8, 9]


def test_confidence_curve_counts_what_lies_above_tau() -> None:
    curve = measure([saved(0, [0.6, 0.4], 0), saved(1, [0.8, 0.2], 0), saved(2, [0.9, 0.1], 1)])
    curve = curve["confidence_curve"]
    at = curve["tau"].index(0.6)
    assert (curve["tau"][0], curve["tau"][-1]) == (0, 1)
    assert (curve["correct"][at], curve["incorrect"][at]) == (0.5, 1)
    assert measure([saved(0, [0.6, 0.4], 0)])["confidence_curve"]["incorrect"] is None


def test_an_answer_of_probability_zero_costs_a_finite_loss() -> None:
    assert measure([saved(0, [1.0, 0.0], 1)])["nll"] == pytest.approx(-math.log(1e-12))


def test_what_is_not_defined_is_null() -> None:
    numbers = measure([saved(0, [0.9, 0.1], 0), saved(1, [0.9, 0.1], 0)])
    assert numbers["over"] is numbers["over_interval"] is numbers["auroc"] is None
    assert numbers["null"] is None
    assert measure([saved(0, [0.9, 0.1], 0)])["matched_nll"] is None


def test_flips_are_the_questions_with_another_prediction_over_all_pairs_of_seeds() -> None:
    p = [[0.9, 0.9, 0.2], [0.9, 0.8, 0.3], [0.9, 0.1, 0.9]]  # by seed
    rows = [saved(i, [x, 1 - x], 0, seed=seed) for seed in range(3) for i, x in enumerate(p[seed])]
    numbers = measure(rows)
    assert numbers["flips"] == pytest.approx((0 + 2 / 3 + 2 / 3) / 3)
    low, high = numbers["flips_interval"]
    assert 0 <= low < numbers["flips"] < high <= 2 / 3
    assert measure(rows[::3])["flips_interval"][0] == measure(rows[::3])["flips"] == 0
    # Neither one seed nor another text under the same id says anything.
    for some in (rows[:3], [rows[0], replace(rows[3], question_hash="other")]):
        assert measure(some)["flips"] is None


def test_without_answers_what_was_predicted_is_measured_and_nothing_is_scored() -> None:
    facts = {"on_labels": 0.02, "null": 0.5}
    numbers = measure([saved(0, [0.9, 0.1], None, **facts), saved(1, [0.3, 0.7], None, **facts)])
    known = {name: value for name, value in numbers.items() if value is not None}
    assert known == {
        "n": 2, "scored": 0, "picks": [1, 1], "tokens": 10, "seconds": 0.1,
        "confidence": pytest.approx(0.8), "null": 0.5, "on_labels": 0.02, "on_labels_p5": 0.02,
    }  # fmt: skip


def test_where_some_answers_are_missing_the_others_are_scored() -> None:
    """As if the others were all; what was predicted, and the share on the labels, is of all."""
    missing = [saved(100 + i, [0.9, 0.1], None, on_labels=0.5) for i in range(3)]
    scored = [replace(one, on_labels=1.0) for one in ROWS]
    both, alone = measure([*missing, *scored]), measure(scored)
    assert (both["n"], both["scored"]) == (len(ROWS) + 3, len(ROWS))
    assert both["on_labels"] == pytest.approx((len(ROWS) + 1.5) / (len(ROWS) + 3))
    assert sum(both["picks"]) == len(ROWS) + 3
    for name in ("accuracy", "accuracy_interval", "nll", "ece", "answers", "questions"):
        assert both[name] == alone[name]


# Matched NLL


@pytest.mark.parametrize("temperature", [0.25, 3.0])
def test_a_flatter_or_sharper_method_has_the_same_matched_nll(temperature: float) -> None:
    changed = []
    for one in ROWS:
        p = np.array(one.normalized) ** temperature
        changed.append(replace(one, normalized=(p / p.sum()).tolist()))
    before, after = measure(ROWS), measure(changed)
    assert abs(before["nll"] - after["nll"]) > 0.05
    assert before["matched_nll"] == pytest.approx(after["matched_nll"], abs=0.01)


def test_matched_nll_of_a_question_does_not_use_its_own_answer() -> None:
    p = np.array([row.normalized for row in ROWS[:30]])
    right = np.array([row.answer for row in ROWS[:30]])
    cluster = np.arange(30)
    before = matched(p, right, cluster)
    other = right.copy()
    other[4] = (right[4] + 1) % 4
    after = matched(p, other, cluster)
    folds = np.random.Generator(np.random.PCG64(0)).permutation(30) % 5
    same_fold = folds == folds[4]
    same_fold[4] = False
    assert before[same_fold].tolist() == after[same_fold].tolist()
    assert before[~same_fold].tolist() != after[~same_fold].tolist()


# Intervals


def test_intervals_are_the_same_in_any_order_of_lines() -> None:
    assert measure(ROWS[:20]) == measure(ROWS[:20][::-1])


def test_questions_about_one_fact_are_drawn_together() -> None:
    rows = [saved(i, [0.9, 0.1], i // 10 % 2, cluster=f"fact {i // 10}") for i in range(40)]
    alone = [replace(one, cluster=None) for one in rows]
    wide, narrow = (measure(x)["accuracy_interval"] for x in (rows, alone))
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])
    assert (measure(rows)["clusters"], measure(alone)["clusters"]) == (4, 40)


def test_all_seeds_of_a_question_are_one_cluster() -> None:
    rows = [saved(i, [0.9, 0.1], i % 2, seed=s) for s in range(5) for i in range(8)]
    numbers = measure(rows)
    assert (numbers["n"], numbers["questions"], numbers["clusters"]) == (40, 8, 8)
    assert numbers["accuracy_interval"] == measure(rows[:8])["accuracy_interval"]


def test_a_share_of_all_or_none_has_the_interval_of_wilson() -> None:
    rows = [saved(i, [0.9, 0.1], 0, cluster=f"fact {i // 2}") for i in range(20)]
    expected = binomtest(10, 10).proportion_ci(method="wilson")
    assert measure(rows)["accuracy_interval"] == pytest.approx([expected.low, expected.high])
    assert measure(rows)["under_interval"][0] == 0 < measure(rows)["under_interval"][1]


def test_spread_over_seeds() -> None:
    rows = [saved(i, [0.9, 0.1], int(i < s), seed=s) for s in (0, 1, 2) for i in range(4)]
    numbers = measure(rows)
    assert numbers["seed_accuracies"] == {"0": 1.0, "1": 0.75, "2": 0.5}
    assert (numbers["seeds_mean"], numbers["seeds_sd"]) == (0.75, 0.25)
    assert measure(rows[:4])["seeds_sd"] is None


# Differences


def test_difference_is_a_minus_b_on_shared_questions() -> None:
    a = [saved(i, [0.9, 0.1], 0) for i in range(12)]
    b = [saved(i, [0.1, 0.9] if i < 4 else [0.6, 0.4], 0) for i in range(2, 20)]
    found = difference(a, b)
    assert found is not None
    assert (found["n"], found["changed"], found["only_a"], found["only_b"]) == (10, 2, 2, 0)
    assert found["accuracy"] == pytest.approx(0.2)
    assert found["mcnemar_p"] == binomtest(2, 2).pvalue
    assert found["nll"] == pytest.approx(measure(a[2:])["nll"] - measure(b[:10])["nll"])
    low, high = found["interval"]
    assert low <= found["accuracy"] <= high


def test_difference_needs_the_same_question_under_one_seed() -> None:
    row = saved(0, [0.9, 0.1], 0)
    for other in ({"seed": 1}, {"question_hash": "x"}, {"answer": 1}, {"id": "x"}):
        assert difference([row], [replace(row, **other)]) is None
    assert difference([saved(0, [0.9, 0.1], None)], [saved(0, [0.9, 0.1], None)]) is None


def test_the_test_counts_a_fact_once_by_its_first_question_under_the_lowest_seed() -> None:
    def side(right: list[bool]) -> list[SavedAnswer]:
        return [
            saved(i % 2, [0.9, 0.1] if is_right else [0.1, 0.9], 0, seed=i // 2, cluster="one fact")
            for i, is_right in enumerate(right)
        ]

    found = difference(side([True, True, True, True]), side([True, False, False, False]))
    assert found is not None
    assert (found["only_a"], found["only_b"], found["mcnemar_p"]) == (0, 0, 1)
    assert found["accuracy"] == 0.75


def test_equal_answers_differ_by_exactly_nothing() -> None:
    found = difference(ROWS, ROWS)
    assert found is not None
    assert (found["accuracy"], found["interval"], found["matched_nll"]) == (0, [0, 0], 0)
    assert (found["mcnemar_p"], found["changed"]) == (1, 0)


def test_holm() -> None:
    assert holm([0.03, 0.01, 0.04]) == [0.06, 0.03, 0.06]
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert holm([]) == []
