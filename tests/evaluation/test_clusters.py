"""Questions about one fact are drawn together, and a temperature is fitted on other facts."""

from __future__ import annotations

import math
from dataclasses import replace

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
        assert summarise(other)["nll_matched"] == pytest.approx(expected, abs=1e-6)
        assert difference(cell, other)["nll_matched"] == pytest.approx(0, abs=1e-6)


def test_the_matched_loss_worked_by_hand() -> None:
    """Every fact has three right answers and two wrong ones, all with p = 0.9. So in every fold the
    best temperature makes 0.6 of it, and the loss is the entropy of 0.6."""
    cell = [sample([0.9, 0.1], int(i > 2), f"q{fact} {i}") for fact in range(10) for i in range(5)]
    numbers = summarise([replace(one, cluster=one.id.split()[0]) for one in cell])
    assert numbers["nll"] == pytest.approx(-0.6 * math.log(0.9) - 0.4 * math.log(0.1))
    entropy = -0.6 * math.log(0.6) - 0.4 * math.log(0.4)
    assert numbers["nll_matched"] == pytest.approx(entropy, abs=1e-6)
    assert numbers["nll_matched_interval"] == pytest.approx([entropy, entropy], abs=1e-6)


def test_the_temperature_is_fitted_on_other_facts() -> None:
    """Each of two facts has the temperature of the other: right in 3 of 4 cases, and in 2 of 4."""
    cell = [sample([0.8, 0.2], int(i > 2), f"a{i}") for i in range(4)]
    cell += [sample([0.8, 0.2], int(i > 1), f"b{i}") for i in range(4)]
    loss = summarise([replace(one, cluster=one.id[0]) for one in cell])["nll_matched"]
    of_a, of_b = math.log(2), -(math.log(0.75) + math.log(0.25)) / 2
    assert loss == pytest.approx((of_a + of_b) / 2, abs=0.01)
    assert summarise(cell[:1])["nll_matched"] is None


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
    assert numbers["nll_matched"] == pytest.approx(expected, abs=0.01)
