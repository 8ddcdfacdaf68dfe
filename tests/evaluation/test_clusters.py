"""Questions about one fact are drawn together, and a temperature is fitted on other facts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy")

from minise.data.tasks import Selection, load_tasks
from minise.evaluation.metrics import difference, summarise
from minise.methods.sample import Sample
from tests.evaluation.test_metrics import INTERVALS, draw_cell, paired_to, sample


def about(cell: list[Sample], size: int) -> list[Sample]:
    """The samples as questions of which `size` at a time are about one fact."""
    return [replace(one, cluster=f"fact {i // size:03}") for i, one in enumerate(cell)]


def test_questions_about_one_fact_are_resampled_together_like_the_seeds_of_a_question() -> None:
    seeds = [
        replace(one, id=f"q{i // 3:03}", seed=i % 3) for i, one in enumerate(draw_cell(300, seed=4))
    ]
    questions = [
        replace(one, id=f"{one.id}, {one.seed}", seed=0, cluster=f"fact {one.id}") for one in seeds
    ]
    by_seed, by_fact = summarise(seeds), summarise(questions)
    assert (by_fact["questions"], by_fact["clusters"]) == (300, 100)
    assert (by_seed["questions"], by_seed["clusters"]) == (100, 100)
    for name in INTERVALS:
        expected = pytest.approx(by_seed[f"{name}_interval"], abs=1e-12)
        assert by_fact[f"{name}_interval"] == expected


def test_copies_of_a_question_narrow_no_interval_if_they_are_one_fact() -> None:
    once = draw_cell(100)
    copies = [replace(one, id=f"{one.id} {i}", cluster=one.id) for i in range(5) for one in once]
    alone = summarise(once)["accuracy_interval"]
    assert summarise(copies)["accuracy_interval"] == pytest.approx(alone, abs=1e-12)
    naive = summarise([replace(one, cluster=None) for one in copies])["accuracy_interval"]
    assert naive[1] - naive[0] < 0.6 * (alone[1] - alone[0])


def test_a_fact_counts_once_in_mcnemars_test() -> None:
    a = about(draw_cell(120), 4)
    b = paired_to(a, draw_cell(120, seed=1))
    comparison = difference(a, b)
    assert (comparison["questions"], comparison["clusters"]) == (120, 30)
    first = difference(a[::4], b[::4])
    assert [comparison[key] for key in ("only_a", "only_b", "mcnemar_p")] == [
        first[key] for key in ("only_a", "only_b", "mcnemar_p")
    ]


def test_the_miniatures_questions_know_their_fact() -> None:
    (task,) = load_tasks(["miniature"], Selection(questions=1500))
    texts = {question.cluster: question.text for question in task.questions}
    assert all(texts[question.cluster] == question.text for question in task.questions)
    assert 450 < len(texts) == len(set(texts.values())) <= 556


def test_a_temperature_makes_sharp_and_flat_answers_equal() -> None:
    """The powers of one method's probabilities are one method at the matched temperature."""
    cell = draw_cell(200)
    expected = summarise(cell)["nll_matched"]
    for power in (0.25, 3.0):
        other = []
        for one in cell:
            p = [x**power for x in one.probabilities]
            other.append(replace(one, probabilities=[x / sum(p) for x in p]))
        assert abs(summarise(other)["nll"] - summarise(cell)["nll"]) > 0.05
        assert summarise(other)["nll_matched"] == pytest.approx(expected, abs=1e-4)
        assert difference(cell, other)["nll_matched"] == pytest.approx(0, abs=1e-4)


def test_the_matched_loss_worked_by_hand() -> None:
    """Every fact has three right answers and two wrong ones, all with p = 0.9. So in every fold the
    best temperature makes 0.6 of it, and the loss is the entropy of 0.6. (The prior of the
    temperature counts less the more facts there are.)"""
    facts = [f"q{fact}" for fact in range(200)]
    cell = [sample([0.9, 0.1], int(i > 2), f"{fact} {i}") for fact in facts for i in range(5)]
    numbers = summarise([replace(one, cluster=one.id.split()[0]) for one in cell])
    assert numbers["nll"] == pytest.approx(-0.6 * math.log(0.9) - 0.4 * math.log(0.1))
    entropy = -0.6 * math.log(0.6) - 0.4 * math.log(0.4)
    assert numbers["nll_matched"] == pytest.approx(entropy, abs=1e-4)
    assert numbers["nll_matched_interval"] == pytest.approx([entropy, entropy], abs=1e-4)


