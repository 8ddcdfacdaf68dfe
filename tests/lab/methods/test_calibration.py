"""The supervised baselines learn the right weights, and never from the question's own label."""

import math
from collections.abc import Callable
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

from minise.errors import InputError, Unsuited
from minise.lab.methods.calibration import Dirichlet, VectorScaling
from minise.lab.methods.saved import SavedAnswer

W, B = np.array([0.5, 1.2, 0.8]), np.array([1.0, -0.7, 0.0])
Cell = list[SavedAnswer]


def saved(number: int, logits: list[float], answer: int = 0) -> SavedAnswer:
    """An answer of standard inference."""
    p = softmax(logits).tolist()
    return SavedAnswer(
        id=f"q{number:05}",
        seed=0,
        question_hash="h",
        answer=answer,
        prediction=p.index(max(p)),
        normalized=p,
        scores=p,
        logits=logits,
        tokens=10,
        seconds=0.5,
    )


def draw_cell(n: int, shift: float = 0.0) -> Cell:
    """Answers with logits log p + `shift`; the right ones are drawn from softmax(W * log p + B)."""
    draw = np.random.default_rng(0)
    log_p = log_softmax(draw.normal(0, 2, size=(n, len(W))), axis=1)
    true = softmax(W * log_p + B, axis=1)
    answers = [int(draw.choice(len(W), p=p)) for p in true]
    rows = zip(log_p + shift, answers, strict=True)
    return [saved(i, z.tolist(), answer=answer) for i, (z, answer) in enumerate(rows)]


def vector_scaling(cell: Cell, **settings: Any) -> Cell:
    return VectorScaling(**settings).fit({settings.get("of", "standard"): cell})


def dirichlet(cell: Cell, **settings: Any) -> Cell:
    return Dirichlet(**settings).fit({settings.get("of", "standard"): cell})


METHODS = pytest.mark.parametrize("method", [vector_scaling, dirichlet])


def probabilities(cell: Cell) -> np.ndarray:
    return np.array([one.normalized for one in cell])


