"""The supervised baselines learn the right weights, and never from the question's own label."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("scipy")
pytest.importorskip("sklearn")

import numpy as np
from scipy.optimize import OptimizeResult, minimize
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold

from minise.errors import InputError
from minise.evaluation.metrics import summarise
from minise.methods.build import make_variants
from minise.methods.calibration import Dirichlet, NotConverged, VectorScaling
from minise.methods.sample import Sample
from minise.question import Question

W, B = np.array([0.5, 1.2, 0.8]), np.array([1.0, -0.7, 0.0])


def sample(logits: Sequence[float], answer: int, id: str, seed: int = 0) -> Sample:
    p = softmax(logits).tolist()
    best = p.index(max(p))
    return Sample(id, seed, "hash", answer, best, p, p, 17, 0.5, list(logits))


def draw_cell(n: int, shift: float = 0.0) -> list[Sample]:
    """Samples with logits log p + `shift`, whose answers are drawn from softmax(W * log p + B)."""
    draw = np.random.default_rng(0)
    log_p = log_softmax(draw.normal(0, 2, size=(n, len(W))), axis=1)
    true = softmax(W * log_p + B, axis=1)
    answers = [int(draw.choice(len(W), p=p)) for p in true]
    return [
        sample(z.tolist(), answer, f"q{i:05}")
        for i, (z, answer) in enumerate(zip(log_p + shift, answers, strict=True))
    ]


def vector_scaling(cell: list[Sample], folds: int = 5) -> list[Sample]:
    return VectorScaling(folds).fit({"standard": cell})


def dirichlet(cell: list[Sample], folds: int = 5) -> list[Sample]:
    return Dirichlet(folds).fit({"standard": cell})


METHODS = pytest.mark.parametrize("method", [vector_scaling, dirichlet])


def probabilities(cell: list[Sample]) -> np.ndarray:
    return np.array([one.probabilities for one in cell])


def relabel(cell: list[Sample], number: int) -> list[Sample]:
    """The cell with another right answer for one sample."""
    answer = (cell[number].answer + 1) % len(W)
    return [replace(x, answer=answer) if i == number else x for i, x in enumerate(cell)]


@METHODS
def test_questions_about_one_fact_share_a_fold(method: Callable) -> None:
    """A label has no part in the probabilities of other questions about its fact."""
    cell = [replace(one, cluster=f"fact {i // 5}") for i, one in enumerate(draw_cell(60))]
    before, after = (probabilities(method(one, folds=4)) for one in (cell, relabel(cell, 31)))
    same = (before == after).all(axis=1)
    assert same[30:35].all()
    assert same.sum() == 15


@METHODS
def test_a_label_changes_the_fit_of_every_fold_but_its_own(method: Callable) -> None:
    cell, folds = draw_cell(60), 4
    before = probabilities(method(cell, folds=folds))
    for number in (0, 31, 59):
        after = probabilities(method(relabel(cell, number), folds=folds))
        same = (before == after).all(axis=1)
        assert same[number]
        assert same.sum() == 60 / folds
        assert (abs(before - after).max(axis=1)[~same] > 1e-4).all()


@METHODS
def test_a_label_under_one_seed_does_not_change_its_question_under_any_seed(
    method: Callable,
) -> None:
    cell = [replace(one, seed=seed) for seed in range(3) for one in draw_cell(20)]
    before, after = method(cell), method(relabel(cell, 7))
    for number in (7, 27, 47):
        assert before[number].id == cell[7].id
        assert before[number].probabilities == after[number].probabilities
    assert (probabilities(before) == probabilities(after)).all(axis=1).sum() == 3 * 4


@METHODS
def test_the_true_calibration_is_recovered_and_improves_held_out_answers(method: Callable) -> None:
    cell = draw_cell(4000)
    true = softmax(W * np.array([one.logits for one in cell]) + B, axis=1)
    fitted = method(cell)
    assert abs(probabilities(cell) - true).mean() > 0.1
    assert abs(probabilities(fitted) - true).mean() < 0.015
    before, after = summarise(cell), summarise(fitted)
    assert after["nll"] < before["nll"] - 0.1
    assert after["accuracy"] > before["accuracy"] + 0.03
    assert after["ece_width"] < before["ece_width"] / 3


@pytest.mark.parametrize("shift", [0, 25])
def test_vector_scaling_minimises_its_stated_loss(shift: float) -> None:
    cell = draw_cell(40, shift)
    logits, answers = np.array([x.logits for x in cell]), np.array([x.answer for x in cell])
    fitted = probabilities(vector_scaling(cell, folds=2))
    for rest, held_out in KFold(2, shuffle=True, random_state=0).split(cell):

        def loss(x: np.ndarray, rest: np.ndarray = rest) -> float:
            w, b = x[:3], x[3:]
            log_p = log_softmax(w * logits[rest] + b, axis=1)
            nll = -log_p[np.arange(len(rest)), answers[rest]].mean()
            return nll + 1e-3 * (((w - 1) ** 2).sum() + (b**2).sum())

        # With another optimiser, which uses no gradient.
        best = minimize(loss, np.zeros(6), method="Powell", options={"xtol": 1e-9, "ftol": 1e-14})
        best = minimize(loss, best.x, method="Powell", options={"xtol": 1e-9, "ftol": 1e-14}).x
        expected = softmax(best[:3] * logits[held_out] + best[3:], axis=1)
        assert fitted[held_out] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("choices", [2, 3])
def test_dirichlet_equals_scikit_learns_regression_on_the_other_folds(choices: int) -> None:
    cell = [sample(x.logits[:choices], x.answer % choices, x.id) for x in draw_cell(90)]
    features = np.log(probabilities(cell))
    answers = np.array([one.answer for one in cell])
    fitted = probabilities(dirichlet(cell, folds=3))
    for rest, held_out in KFold(3, shuffle=True, random_state=0).split(cell):
        model = LogisticRegression(C=1.0, solver="newton-cg", tol=1e-10, max_iter=1000)
        model.fit(features[rest], answers[rest])
        assert fitted[held_out] == pytest.approx(model.predict_proba(features[held_out]), abs=1e-5)


def test_vector_scaling_leaves_calibrated_logits_as_they_are() -> None:
    # In every fold each question is right as often as its probabilities say: nothing to improve.
    cell = [
        sample(np.roll([math.log(0.5) + 20, math.log(0.25) + 20, math.log(0.25) + 20], turn), 0, "")
        for turn in range(3)
    ]
    cell = [
        replace(one, id=f"q{turn}-{i}", seed=seed, answer=(answer + turn) % 3)
        for i in range(4)
        for turn, one in enumerate(cell)
        for seed, answer in enumerate([0, 0, 1, 2])
    ]
    assert probabilities(vector_scaling(cell)) == pytest.approx(probabilities(cell), abs=1e-12)


def test_a_constant_on_a_questions_logits_matters_only_to_vector_scaling() -> None:
    cell = draw_cell(200)
    moved = [
        replace(one, logits=[z + 3 * (i % 5) for z in one.logits]) for i, one in enumerate(cell)
    ]
    assert probabilities(dirichlet(moved)) == pytest.approx(
        probabilities(dirichlet(cell)), abs=1e-6
    )
    changed = abs(probabilities(vector_scaling(moved)) - probabilities(vector_scaling(cell)))
    assert changed.max() > 0.01


@pytest.mark.parametrize("kind", [VectorScaling, Dirichlet])
def test_another_methods_probabilities_are_fitted_as_logits_are(kind: type) -> None:
    """log p of another method takes the place of standard inference's logits. What that method's
    samples have as logits is not read."""
    cell = draw_cell(60)
    logs = [replace(one, logits=np.log(one.probabilities).tolist()) for one in cell]
    expected = kind().fit({"standard": logs})
    for logits in (None, [9.0, 0.0, 0.0]):
        other = [replace(one, logits=logits) for one in cell]
        assert kind(of="self-ensemble").fit({"self-ensemble": other}) == expected
    assert kind(of="self-ensemble").needs == ("self-ensemble",)
    assert kind().needs == ("standard",)


@pytest.mark.parametrize("kind", [VectorScaling, Dirichlet])
def test_a_choice_without_probability_can_be_calibrated(kind: type) -> None:
    cell = [replace(one, probabilities=[0.0, 0.25, 0.75]) for one in draw_cell(60)]
    for one in kind(of="x").fit({"x": cell}):
        assert np.isfinite(np.log(one.probabilities)).all()


def test_the_method_to_calibrate_is_run_first() -> None:
    names = ["vector-scaling(of=self-ensemble)", "vector-scaling"]
    variants = make_variants(names, {"trials": 7}, "tree")
    assert [variant.name for variant in variants] == ["self-ensemble", "standard", *names]
    assert variants[0].settings["trials"] == 7
    with pytest.raises(InputError, match='method "nonsense" is unknown'):
        make_variants(["dirichlet(of=nonsense)"], {}, "tree")
    with pytest.raises(InputError, match="give text"):
        make_variants(["dirichlet(of=3)"], {}, "tree")


@METHODS
def test_a_fit_returns_new_samples_in_the_same_order(method: Callable) -> None:
    cell = [replace(one, groups=[{}], notes={"x": 1}) for one in draw_cell(30)][::-1]
    fitted = method(cell)
    assert [one.key for one in fitted] == [one.key for one in cell]
    for one, original in zip(fitted, cell, strict=True):
        assert sum(one.probabilities) == pytest.approx(1)
        assert {type(x) for x in one.probabilities} == {float}
        assert one.prediction == one.probabilities.index(max(one.probabilities))
        assert one == replace(
            original,
            probabilities=one.probabilities,
            scores=one.probabilities,
            prediction=one.prediction,
            seconds=None,
            logits=None,
            groups=None,
            notes=None,
        )


@METHODS
def test_the_folds_do_not_depend_on_the_order_of_samples(method: Callable) -> None:
    cell = draw_cell(60)
    assert method(cell) == method(cell)
    backwards = probabilities(method(cell[::-1])[::-1])
    assert backwards == pytest.approx(probabilities(method(cell)), abs=1e-9)
    assert abs(probabilities(method(cell, folds=4)) - probabilities(method(cell))).max() > 1e-2


@METHODS
@pytest.mark.parametrize(
    ("damage", "folds", "complaint"),
    [
        (lambda cell: cell, 1, "20 questions for 1 folds; use at least 2"),
        (lambda cell: cell[:4], 5, "4 questions for 5 folds"),
        (
            lambda cell: [replace(x, id=f"q{i % 4}", seed=i) for i, x in enumerate(cell)],
            5,
            "4 questions for 5 folds",
        ),
        (lambda cell: [], 5, "0 questions for 5 folds"),
        (
            lambda cell: [*cell, replace(cell[0], id="x", logits=None)],
            5,
            "question x, seed 0: no finite label logits",
        ),
        (
            lambda cell: [*cell, replace(cell[0], id="x", logits=[0, math.inf, 0])],
            5,
            "question x, seed 0: no finite label logits",
        ),
        (
            lambda cell: [*cell, sample([0.0] * 10, 0, "x")],
            5,
            "needs the same number of choices in every question; found 3 to 10; "
            "use --only-choices K or --cut-to K",
        ),
    ],
)
def test_unusable_samples_are_refused_in_one_line(
    method: Callable, damage: Callable, folds: int, complaint: str
) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)) as caught:
        method(damage(draw_cell(20)), folds=folds)
    assert "\n" not in str(caught.value)


def test_dirichlet_needs_every_choice_as_an_answer_outside_of_each_fold() -> None:
    cell = [replace(one, answer=i % 2) for i, one in enumerate(draw_cell(20))]
    cell[7] = replace(cell[7], answer=2)  # missing only where its own fold is left out
    with pytest.raises(InputError, match="choice 3 of 3 is never the answer outside of a fold"):
        dirichlet(cell)
    assert len(vector_scaling(cell)) == 20


@pytest.mark.parametrize("method", [VectorScaling, Dirichlet])
class TestTheCheckBeforeTheRun:
    """All of this follows from the questions, before any model is run."""

    def test_questions_that_can_be_fitted_pass(self, method: type) -> None:
        assert method().check(questions([i % 3 for i in range(20)])) is None
        assert method(folds=2).check(questions([0, 1, 2] * 4)) is None
        assert method(folds=6).check(questions([0, 1, 2] * 2)) is None

    def test_unequal_numbers_of_choices_are_refused(self, method: type) -> None:
        mixed = [*questions([0, 1, 2] * 5), (0, Question("?", ["a", "b"], "short", 0))]
        complaint = (
            f"{method.name} needs the same number of choices in every question; found 2 to 3; "
            "use --only-choices K or --cut-to K"
        )
        with pytest.raises(InputError, match=re.escape(complaint)):
            method().check(mixed)

    def test_questions_without_answers_are_refused(self, method: type) -> None:
        complaint = f"{method.name} is fitted on answers, and these questions have none"
        with pytest.raises(InputError, match=complaint):
            method().check([(0, Question("Which?", ["a", "b"]))])

    def test_fewer_questions_than_folds_are_refused(self, method: type) -> None:
        repeated = [(seed, question) for seed in (0, 1) for _, question in questions([0, 1, 2, 0])]
        for few in (repeated, repeated[:4], []):
            with pytest.raises(InputError, match="questions for 5 folds"):
                method().check(few)
        with pytest.raises(InputError, match="4 questions for 1 folds"):
            method(folds=1).check(repeated)


def test_an_answer_that_dirichlet_cannot_learn_is_refused() -> None:
    answers = [i % 2 for i in range(19)]
    for unfit in (questions([*answers, 2]), questions([*answers, 1])):
        with pytest.raises(InputError, match="choice 3 of 3 is never the answer outside of a fold"):
            Dirichlet().check(unfit)
        assert VectorScaling().check(unfit) is None


def questions(answers: list[int]) -> list[tuple[int, Question]]:
    """A question of three choices for each answer, under seed 0."""
    return [
        (0, Question("Which?", ["a", "b", "c"], f"q{i:05}", answer))
        for i, answer in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("success", "jac", "fits"),
    [
        (True, [0.0, -9e-6, 0.0], True),
        (True, [0.0, -2e-5, 0.0], False),  # it stopped, but not at a minimum
        (True, [2e-5, 0.0, 0.0], False),
        (True, [math.nan, 0.0, 0.0], False),
        (False, [0.0, 0.0, 0.0], False),
    ],
)
def test_vector_scaling_that_does_not_converge_is_an_error(
    monkeypatch: pytest.MonkeyPatch, success: bool, jac: list[float], fits: bool
) -> None:
    def stopped(*_: Any, **__: Any) -> OptimizeResult:
        x = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
        return OptimizeResult(x=x, jac=np.array(jac), success=success, message="stopped")

    cell = draw_cell(60)
    monkeypatch.setattr("scipy.optimize.minimize", stopped)
    if fits:
        assert probabilities(vector_scaling(cell)) == pytest.approx(probabilities(cell))
    else:
        with pytest.raises(NotConverged, match=r"converge: gradient (nan|\d\.\de.\d\d) \(stopped"):
            vector_scaling(cell)


def test_vector_scaling_refuses_logits_that_it_cannot_fit() -> None:
    # The rounding of logits this large exceeds the gradient that is asked for.
    with pytest.raises(NotConverged, match="vector scaling did not converge: gradient"):
        vector_scaling(draw_cell(60, shift=1e7))


def test_dirichlet_that_does_not_converge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # Which logits its solver fails on depends on the version. One step is too few for all of them.
    monkeypatch.setattr(
        "sklearn.linear_model.LogisticRegression",
        lambda **settings: LogisticRegression(**{**settings, "max_iter": 1}),
    )
    # The error must not depend on the filters of the caller.
    for action in ("ignore", "default"):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter(action)
            with pytest.raises(NotConverged, match="dirichlet calibration did not converge"):
                dirichlet(draw_cell(60))


def test_the_settings_of_the_fits_never_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results depend on them."""
    settings: list[dict[str, Any]] = []

    def watch(name: str, fit: Callable) -> None:
        monkeypatch.setattr(name, lambda *a, **b: settings.append(b) or fit(*a, **b))

    watch("sklearn.linear_model.LogisticRegression", LogisticRegression)
    dirichlet(draw_cell(60), folds=2)
    assert settings == [{"C": 1.0, "tol": 1e-7, "max_iter": 10_000}] * 2
    settings.clear()
    watch("scipy.optimize.minimize", minimize)
    vector_scaling(draw_cell(60), folds=2)
    options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-7}
    assert settings == [{"jac": True, "method": "L-BFGS-B", "options": options}] * 2


def test_the_regularisation_is_stated_in_words() -> None:
    assert "|w - 1|^2 + |b|^2" in VectorScaling.regularisation
    assert "0.5 * |W|^2" in Dirichlet.regularisation
    assert (VectorScaling.name, Dirichlet.name) == ("vector-scaling", "dirichlet")
    assert VectorScaling.needs == Dirichlet.needs == ("standard",)
