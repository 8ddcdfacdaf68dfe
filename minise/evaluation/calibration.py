"""The paper's supervised baselines: standard inference, recalibrated on labelled questions.

Both are fitted out of fold: no question's label has a part in its own probabilities, nor in those
of the same question under another seed. Folds are a seeded shuffle of the distinct question ids,
whatever their answers: were they stratified, a label could move its question to another fold.

Both take samples of standard inference and return them in their order with new probabilities,
scores and prediction; tokens are as they were, seconds 0, logits and groups None. They raise
InputError for fewer than 2 folds, fewer questions than folds, samples without finite logits and
questions of unequal numbers of choices, and RuntimeError where a fit does not converge.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minise.errors import InputError
from minise.evaluation.metrics import load_extra
from minise.evaluation.samples import Sample

REGULARISATION = {
    "vector-scaling": "mean negative log-likelihood + 1e-3 * (|w - 1|^2 + |b|^2)",
    "dirichlet": "sum of negative log-likelihoods + 0.5 * |W|^2 (C = 1), intercept free; for two "
    "choices W is the one row of their log-odds",
}

_STRENGTH = 1e-3
_STEEPEST = 1e-5

Array = NDArray[np.float64]
# Training logits (n, K) and answers (n,), then the logits to predict (n', K): probabilities.
Fit = Callable[[Array, NDArray[np.int64], Array], Array]


def vector_scaling(samples: Sequence[Sample], folds: int = 5, seed: int = 0) -> list[Sample]:
    """Vector scaling: softmax(w * z + b), a factor and an offset per label, of the logits z.

    The paper says that w and b maximise accuracy; here, as in Guo et al. (2017), they maximise the
    likelihood, regularised towards leaving the logits as they are. z are the raw label logits, not
    centred: softmax(z) ignores a constant added to all K logits of a question, but softmax(w * z)
    does not unless all of w are equal, so centring each question would make another model of it.
    """
    return _out_of_fold(samples, folds, seed, _vector_scaling)


def dirichlet(samples: Sequence[Sample], folds: int = 5, seed: int = 0) -> list[Sample]:
    """Dirichlet calibration (Kull et al., 2019): multinomial logistic regression on the
    log-probabilities log softmax(z), which a constant added to a question's logits leaves alone.

    Raises InputError also where some choice is never the answer outside of a fold.
    """
    return _out_of_fold(samples, folds, seed, _dirichlet)


def _out_of_fold(samples: Sequence[Sample], folds: int, seed: int, fit: Fit) -> list[Sample]:
    """The samples with what `fit` makes of their logits, fitted on the other folds."""
    logits, answers = _read(samples)
    ids, question = np.unique([sample.id for sample in samples], return_inverse=True)
    if folds < 2:
        raise InputError(f"{folds} folds leave nothing to fit on; use at least 2")
    if len(ids) < folds:
        raise InputError(
            f"{len(ids)} questions for {folds} folds; use more questions or fewer folds"
        )
    split = load_extra("sklearn.model_selection").KFold(folds, shuffle=True, random_state=seed)
    probabilities = np.empty_like(logits)
    for _, own in split.split(ids):
        inside = np.isin(question, own)
        probabilities[inside] = fit(logits[~inside], answers[~inside], logits[inside])
    return [
        replace(
            sample,
            prediction=int(row.argmax()),  # the lowest index on a tie
            probabilities=row.tolist(),
            scores=row.tolist(),
            seconds=0.0,
            logits=None,
            groups=None,
        )
        for sample, row in zip(samples, probabilities, strict=True)
    ]


def _read(samples: Sequence[Sample]) -> tuple[Array, NDArray[np.int64]]:
    rows = []
    for sample in samples:
        if sample.logits is None or not np.isfinite(sample.logits).all():
            raise InputError(
                f"question {sample.id}, seed {sample.seed}: no finite label logits to calibrate; "
                "give the samples of standard inference"
            )
        rows.append(sample.logits)
    sizes = {len(row) for row in rows}
    if len(sizes) > 1:
        raise InputError(
            "calibration needs the same number of choices in every question; found "
            f"{min(sizes)} to {max(sizes)}; use --choices K or --num-choices K"
        )
    return np.array(rows), np.array([sample.answer for sample in samples])


def _vector_scaling(logits: Array, answers: NDArray[np.int64], new: Array) -> Array:
    n, K = logits.shape
    log_softmax = load_extra("scipy.special").log_softmax
    right = np.eye(K)[answers]

    def loss(parameters: Array) -> tuple[float, Array]:
        w, b = parameters.reshape(2, K)
        log_p = log_softmax(w * logits + b, axis=1)
        slope = (np.exp(log_p) - right) / n  # by the logits of the softmax, (n, K)
        value = -(right * log_p).sum() / n + _STRENGTH * (((w - 1) ** 2).sum() + (b**2).sum())
        by_w = (slope * logits).sum(axis=0) + 2 * _STRENGTH * (w - 1)
        by_b = slope.sum(axis=0) + 2 * _STRENGTH * b
        return value, np.concatenate([by_w, by_b])

    found: Any = load_extra("scipy.optimize").minimize(
        loss,
        np.repeat([1.0, 0.0], K),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-7},
    )
    # The loss curves by at least 2e-3, so it is then within 1e-10 * 2K / 4e-3 of its minimum.
    steepest = float(np.abs(found.jac).max())
    if not (found.success and steepest < _STEEPEST):
        raise RuntimeError(
            f"vector scaling did not converge: gradient {steepest:.1e} ({found.message})"
        )
    w, b = found.x.reshape(2, K)
    return np.exp(log_softmax(w * new + b, axis=1))


def _dirichlet(logits: Array, answers: NDArray[np.int64], new: Array) -> Array:
    K = logits.shape[1]
    if missing := sorted(set(range(K)) - set(answers.tolist())):
        raise InputError(
            f"choice {missing[0] + 1} of {K} is never the answer outside of a fold, so dirichlet "
            "cannot learn it; use more questions or more folds"
        )
    log_softmax = load_extra("scipy.special").log_softmax
    regression = load_extra("sklearn.linear_model").LogisticRegression(
        C=1.0, tol=1e-7, max_iter=10_000
    )
    with warnings.catch_warnings():
        warning = load_extra("sklearn.exceptions").ConvergenceWarning
        warnings.simplefilter("error", warning)
        try:
            regression.fit(log_softmax(logits, axis=1), answers)
        except warning as error:
            raise RuntimeError(f"dirichlet calibration did not converge: {error}") from None
    probabilities: Array = regression.predict_proba(log_softmax(new, axis=1))
    return probabilities
