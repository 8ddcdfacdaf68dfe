"""The paper's supervised baselines: answers of standard inference, recalibrated with labels.

Both are fitted out of fold: the label of a question has no part in its own probabilities, nor in
those of the same question under another seed, nor in those of another question about the same fact.
The folds are a seeded shuffle of the facts (the questions' ids, where they name none) and do not
depend on the answers: otherwise a label could move its question to another fold.
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minise.errors import InputError, Unsuited, quote
from minise.lab.data.kinds import check, whole_from
from minise.lab.methods.fitted import Fitted, remade
from minise.lab.methods.saved import SavedAnswer
from minise.loading.plugin import load_extra

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class OutOfFold(Fitted):
    """A method that is fitted on the label logits of standard inference and on the right answers of
    the questions in other folds."""

    needs = ("standard",)
    folds: int = 5

    def __post_init__(self) -> None:
        check("folds", self.folds, whole_from(2))

    def fit(self, answers: dict[str, list[SavedAnswer]]) -> list[SavedAnswer]:
        """Raises Unsuited for questions without an answer, unequal numbers of choices, fewer facts
        than folds, and a fit that does not converge."""
        given = answers["standard"]
        sizes = {len(answer.normalized) for answer in given}
        if len(sizes) > 1:
            need = f"{self.name} needs the same number of choices in every question"
            raise Unsuited(f"{need}; found {min(sizes)} to {max(sizes)}; use --cut-to K")
        if any(answer.answer is None for answer in given):
            raise Unsuited(f"{self.name} is fitted on answers, and some questions have none")
        names = [f"fact {answer.cluster}" if answer.cluster else answer.id for answer in given]
        facts, fact_of_answer = np.unique(names, return_inverse=True)
        if self.folds > len(facts):
            count = f"{len(facts)} questions for {self.folds} folds"
            raise Unsuited(f"{count}; use fewer, with a question or more for each")
        for answer in given:
            if answer.logits is None or len(answer.logits) != len(answer.normalized):
                need = f"{self.name} needs the logits of all choices"
                raise InputError(f"{need}, and {quote(answer.id)} has others; ask it again")
        logits = np.array([answer.logits for answer in given], dtype=np.float64)
        right = np.array([answer.answer for answer in given])
        p = np.empty(logits.shape)
        folds = load_extra("sklearn.model_selection").KFold(
            self.folds, shuffle=True, random_state=0
        )
        for _, facts_of_fold in folds.split(facts):
            inside = np.isin(fact_of_answer, facts_of_fold)
            p[inside] = self._predict(logits[~inside], right[~inside], logits[inside])
        return [remade(answer, new.tolist()) for answer, new in zip(given, p, strict=True)]

    def _predict(self, known: Array, answers: Labels, new: Array) -> Array:
        """Fit to numbers (n, K) with answers (n,); return probabilities (m, K) for `new` (m, K)."""
        raise NotImplementedError


@dataclass(frozen=True)
class VectorScaling(OutOfFold):
    """Vector scaling: softmax(w * z + b), with a factor and an offset for each label.

    The paper says that w and b maximise accuracy. Here they maximise the likelihood, as in Guo et
    al. (2017), and are regularised towards the unchanged logits. z are the raw label logits. They
    are not centred: softmax(z) ignores a constant added to all logits of a question, but
    softmax(w * z) does not unless all of w are equal, so centred logits would be another model.
    Minimised is the mean negative log-likelihood + 1e-3 * (|w - 1|^2 + |b|^2).
    """

    name: ClassVar[str] = "vector-scaling"

    def _predict(self, logits: Array, answers: Labels, new: Array) -> Array:
        n, K = logits.shape
        log_softmax = load_extra("scipy.special").log_softmax
        minimize = load_extra("scipy.optimize").minimize
        right = np.eye(K)[answers]

        def loss(parameters: Array) -> tuple[float, Array]:
            w, b = parameters.reshape(2, K)
            log_p = log_softmax(w * logits + b, axis=1)
            slope = (np.exp(log_p) - right) / n  # the gradient by w * z + b, (n, K)
            penalty = ((w - 1) ** 2).sum() + (b**2).sum()
            value = -(right * log_p).sum() / n + 1e-3 * penalty
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
            raise Unsuited(f"vector scaling did not converge: {problem}")
        w, b = result.x.reshape(2, K)
        return np.exp(log_softmax(w * new + b, axis=1))


@dataclass(frozen=True)
class Dirichlet(OutOfFold):
    """Dirichlet calibration (Kull et al., 2019): multinomial logistic regression on the
    log-probabilities log softmax(z). A constant added to a question's logits changes nothing.
    Minimised is the sum of negative log-likelihoods + 0.5 * |W|^2 (C = 1), the intercept free.

    `fit` raises Unsuited also for a choice that is never the answer outside of some fold.
    """

    name: ClassVar[str] = "dirichlet"

    def _predict(self, logits: Array, answers: Labels, new: Array) -> Array:
        K = logits.shape[1]
        missing = sorted(set(range(K)) - set(answers.tolist()))
        if missing:
            problem = f"choice {missing[0] + 1} of {K} is never the answer outside of a fold"
            raise Unsuited(f"{problem}; dirichlet needs more questions or more folds")
        log_softmax = load_extra("scipy.special").log_softmax
        model = load_extra("sklearn.linear_model").LogisticRegression
        regression = model(C=1.0, tol=1e-7, max_iter=10_000)
        warning = load_extra("sklearn.exceptions").ConvergenceWarning
        with warnings.catch_warnings():
            warnings.simplefilter("error", warning)
            try:
                regression.fit(log_softmax(logits, axis=1), answers)
            except warning as error:
                raise Unsuited(f"dirichlet calibration did not converge: {error}") from None
        return regression.predict_proba(log_softmax(new, axis=1))
