"""The paper's supervised baselines: answers of standard inference, recalibrated with labels.

Both are fitted out of fold: the label of a question has no part in its own probabilities, nor in
those of the same question under another seed, nor in those of another question about the same fact.
The folds are a seeded shuffle of the facts (the questions' ids, where they name none) and do not
depend on the answers: otherwise a label could move its question to another fold.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minise.errors import InputError
from minise.loading.plugin import load_extra
from minise.methods.fitted import Fitted, NotConverged, check_same_size
from minise.methods.sample import Sample
from minise.question import Question

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class _Calibration(Fitted):
    """A method that is fitted on samples of standard inference."""

    needs = ("standard",)
    folds: int = 5

    def check(self, questions: Sequence[tuple[int, Question]]) -> None:
        """Raises InputError if `fit` cannot work on these questions, each with its seed."""
        blank = []  # only folds and answers matter, so the logits can be anything
        for seed, q in questions:
            if q.answer is None:
                need = f"{self.name} is fitted on answers"
                raise InputError(f"{need}, and these questions have none; leave it out")
            zeros = [0.0] * len(q.choices)
            sample = Sample(q.id, seed, "", q.answer, 0, zeros, zeros, 0, logits=zeros)
            blank.append(replace(sample, cluster=q.cluster or None))
        self.fit({"standard": blank})

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        """The samples of standard inference, in their order, with new probabilities, scores and
        prediction. Their tokens stay; seconds, logits, groups and notes become None.

        Raises InputError for fewer than 2 folds, fewer facts than folds, samples without finite
        logits and unequal numbers of choices, and NotConverged.
        """
        standard = samples["standard"]
        for s in standard:
            if s.logits is None or not np.isfinite(s.logits).all():
                where = f"question {s.id}, seed {s.seed}"
                raise InputError(f"{where}: no finite label logits; give standard inference's")
        check_same_size(self.name, (len(s.probabilities) for s in standard))
        names = [f"fact {s.cluster}" if s.cluster else s.id for s in standard]
        facts, fact = np.unique(names, return_inverse=True)
        if not 2 <= self.folds <= len(facts):
            numbers = f"{len(facts)} questions for {self.folds} folds"
            raise InputError(f"{numbers}; use at least 2 folds, and a question or more for each")
        logits = np.array([s.logits for s in standard])
        answers = np.array([s.answer for s in standard])
        new = np.empty_like(logits)
        split = load_extra("sklearn.model_selection").KFold
        for _, fold in split(self.folds, shuffle=True, random_state=0).split(facts):
            inside = np.isin(fact, fold)
            new[inside] = self._predict(logits[~inside], answers[~inside], logits[inside])
        return [s.remade(row) for s, row in zip(standard, new.tolist(), strict=True)]

    def _predict(self, logits: Array, answers: Labels, new: Array) -> Array:
        """Fit to logits (n, K) with answers (n,); return probabilities (m, K) for `new` (m, K)."""
        raise NotImplementedError


@dataclass(frozen=True)
class VectorScaling(_Calibration):
    """Vector scaling: softmax(w * z + b), with a factor and an offset for each label.

    The paper says that w and b maximise accuracy. Here they maximise the likelihood, as in Guo et
    al. (2017), and are regularised towards the unchanged logits. z are the raw label logits. They
    are not centred: softmax(z) ignores a constant added to all logits of a question, but
    softmax(w * z) does not unless all of w are equal, so centred logits would be another model.
    """

    name: ClassVar[str] = "vector-scaling"
    regularisation: ClassVar[str] = "mean negative log-likelihood + 1e-3 * (|w - 1|^2 + |b|^2)"

    def _predict(self, logits: Array, answers: Labels, new: Array) -> Array:
        n, K = logits.shape
        log_softmax = load_extra("scipy.special").log_softmax
        minimize = load_extra("scipy.optimize").minimize
        right = np.eye(K)[answers]

        def loss(parameters: Array) -> tuple[float, Array]:
            w, b = parameters.reshape(2, K)
            log_p = log_softmax(w * logits + b, axis=1)
            slope = (np.exp(log_p) - right) / n  # the gradient by w * z + b, (n, K)
            value = -(right * log_p).sum() / n + 1e-3 * (((w - 1) ** 2).sum() + (b**2).sum())
            by_w = (slope * logits).sum(axis=0) + 2e-3 * (w - 1)
            by_b = slope.sum(axis=0) + 2e-3 * b
            return value, np.concatenate([by_w, by_b])

        start = np.repeat([1.0, 0.0], K)
        options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-7}
        result = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        # The loss is convex, and the penalty alone has second derivatives of 2e-3. So the loss is
        # at most |gradient|^2 / 4e-3 above its minimum.
        gradient = float(np.abs(result.jac).max())
        if not (result.success and gradient < 1e-5):
            problem = f"gradient {gradient:.1e} ({result.message})"
            raise NotConverged(f"vector scaling did not converge: {problem}")
        w, b = result.x.reshape(2, K)
        return np.exp(log_softmax(w * new + b, axis=1))


@dataclass(frozen=True)
class Dirichlet(_Calibration):
    """Dirichlet calibration (Kull et al., 2019): multinomial logistic regression on the
    log-probabilities log softmax(z). A constant added to a question's logits changes nothing.

    `fit` raises InputError also for a choice that is never the answer outside of some fold.
    """

    name: ClassVar[str] = "dirichlet"
    regularisation: ClassVar[str] = (
        "sum of negative log-likelihoods + 0.5 * |W|^2 (C = 1), intercept free; for two choices W "
        "is the one row of their log-odds"
    )

    def _predict(self, logits: Array, answers: Labels, new: Array) -> Array:
        K = logits.shape[1]
        missing = sorted(set(range(K)) - set(answers.tolist()))
        if missing:
            problem = f"choice {missing[0] + 1} of {K} is never the answer outside of a fold"
            raise InputError(f"{problem}; dirichlet needs more questions or more folds")
        log_softmax = load_extra("scipy.special").log_softmax
        model = load_extra("sklearn.linear_model").LogisticRegression
        regression = model(C=1.0, tol=1e-7, max_iter=10_000)
        warning = load_extra("sklearn.exceptions").ConvergenceWarning
        with warnings.catch_warnings():
            warnings.simplefilter("error", warning)
            try:
                regression.fit(log_softmax(logits, axis=1), answers)
            except warning as error:
                raise NotConverged(f"dirichlet calibration did not converge: {error}") from None
        return regression.predict_proba(log_softmax(new, axis=1))
