"""The numbers agree with their definitions and with scikit-learn, the intervals with scipy."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import stdev
from typing import Any

import pytest

pytest.importorskip("scipy")
pytest.importorskip("sklearn")

import numpy as np
from scipy import stats
from sklearn import metrics
from sklearn.calibration import calibration_curve

from minise import InputError
from minise.evaluation.metrics import difference, summarise
from minise.methods.sample import Sample

K = 5
INTERVALS = [
    "accuracy",
    "nll",
    "brier",
    "ece_width",
    "auroc",
    "under_confidence",
    "over_confidence",
]


def sample(
    probabilities: list[float], answer: int, id: str = "q", seed: int = 0, tokens: int = 10
) -> Sample:
    best = probabilities.index(max(probabilities))
    return Sample(id, seed, f"hash of {id}", answer, best, probabilities, probabilities, tokens, 0)


def draw_cell(questions: int, sharpness: float = 1.5, seed: int = 0) -> list[Sample]:
    """Seeded samples whose confidence is too high if `sharpness` is above 1."""
    draw = np.random.default_rng(seed)
    cell = []
    for i in range(questions):
        true = draw.dirichlet(np.full(K, 0.7))
        sharpened = true**sharpness
        # Rounded, so that some confidences are equal.
        coarse = np.round(sharpened / sharpened.sum(), 2) + 0.01
        p = coarse / coarse.sum()
        cell.append(sample(p.tolist(), int(draw.choice(K, p=true)), f"q{i}"))
    return cell


def paired_to(cell: list[Sample], other: list[Sample]) -> list[Sample]:
    """The probabilities of `other` as answers to the questions of `cell`."""
    return [replace(b, answer=a.answer) for a, b in zip(cell, other, strict=True)]


def columns(cell: list[Sample]) -> tuple[np.ndarray, np.ndarray]:
    """Whether each prediction is right, and its confidence."""
    right = np.array([one.prediction == one.answer for one in cell])
    return right, np.array([one.probabilities[one.prediction] for one in cell])


def in_bins(f: np.ndarray, edges: np.ndarray) -> list[np.ndarray]:
    """The samples of each non-empty bin (low, high]; the first bin includes its low edge."""
    masks = [((f > low) | (low == edges[0])) & (f <= high) for low, high in pairwise(edges)]
    return [mask for mask in masks if mask.any()]


def ece(cell: list[Sample], edges: np.ndarray) -> float:
    right, f = columns(cell)
    gaps = [
        inside.sum() * abs(right[inside].mean() - f[inside].mean()) for inside in in_bins(f, edges)
    ]
    return sum(gaps) / len(cell)


def test_the_numbers_are_those_of_scikit_learn() -> None:
    cell = draw_cell(700)
    right, f = columns(cell)
    answers, p = [one.answer for one in cell], [one.probabilities for one in cell]
    assert len(set(f)) < 600
    numbers = summarise(cell)
    assert numbers["accuracy"] == metrics.accuracy_score(answers, [one.prediction for one in cell])
    assert numbers["nll"] == pytest.approx(metrics.log_loss(answers, p, labels=range(K)))
    brier = metrics.brier_score_loss(answers, p, labels=list(range(K)), scale_by_half=False)
    assert numbers["brier"] == pytest.approx(brier)
    assert numbers["auroc"] == pytest.approx(metrics.roc_auc_score(right, f))
    assert numbers["confidence"] == pytest.approx(f.mean())


def test_the_calibration_error_has_scikit_learns_bins() -> None:
    cell = draw_cell(700)
    right, f = columns(cell)
    accuracies, confidences = calibration_curve(right, f, n_bins=15, strategy="uniform")
    filled = np.array([inside.sum() for inside in in_bins(f, np.linspace(0, 1, 16))])
    expected = (filled * abs(accuracies - confidences)).sum() / len(cell)
    assert summarise(cell)["ece_width"] == pytest.approx(expected)


def test_a_cell_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = [
        sample([0.8, 0.2], 0, "a", 0, tokens=10),
        sample([0.4, 0.3, 0.3], 0, "b", 0, tokens=20),
        sample([0.1, 0.9], 0, "a", 1, tokens=30),
        sample([0.5, 0.5], 1, "b", 1, tokens=40),
    ]
    monkeypatch.setattr("minise.evaluation.metrics.BINS", 2)
    numbers = summarise(cell)
    assert (numbers["n"], numbers["questions"], numbers["tokens"]) == (4, 2, 25)
    assert (numbers["bins"], numbers["tau"], numbers["resamples"]) == (2, 0.5, 1000)
    assert numbers["accuracy"] == 0.5
    assert numbers["nll"] == pytest.approx(-math.log(0.8 * 0.4 * 0.1 * 0.5) / 4)
    assert numbers["brier"] == pytest.approx((0.08 + 0.54 + 1.62 + 0.5) / 4)
    assert numbers["confidence"] == pytest.approx(0.65)
    # (0, 0.5]: 0.4 right, 0.5 wrong; (0.5, 1]: 0.8 right, 0.9 wrong
    assert numbers["ece_width"] == pytest.approx((abs(1 - 0.9) + abs(1 - 1.7)) / 4)
    assert numbers["auroc"] == 0.25
    assert numbers["under_confidence"] == 0.5
    assert numbers["over_confidence"] == 0.5
    assert numbers["seeds"] == {"0": 1.0, "1": 0.0}
    assert numbers["accuracy_seeds_mean"] == 0.5
    assert numbers["accuracy_seeds_std"] == pytest.approx(stdev([1, 0]))


def test_a_confidence_of_exactly_tau_is_neither_under_nor_over_confident() -> None:
    cell = [sample([0.5, 0.5], 0, "a"), sample([0.5, 0.5], 1, "b")]
    numbers = summarise(cell)
    assert (numbers["under_confidence"], numbers["over_confidence"]) == (0, 0)
    cell = [sample([0.49, 0.3, 0.21], 0, "a"), sample([0.51, 0.49], 1, "b")]
    numbers = summarise(cell)
    assert (numbers["under_confidence"], numbers["over_confidence"]) == (1, 1)


def test_confidence_of_the_scores_has_separate_ratios() -> None:
    cell = [
        replace(sample([0.6, 0.4], 0, "a"), scores=[0.4, 0.3]),
        replace(sample([0.4, 0.3, 0.3], 1, "b"), scores=[0.7, 0.5, 0.5]),
    ]
    numbers = summarise(cell)
    assert (numbers["under_confidence"], numbers["over_confidence"]) == (0, 0)
    assert (numbers["under_confidence_scores"], numbers["over_confidence_scores"]) == (1, 1)


def test_an_answer_of_probability_zero_costs_a_finite_loss() -> None:
    assert summarise([sample([1.0, 0.0], 1)])["nll"] == pytest.approx(12 * math.log(10))


def test_undefined_numbers_are_none_and_all_numbers_are_valid_json() -> None:
    numbers = summarise([sample([0.7, 0.3], 0)])
    for name in ("auroc", "auroc_interval", "over_confidence", "over_confidence_interval"):
        assert numbers[name] is None
    assert numbers["accuracy_seeds_std"] is None
    assert numbers["confidence_curve"]["incorrect"] is None
    assert numbers["under_confidence"] == 0
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert summarise([sample([0.7, 0.3], 1)])["under_confidence"] is None


def test_the_confidence_curve_is_the_share_above_tau() -> None:
    cell = draw_cell(300)
    curve = summarise(cell)["confidence_curve"]
    right, f = columns(cell)
    assert curve["tau"] == [i / 50 for i in range(51)]
    assert curve["correct"] == [float((f[right] > i / 50).mean()) for i in range(51)]
    assert curve["incorrect"] == [float((f[~right] > i / 50).mean()) for i in range(51)]


def test_the_reliability_bins_are_those_of_the_ece() -> None:
    cell = draw_cell(300)
    numbers = summarise([*cell, *(replace(one, seed=1) for one in cell[:100])])
    bins = numbers["reliability"]
    assert bins["edges"] == pytest.approx([i / 15 for i in range(16)])
    gaps = [
        n * abs(right - f)
        for n, right, f in zip(bins["count"], bins["accuracy"], bins["confidence"], strict=True)
        if n
    ]
    assert sum(gaps) / sum(bins["count"]) == pytest.approx(numbers["ece_width"])
    assert (sum(bins["count"]), sum(bins["questions"])) == (400, 300)  # of two seeds: once
    for low, f, high in zip(bins["edges"], bins["confidence"], bins["edges"][1:], strict=False):
        assert f is None or low <= f <= high
    assert bins["count"][0] == 0
    assert bins["accuracy"][0] is None


def test_chance_is_the_mean_over_questions_of_different_k() -> None:
    assert summarise([sample([0.7, 0.3], 0, "a")])["chance"] == 0.5
    cell = [sample([0.7, 0.3], 0, "a"), sample([0.4, 0.2, 0.2, 0.2], 0, "b")]
    assert summarise(cell)["chance"] == pytest.approx((1 / 2 + 1 / 4) / 2)


def test_a_number_lies_in_its_interval_and_the_interval_narrows_with_more_questions() -> None:
    few, many = summarise(draw_cell(200)), summarise(draw_cell(3200))
    for name in INTERVALS:
        (low, high), (inner_low, inner_high) = few[f"{name}_interval"], many[f"{name}_interval"]
        if not name.startswith("ece"):  # biased upwards, see `summarise`
            assert low < few[name] < high
            assert (high - low) / (inner_high - inner_low) == pytest.approx(4, rel=0.35)


@pytest.mark.parametrize("name", INTERVALS)
def test_the_intervals_are_scipys_percentile_bootstrap(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minise.evaluation.metrics.RESAMPLES", 4000)
    cell = draw_cell(300)
    right, f = columns(cell)
    p = np.array([one.probabilities for one in cell])
    truth = np.eye(K)[[one.answer for one in cell]]
    edges = np.linspace(0, 1, 16)
    definitions: dict[str, Callable[[Any], float]] = {
        "accuracy": lambda i: right[i].mean(),
        "nll": lambda i: -np.log((p * truth).sum(axis=1)[i]).mean(),
        "brier": lambda i: ((p - truth) ** 2).sum(axis=1)[i].mean(),
        "ece_width": lambda i: ece([cell[j] for j in i], edges),
        "auroc": lambda i: metrics.roc_auc_score(right[i], f[i]),
        "under_confidence": lambda i: (f[i][right[i]] < 0.5).mean(),
        "over_confidence": lambda i: (f[i][~right[i]] > 0.5).mean(),
    }
    low, high = summarise(cell)[f"{name}_interval"]
    expected = stats.bootstrap(
        [np.arange(len(cell))],
        definitions[name],
        n_resamples=1500,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert low == pytest.approx(expected.low, abs=0.1 * (high - low))
    assert high == pytest.approx(expected.high, abs=0.1 * (high - low))


def test_a_question_under_five_seeds_is_not_five_questions() -> None:
    once = draw_cell(150)
    copies = [replace(one, seed=seed) for seed in range(5) for one in once]
    one, five = summarise(once), summarise(copies)
    assert (five["n"], five["questions"]) == (750, 150)
    for name in INTERVALS:
        assert five[f"{name}_interval"] == pytest.approx(one[f"{name}_interval"], abs=1e-12)
    other = paired_to(once, draw_cell(150, seed=1))
    paired = difference(copies, [replace(one, seed=seed) for seed in range(5) for one in other])
    alone = difference(once, other)
    assert paired["interval"] == pytest.approx(alone["interval"], abs=1e-12)
    assert paired["mcnemar_p"] == alone["mcnemar_p"]
    assert paired["n"] == 5 * alone["n"]


def test_all_seeds_of_a_question_are_drawn_together() -> None:
    cell = [sample([0.9, 0.1], 0, "a", seed) for seed in range(4)] + [sample([0.9, 0.1], 1, "b", 4)]
    # Two questions: a resample has only a, only b, or each once.
    assert summarise(cell)["accuracy"] == 0.8
    assert summarise(cell)["accuracy_interval"] == [0, 1]


def test_the_numbers_do_not_depend_on_the_order_of_samples() -> None:
    cell = draw_cell(100)
    assert summarise(cell) == summarise(cell[::-1])
    assert difference(cell, cell[::-1])["interval"] == [0, 0]


def test_a_difference_is_computed_on_the_common_samples() -> None:
    a = draw_cell(400)
    b = paired_to(a, draw_cell(400, sharpness=0.5, seed=1))
    comparison = difference([*a, sample([0.9, 0.1], 0, "only in a")], b[:300])
    left, right = summarise(a[:300]), summarise(b[:300])
    assert comparison["n"] == comparison["questions"] == 300
    pairs = zip(a[:300], b[:300], strict=True)
    assert comparison["changed"] == sum(x.prediction != y.prediction for x, y in pairs) != 150
    for name in ("accuracy", "nll", "under_confidence", "over_confidence"):
        assert comparison[name] == pytest.approx(left[name] - right[name])
        low, high = comparison["interval" if name == "accuracy" else f"{name}_interval"]
        assert low < comparison[name] < high


def test_the_interval_of_a_difference_is_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minise.evaluation.metrics.RESAMPLES", 4000)
    a = draw_cell(400)
    b = [
        replace(one, prediction=(one.prediction + 1) % K) if i < 8 else one
        for i, one in enumerate(a)
    ]
    right_a, right_b = columns(a)[0], columns(b)[0]
    low, high = difference(a, b)["interval"]
    expected = stats.bootstrap(
        [right_a, right_b],
        lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis),
        paired=True,
        n_resamples=4000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.1 * (high - low))
    # An unpaired interval would be much wider.
    whole = summarise(a)["accuracy_interval"]
    assert high - low < (whole[1] - whole[0]) / 3


def test_mcnemar_counts_each_question_once_under_its_lowest_common_seed() -> None:
    right, wrong = [0.9, 0.1], [0.1, 0.9]
    a = [sample(right, 0, f"q{i}", seed) for i in range(9) for seed in (0, 1, 2)]
    b = [
        # b has no seed 0. Under seed 1 only b is wrong on q0 to q6. Seed 2 must not count.
        sample(wrong if (i < 7) == (seed == 1) else right, 0, f"q{i}", seed)
        for i in range(9)
        for seed in (1, 2)
    ]
    comparison = difference(a, b)
    assert (comparison["only_a"], comparison["only_b"]) == (7, 0)
    assert (comparison["n"], comparison["questions"]) == (18, 9)
    assert comparison["mcnemar_p"] == pytest.approx(2 * 0.5**7)
    assert difference(b, a)["only_b"] == 7
    assert difference(b, a)["mcnemar_p"] == comparison["mcnemar_p"]
    assert difference(a, a)["mcnemar_p"] == 1


def test_mcnemar_is_the_binomial_test_of_the_disagreements() -> None:
    a = draw_cell(400)
    b = paired_to(a, draw_cell(400, seed=1))
    right_a, right_b = columns(a)[0], columns(b)[0]
    only_a, only_b = int((right_a & ~right_b).sum()), int((right_b & ~right_a).sum())
    comparison = difference(a, b)
    assert (comparison["only_a"], comparison["only_b"]) == (only_a, only_b)
    assert only_a != only_b
    p = 2 * sum(math.comb(only_a + only_b, i) for i in range(min(only_a, only_b) + 1))
    assert comparison["mcnemar_p"] == pytest.approx(p / 2 ** (only_a + only_b))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"answer": 2}, '^question "q", seed 3: answer 2'),
        ({"answer": -1}, "answer -1"),
        ({"prediction": 2}, "prediction 2"),
        ({"probabilities": [0.5, 0.4]}, r"\[0.5, 0.4\] must sum to 1"),
        ({"probabilities": [1.5, -0.5]}, "sum to 1"),
        ({"probabilities": [float("nan"), 0.5]}, "finite number for each of 2 choices"),
    ],
)
def test_a_sample_that_contradicts_itself_is_refused(change: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        summarise([replace(sample([0.5, 0.5], 0, seed=3), **change)])


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda cell: summarise([]), "0 samples for 0 pairs"),
        (lambda cell: summarise(cell + cell), "2 samples for 1 pairs"),
        (lambda cell: difference(cell, [replace(cell[0], seed=1)]), "share no question"),
        (
            lambda cell: difference(cell, [replace(cell[0], question_hash="x")]),
            '^question "q", seed 0',
        ),
        (lambda cell: difference(cell, [replace(cell[0], answer=1)]), '^question "q", seed 0'),
    ],
)
def test_unusable_cells_are_refused_in_one_line(call: Callable, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        call([sample([0.5, 0.5], 0)])
    assert "\n" not in str(caught.value)


def test_a_missing_extra_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    a = [sample([0.9, 0.1], 0)]
    b = [sample([0.1, 0.9], 0)]
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(InputError, match=r"needs scipy.*pip install 'minise\[eval\]'"):
        difference(a, b)


def test_a_confidence_of_one_half_is_neither_under_nor_over_confident() -> None:
    """Under-confidence is f < 0.5 and over-confidence f > 0.5: exactly 0.5 is none of them."""
    cell = [sample([0.5, 0.5], answer, f"q{answer}") for answer in (0, 1)]
    numbers = summarise(cell)
    names = ("under_confidence", "over_confidence")
    assert [numbers[name + more] for name in names for more in ("", "_scores")] == [0, 0, 0, 0]


def test_a_resample_draws_as_many_questions_as_there_are() -> None:
    """Four of eight right: the number right in a resample is binomial, and its 2.5% and 97.5%
    quantiles are 1 and 7."""
    cell = [sample([0.9, 0.1], i % 2, f"q{i}") for i in range(8)]
    assert summarise(cell)["accuracy_interval"] == [1 / 8, 7 / 8]