@METHODS
@pytest.mark.parametrize(
    ("change", "together", "fold"),
    [
        (lambda i: {}, [31], 15),
        (lambda i: {"cluster": f"fact {i // 5}"}, [30, 31, 32, 33, 34], 15),
        (lambda i: {"id": f"q{i % 20}", "seed": i // 20}, [11, 31, 51], 15),
    ],
    ids=["the question", "others about its fact", "the question under other seeds"],
)
def test_a_label_changes_the_fit_of_every_fold_but_its_own(
    method: Callable[..., Cell],
    change: Callable[[int], dict[str, Any]],
    together: list[int],
    fold: int,
) -> None:
    """It has no part in the probabilities of `together`, nor of the rest of their fold."""
    cell = [replace(answer, **change(i)) for i, answer in enumerate(draw_cell(60))]
    other = list(cell)
    other[31] = replace(cell[31], answer=((cell[31].answer or 0) + 1) % 3)
    before, after = (probabilities(method(one, folds=4)) for one in (cell, other))
    same = (before == after).all(axis=1)
    assert same[together].all()
    assert same.sum() == fold
    assert (abs(before - after).max(axis=1)[~same] > 1e-4).all()
    backwards = probabilities(method(cell[::-1], folds=4)[::-1])  # the order has no effect
    assert backwards == pytest.approx(before, abs=1e-9)


@pytest.mark.parametrize("shift", [0, 25])
def test_vector_scaling_minimises_its_stated_loss(shift: float) -> None:
    cell = draw_cell(40, shift)
    logits, answers = np.array([x.logits for x in cell]), np.array([x.answer for x in cell])
    fitted = probabilities(vector_scaling(cell, folds=2))
    for rest, held_out in KFold(2, shuffle=True, random_state=0).split(cell):

        def loss(x: np.ndarray, rest: np.ndarray = rest) -> float:
            log_p = log_softmax(x[:3] * logits[rest] + x[3:], axis=1)
            nll = -log_p[np.arange(len(rest)), answers[rest]].mean()
            return nll + 1e-3 * (((x[:3] - 1) ** 2).sum() + (x[3:] ** 2).sum())

        # With another optimiser, which uses no gradient.
        options = {"xtol": 1e-9, "ftol": 1e-14}
        best = minimize(loss, np.zeros(6), method="Powell", options=options)
        best = minimize(loss, best.x, method="Powell", options=options).x
        expected = softmax(best[:3] * logits[held_out] + best[3:], axis=1)
        assert fitted[held_out] == pytest.approx(expected, abs=1e-4)


def test_dirichlet_equals_scikit_learns_regression_on_the_other_folds() -> None:
    cell = draw_cell(90)
    features, answers = np.log(probabilities(cell)), np.array([one.answer for one in cell])
    fitted = probabilities(dirichlet(cell, folds=3))
    for rest, held_out in KFold(3, shuffle=True, random_state=0).split(cell):
        model = LogisticRegression(C=1.0, solver="newton-cg", tol=1e-10, max_iter=1000)
        model.fit(features[rest], answers[rest])
        assert fitted[held_out] == pytest.approx(model.predict_proba(features[held_out]), abs=1e-5)


@METHODS
@pytest.mark.parametrize(
    ("damage", "folds", "offending"),
    [
        (lambda cell: cell, 1, "folds is 1"),
        (lambda cell: cell[:4], 5, "4 questions"),
        (
            lambda cell: [replace(x, id=f"q{i % 4}", seed=i) for i, x in enumerate(cell)],
            5,
            "4 ques",
        ),
        (lambda cell: [], 5, "0 questions"),
        (lambda cell: [*cell, saved(99, [0.0] * 10)], 5, "3 to 10"),
        (lambda cell: [*cell, replace(cell[0], id="x", answer=None)], 5, "none"),
    ],
)
def test_unusable_answers_are_refused_in_one_line(
    method: Callable[..., Cell], damage: Callable[[Cell], Cell], folds: int, offending: str
) -> None:
    with pytest.raises(InputError) as caught:
        method(damage(draw_cell(20)), folds=folds)
    assert offending in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dirichlet_needs_every_choice_as_an_answer_outside_of_each_fold() -> None:
    cell = [replace(one, answer=i % 2) for i, one in enumerate(draw_cell(20))]
    cell[7] = replace(cell[7], answer=2)  # missing only where its own fold is left out
    with pytest.raises(Unsuited, match="choice 3 of 3"):
        dirichlet(cell)
    assert len(vector_scaling(cell)) == 20


@pytest.mark.parametrize(
    ("success", "slope", "fits"),
    # It stopped, but not at a minimum; or says itself that it failed.
    [(True, -9e-6, True), (True, -2e-5, False), (True, math.nan, False), (False, 0.0, False)],
)
def test_a_fit_that_does_not_converge_is_an_error(
    monkeypatch: pytest.MonkeyPatch, success: bool, slope: float, fits: bool
) -> None:
    x, jac = np.repeat([1.0, 0.0], 3), np.array([0.0, slope, 0.0])
    result = OptimizeResult(x=x, jac=jac, success=success, message="stopped")
    cell = draw_cell(30)
    with monkeypatch.context() as patched:
        patched.setattr("scipy.optimize.minimize", lambda *_, **__: result)
        if fits:
            assert probabilities(vector_scaling(cell)) == pytest.approx(probabilities(cell))
        else:
            with pytest.raises(Unsuited, match="converge"):
                vector_scaling(cell)
    monkeypatch.setattr(  # one step is too few for any logits
        "sklearn.linear_model.LogisticRegression",
        lambda **settings: LogisticRegression(**{**settings, "max_iter": 1}),
    )
    with pytest.raises(Unsuited, match="converge"):
        dirichlet(cell)