def test_a_method_that_is_nearly_always_right_keeps_a_usable_temperature() -> None:
    """One of 60 answers is wrong. The fold that holds it is fitted on right answers alone: without
    a prior it would have the sharpest temperature there is, and a loss above 100."""
    cell = [sample([0.9, 0.1], int(i == 0), f"q{i}") for i in range(60)]
    numbers = summarise(cell)
    assert numbers["nll_matched"] < 2 * numbers["nll"]


def test_shares_of_0_and_100_percent_have_an_interval() -> None:
    """Wilson's, by the number of clusters: 4 / (4 + z^2) and 1 for 4 of 4."""
    cell = [sample([0.9, 0.1], 0, f"q{fact} {i}") for fact in range(4) for i in range(5)]
    numbers = summarise([replace(one, cluster=one.id.split()[0]) for one in cell])
    z = 1.959964
    assert numbers["accuracy_interval"] == pytest.approx([4 / (4 + z**2), 1], abs=1e-6)
    assert numbers["under_confidence_interval"] == pytest.approx([0, z**2 / (4 + z**2)], abs=1e-6)
    assert numbers["over_confidence"] is numbers["over_confidence_interval"] is None


def test_the_temperature_is_fitted_on_other_facts() -> None:
    """Each of two facts has the temperature of the other: right in 3 of 4 cases, and in 2 of 4. It
    minimises their mean loss + (log T)^2 / 8, here on a fine grid."""
    right = {"a": 3, "b": 2}
    cell = [sample([0.8, 0.2], int(i >= right[f]), f"{f}{i}") for f in "ab" for i in range(4)]

    def loss(fact: str, log_t: float) -> float:
        p = 1 / (1 + 0.25 ** math.exp(-log_t))  # the odds 4 : 1 to the power of 1 / T
        return -(right[fact] * math.log(p) + (4 - right[fact]) * math.log(1 - p)) / 4

    grid = [i / 1000 for i in range(-2000, 3000)]
    expected = 0.0
    for fact, other in ("ab", "ba"):
        log_t = min(grid, key=lambda x: loss(other, x) + x**2 / 8)
        expected += loss(fact, log_t) / 2
    matched = summarise([replace(one, cluster=one.id[0]) for one in cell])["nll_matched"]
    assert matched == pytest.approx(expected, abs=1e-3)
    assert summarise(cell[:1])["nll_matched"] is None


def test_the_temperature_is_fitted_in_five_folds() -> None:
    """The folds are a seeded shuffle of the facts; each has the temperature of the other four."""
    cell = draw_cell(40)
    fold = np.random.Generator(np.random.PCG64(0)).permutation(40) % 5
    in_order = sorted(cell, key=lambda one: one.id)
    log_p = np.log([one.probabilities for one in in_order])
    answers = np.array([one.answer for one in in_order])

    def losses(log_t: float) -> np.ndarray:
        scaled = log_p * math.exp(-log_t)
        return np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(40), answers]

    grid = np.arange(-2, 2, 0.002)
    by_temperature = np.array([losses(log_t) for log_t in grid])
    matched = []
    for number in range(5):
        others = fold != number
        mean = by_temperature[:, others].mean(axis=1) + grid**2 / (8 * others.sum())
        matched += by_temperature[mean.argmin(), ~others].tolist()
    assert summarise(cell)["nll_matched"] == pytest.approx(np.mean(matched), abs=1e-4)


def test_questions_of_different_k_share_a_temperature() -> None:
    """Every choice is right as often as every other, so the best temperature makes them equal."""
    cell = [
        sample(p, answer, f"{i} {len(p)} {answer}")
        for i in range(20)
        for p in ([0.7, 0.3], [0.5, 0.3, 0.2])
        for answer in range(len(p))
    ]
    numbers = summarise([replace(one, cluster=one.id.split()[0]) for one in cell])
    expected = (2 * math.log(2) + 3 * math.log(3)) / 5
    assert numbers["nll_matched"] == pytest.approx(expected, abs=0.02)
