"""How good a method's answers and its confidence are, and how sure these numbers are.

A cell is the samples of one task under one method: one per seed and question. The confidence f of
a sample is the probability of the choice it predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minise.errors import InputError
from minise.evaluation.samples import Sample

TAU = 0.5  # of the paper's table of under- and over-confidence
# A choice that no group held scores 0, and one such question would make the mean infinite.
SMALLEST_PROBABILITY = 1e-12

Array = NDArray[np.float64]


def measure(
    samples: Sequence[Sample],
    tau: float = TAU,
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Every number about a cell, ready for JSON; None where one is undefined.

    accuracy: share of right predictions. nll: mean -log p(answer) in nats, p at least 1e-12.
    brier: mean of sum_k (p_k - y_k)^2, 0 to 2. ece_width, ece_mass: mean |accuracy - confidence|
    over bins of equal width, or of equal mass by the quantiles of f, weighted by their samples; a
    bin holds its upper edge and equal f stay together. auroc: the chance that a right prediction
    has a larger f than a wrong one, ties half. under_confidence: share of f < tau among the right
    predictions; over_confidence: share of f > tau among the wrong ones (the paper's appendix,
    Table "Under-confidence and over-confidence ratios").

    Each of these has a 95% interval under its name + "_interval": a percentile bootstrap over
    question ids, all seeds of a question together, since a question under five seeds is not five
    questions. Resamples in which a number is undefined are left out of its interval, and equal-mass
    bins stay those of the whole cell. The ECE of finitely many samples is too large on average, of
    a resample yet more: its interval lies high and may even miss the value.

    under_confidence_scores, over_confidence_scores: the same two with f the score of Eq. 3 as it
    is, which need not sum to 1 over the choices. The paper does not say which of the two it takes.

    Also: n (samples), questions, the mean confidence, the confidence curve, tokens (mean per
    sample), and the accuracy by seed with mean and sample standard deviation.

    Raises InputError for an empty cell, one that has a question twice under a seed, or a sample
    whose probabilities, answer and prediction do not fit together.
    """
    if not 0 <= tau <= 1:
        raise InputError(f"tau {tau} is no probability; give one from 0 to 1")
    if bins < 1:
        raise InputError(f"number of bins {bins} is below 1; at least one is needed")
    by_key = _by_key(samples)
    ordered = list(by_key.values())
    cell = _read_cell(ordered, tau)
    f = cell.confidence
    levels = np.unique(f, return_inverse=True)[1]
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    width, mass = np.searchsorted(inner, f), np.searchsorted(np.quantile(f, inner), f)

    def statistics(weights: Array) -> dict[str, float]:
        return {
            **_ratios(cell, weights),
            "ece_width": _ece(cell, weights, width),
            "ece_mass": _ece(cell, weights, mass),
            "auroc": _auroc(cell, weights, levels),
        }

    seeds: dict[str, list[bool]] = {}
    for sample in ordered:
        seeds.setdefault(str(sample.seed), []).append(sample.prediction == sample.answer)
    accuracies = {name: mean(map(float, right)) for name, right in seeds.items()}
    return {
        "n": len(ordered),
        "questions": len({sample.id for sample in ordered}),
        **_bootstrap(statistics, cell.question, resamples, seed),
        "confidence": float(f.mean()),
        "bins": bins,
        "tau": tau,
        "resamples": resamples,
        "confidence_curve": confidence_curve(ordered),
        "tokens": mean(float(sample.tokens) for sample in ordered),
        "seeds": accuracies,
        "accuracy_seeds_mean": mean(accuracies.values()),
        "accuracy_seeds_std": stdev(accuracies.values()) if len(accuracies) > 1 else None,
    }


