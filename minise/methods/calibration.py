"""The paper's supervised baselines: answers of standard inference, recalibrated with labels; and of
any other method, `of`.

Both are fitted out of fold: the label of a question has no part in its own probabilities, nor in
those of the same question under another seed, nor in those of another question about the same fact.
The folds are a seeded shuffle of the facts (the questions' ids, where they name none) and do not
depend on the answers: otherwise a label could move its question to another fold.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
class OutOfFold(Fitted):
    """A method that is fitted on samples of one other method, and on the right answers of the
    questions in other folds."""

    folds: int = 5

    def check(self, questions: Sequence[tuple[int, Question]]) -> None:
        """Raises InputError if `fit` cannot work on these questions, each with its seed."""
        blank = []  # only folds and answers matter, so the numbers can be anything
        for seed, q in questions:
            if q.answer is None:
                need = f"{self.name} is fitted on answers"
                raise InputError(f"{need}, and these questions have none; leave it out")
            zeros = [0.0] * len(q.choices)
            sample = Sample(q.id, seed, "", q.answer, 0, zeros, zeros, 0, logits=zeros)
            blank.append(replace(sample, cluster=q.cluster or None))
        self._fit(blank, [[0.0] * len(q.choices) for _, q in questions])

    def fit(self, samples: dict[str, list[Sample]]) -> list[Sample]:
        """The samples of the method in `needs`, in their order, with new probabilities, scores and
        prediction. Their tokens stay; seconds, logits, groups and notes become None.

        Raises InputError for fewer than 2 folds, fewer facts than folds, samples without what is
        fitted (`numbers`) and unequal numbers of choices, and NotConverged.
        """
        (given,) = (samples[name] for name in self.needs)
        return self._fit(given, [self.numbers(sample) for sample in given])

    def numbers(self, sample: Sample) -> Any:
        """What is fitted, of one sample: finite numbers (..., K)."""
        raise NotImplementedError

    def _fit(self, given: list[Sample], numbers: list[Any]) -> list[Sample]:
        check_same_size(self.name, (len(s.probabilities) for s in given))
        names = [f"fact {s.cluster}" if s.cluster else s.id for s in given]
        facts, fact = np.unique(names, return_inverse=True)
        if not 2 <= self.folds <= len(facts):
            count = f"{len(facts)} questions for {self.folds} folds"
            raise InputError(f"{count}; use at least 2 folds, and a question or more for each")
        known = np.array(numbers)
        answers = np.array([s.answer for s in given])
        new = np.empty((len(given), known.shape[-1]))
        split = load_extra("sklearn.model_selection").KFold
        for _, fold in split(self.folds, shuffle=True, random_state=0).split(facts):
            inside = np.isin(fact, fold)
            new[inside] = self._predict(known[~inside], answers[~inside], known[inside])
        return [s.remade(row) for s, row in zip(given, new.tolist(), strict=True)]

    def _predict(self, known: Array, answers: Labels, new: Array) -> Array:
        """Fit to numbers (n, ..., K) with answers (n,); return probabilities (m, K) for `new`
        (m, ..., K)."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Calibration(OutOfFold):
    """A method that is fitted on the label logits of standard inference, as in the paper, or on the
    log-probabilities of the method `of`."""

    needs = ("standard",)
    of: str = "standard"

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", (self.of,))  # a frozen class sets fields so

    def numbers(self, sample: Sample) -> list[float]:
        """The logits (K,). Raises InputError for a sample of standard inference without them. Of
        another method log p, where p below 1e-12 counts as that: a choice may have p = 0."""
        if self.of != "standard":
            return np.log(np.maximum(sample.probabilities, 1e-12)).tolist()
        if sample.logits is None or not np.isfinite(sample.logits).all():
            where = f"question {sample.id}, seed {sample.seed}"
            raise InputError(f"{where}: no finite label logits; give standard inference's")
        return sample.logits


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