def difference(
    a: Sequence[Sample], b: Sequence[Sample], resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """How much larger the numbers of cell `a` are than those of `b`, over the n samples that both
    have: same seed, same question.

    accuracy (with its 95% "interval"), nll, under_confidence, over_confidence (at tau = 0.5): the
    value for a less that for b, None where either is undefined. The intervals are paired: a
    resample draws question ids, all seeds of a question together, for both.

    mcnemar_p: exact two-sided McNemar test, of only_a questions that a alone answers right against
    only_b. It counts a question once, under the lowest common seed, since the test is for
    independent pairs.

    Raises InputError where the cells share nothing, or a shared sample is of another question.
    """
    a_by_key, b_by_key = _by_key(a), _by_key(b)
    keys = [key for key in a_by_key if key in b_by_key]
    if not keys:
        raise InputError(
            "the two methods share no question under a seed; run both on the same ones"
        )
    pairs = [(a_by_key[key], b_by_key[key]) for key in keys]
    for one, other in pairs:
        if (one.question_hash, one.answer) != (other.question_hash, other.answer):
            raise InputError(
                f"question {one.id}, seed {one.seed}: the two methods were asked different "
                "questions under this id; run both on the same task"
            )
    a_cell, b_cell = (_read_cell(side, TAU) for side in zip(*pairs, strict=True))

    def statistics(weights: Array) -> dict[str, float]:
        b_ratios = _ratios(b_cell, weights)
        return {name: value - b_ratios[name] for name, value in _ratios(a_cell, weights).items()}

    found = _bootstrap(statistics, a_cell.question, resamples, seed)
    once: dict[str, tuple[bool, bool]] = {}
    for one, other in pairs:  # lowest seed first
        once.setdefault(one.id, (one.prediction == one.answer, other.prediction == other.answer))
    only_a = sum(one and not other for one, other in once.values())
    only_b = sum(other and not one for one, other in once.values())
    result = {
        "n": len(pairs),
        "questions": len(once),
        "accuracy": found["accuracy"],
        "interval": found["accuracy_interval"],
        "mcnemar_p": _mcnemar(only_a, only_b),
        "only_a": only_a,
        "only_b": only_b,
    }
    for name in ("nll", "under_confidence", "over_confidence"):
        result |= {name: found[name], f"{name}_interval": found[f"{name}_interval"]}
    return result


def confidence_curve(samples: Sequence[Sample]) -> dict[str, list[float] | None]:
    """Share of samples with f > tau, for "tau" = 0, 0.02, ..., 1, apart for "correct" and
    "incorrect" predictions (Section 3.1); None for a kind that does not occur.

    Raises InputError as `measure` does.
    """
    cell = _read_cell(list(_by_key(samples).values()), TAU)
    taus = np.arange(51) / 50
    curve: dict[str, list[float] | None] = {"tau": taus.tolist()}
    for name, kind in [("correct", cell.correct), ("incorrect", 1 - cell.correct)]:
        f = cell.confidence[kind == 1]
        curve[name] = (f[:, None] > taus).mean(axis=0).tolist() if f.size else None
    return curve


def load_extra(module: str) -> Any:
    """A module of the `eval` extra. Raises InputError where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this needs {error.name}, which is not installed: pip install 'minise[eval]'"
        ) from None


@dataclass(frozen=True, eq=False)
class _Cell:
    """A cell as columns, (n,) float64 each; `question` numbers the question ids, int64."""

    question: NDArray[np.int64]
    correct: Array
    confidence: Array
    nll: Array
    brier: Array
    under: Array
    over: Array
    under_scores: Array
    over_scores: Array


def _by_key(samples: Sequence[Sample]) -> dict[tuple[int, str], Sample]:
    """By seed and question id, and in that order: no number depends on the order of a file."""
    by_key = {sample.key: sample for sample in sorted(samples, key=lambda sample: sample.key)}
    if not by_key:
        raise InputError("there are no samples to measure; run the method first")
    if len(by_key) < len(samples):
        raise InputError(
            f"{len(samples)} samples, but only {len(by_key)} pairs of seed and question; "
            "give the samples of one task and one method"
        )
    return by_key


def _read_cell(samples: Sequence[Sample], tau: float) -> _Cell:
    brier = []
    for sample in samples:
        p = sample.probabilities
        # Written so that NaN fails too.
        if not (
            0 <= sample.answer < len(p)
            and 0 <= sample.prediction < len(p)
            and min(p) >= 0
            and abs(sum(p) - 1) < 1e-6
        ):
            raise InputError(
                f"question {sample.id}, seed {sample.seed}: answer {sample.answer} and prediction "
                f"{sample.prediction} must be choices, and the probabilities {p} sum to 1; run it "
                "again"
            )
        brier.append(sum((x - (k == sample.answer)) ** 2 for k, x in enumerate(p)))
    f = np.array([sample.probabilities[sample.prediction] for sample in samples])
    scores = np.array([sample.scores[sample.prediction] for sample in samples])
    answer = np.array([sample.probabilities[sample.answer] for sample in samples])
    correct = np.array([float(sample.prediction == sample.answer) for sample in samples])
    return _Cell(
        question=np.unique([sample.id for sample in samples], return_inverse=True)[1],
        correct=correct,
        confidence=f,
        nll=-np.log(np.maximum(answer, SMALLEST_PROBABILITY)),
        brier=np.array(brier),
        under=correct * (f < tau),
        over=(1 - correct) * (f > tau),
        under_scores=correct * (scores < tau),
        over_scores=(1 - correct) * (scores > tau),
    )


def _bootstrap(
    statistics: Callable[[Array], dict[str, float]],
    question: NDArray[np.int64],
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Each statistic and its 95% percentile interval. `statistics` is given how often each sample
    counts, (n,), and says NaN for what is undefined."""
    if resamples < 1:
        raise InputError(f"number of resamples {resamples} is below 1; at least one is needed")
    generator = np.random.Generator(np.random.PCG64(seed))
    size = int(question.max()) + 1
    drawn = []
    for _ in range(resamples):
        counts = np.bincount(generator.integers(size, size=size), minlength=size)
        drawn.append(statistics(counts[question].astype(np.float64)))
    found: dict[str, Any] = {}
    for name, value in statistics(np.ones(len(question))).items():
        values = np.array([one[name] for one in drawn])
        values = values[~np.isnan(values)]
        found[name] = None if np.isnan(value) else value
        found[f"{name}_interval"] = (
            np.quantile(values, [0.025, 0.975]).tolist() if values.size else None
        )
    return found


def _ratios(cell: _Cell, weights: Array) -> dict[str, float]:
    total, right = weights.sum(), weights @ cell.correct
    return {
        "accuracy": _ratio(right, total),
        "nll": _ratio(weights @ cell.nll, total),
        "brier": _ratio(weights @ cell.brier, total),
        "under_confidence": _ratio(weights @ cell.under, right),
        "over_confidence": _ratio(weights @ cell.over, total - right),
        "under_confidence_scores": _ratio(weights @ cell.under_scores, right),
        "over_confidence_scores": _ratio(weights @ cell.over_scores, total - right),
    }


def _ece(cell: _Cell, weights: Array, bins: NDArray[np.int64]) -> float:
    # In a bin, samples * |accuracy - confidence| is the difference of two sums.
    gaps = np.bincount(bins, weights * (cell.correct - cell.confidence))
    return float(np.abs(gaps).sum() / weights.sum())


def _auroc(cell: _Cell, weights: Array, levels: NDArray[np.int64]) -> float:
    """`levels` are the ranks of the distinct confidences."""
    right = np.bincount(levels, weights * cell.correct)
    wrong = np.bincount(levels, weights * (1 - cell.correct))
    won = right @ (np.cumsum(wrong) - wrong / 2)
    return _ratio(won, right.sum() * wrong.sum())


def _ratio(part: Array, whole: Array) -> float:
    """Of two numbers, as sums of arrays come."""
    return float(part / whole) if whole else float("nan")


def _mcnemar(only_a: int, only_b: int) -> float:
    if only_a + only_b == 0:
        return 1.0
    test = load_extra("scipy.stats").binomtest(only_a, only_a + only_b, 0.5)
    return float(test.pvalue)
