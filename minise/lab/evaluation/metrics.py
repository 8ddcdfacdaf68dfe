"""The quality of a method's answers and of its confidence, with bootstrap intervals.

A cell is the answers of one method to one task. The confidence f of an answer is the score of the
choice that it predicts: the paper's final probability, the mean (Eq. 2).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest

from minise.lab.evaluation.rows import key_of
from minise.lab.methods.saved import SavedAnswer

TAU = 0.5  # the paper's, in its table of under- and over-confidence
BINS = 15  # of the expected calibration error
RESAMPLES = 1000
RESAMPLES_AT_ONCE = 100
FOLDS = 5  # of the clusters, for the temperature of matched_nll
# The answer has probability 0 if no group held it. One such question would make the mean infinite.
SMALLEST = 1e-12
OTHER_SCALES = ("normalized_under", "normalized_over", "matched_under", "matched_over")
SHARES = ("accuracy", "under", "over", *OTHER_SCALES, "flips")
LOSSES = ("nll", "matched_nll", "brier")
READ_OUT = ("confidence", "null", "on_labels")
MEANS = (*SHARES, *LOSSES, "tokens", *READ_OUT, "seconds")
NAMES = (*MEANS, "ece", "auroc")
Array = NDArray[np.float64]


def scored(answers: Sequence[SavedAnswer]) -> pd.DataFrame:
    """A line for each answer, sorted by seed and question id, with what the metrics are means of;
    NaN where an answer has no part in one. cluster: numbers from 0, in the order of the names."""
    answers = sorted(answers, key=lambda answer: (answer.seed, answer.id))
    lines = []
    for answer in answers:
        assert answer.answer is not None  # `measure` and `difference` leave them out
        p = answer.normalized
        line = {
            "seed": answer.seed,
            "id": answer.id,
            "question_hash": answer.question_hash,
            "answer": answer.answer,
            "prediction": answer.prediction,
            "tokens": answer.tokens,
            "cluster": answer.cluster or f"\0{answer.id}",
            "confidence": answer.scores[answer.prediction],
            "normalized": p[answer.prediction],
            "right_p": p[answer.answer],
            "squares": sum(x * x for x in p),
            "chance": 1 / len(p),
            "seconds": answer.seconds,
            "null": answer.null,
            "on_labels": answer.on_labels,
        }
        lines.append(line)
    frame = pd.DataFrame(lines)
    for name in ("seconds", "null", "on_labels"):
        frame[name] = frame[name].astype(float)  # None becomes NaN
    frame["cluster"] = np.unique(frame.cluster, return_inverse=True)[1]

    f = frame.confidence
    is_right = frame.answer == frame.prediction
    frame["accuracy"] = is_right.astype(float)
    edges = np.linspace(0, 1, BINS + 1)
    frame["bin"] = np.searchsorted(edges[1:-1], f)
    frame["nll"] = -np.log(np.maximum(frame.right_p, SMALLEST))
    K = max(len(answer.normalized) for answer in answers)
    p_of_all = np.zeros((len(answers), K))
    for row, answer in zip(p_of_all, answers, strict=True):
        row[: len(answer.normalized)] = answer.normalized
    log_p = matched(p_of_all, frame.answer.to_numpy(), frame.cluster.to_numpy())
    rows = np.arange(len(answers))
    frame["matched_nll"] = -log_p[rows, frame.answer]
    frame["matched"] = np.exp(log_p[rows, frame.prediction])
    for prefix, name in (
        ("", "confidence"),
        ("normalized_", "normalized"),
        ("matched_", "matched"),
    ):
        frame[f"{prefix}under"] = np.where(is_right, frame[name] < TAU, np.nan)
        frame[f"{prefix}over"] = np.where(is_right, np.nan, frame[name] > TAU)
    frame["brier"] = frame.squares - 2 * frame.right_p + 1

    # Of the other seeds of a question, the share with another prediction.
    seeds = frame.groupby(["id", "question_hash"]).seed.transform("size")
    alike = frame.groupby(["id", "question_hash", "prediction"]).seed.transform("size")
    frame["flips"] = (seeds - alike) / (seeds - 1)
    return frame


def matched(p: Array, right: NDArray[np.int64], cluster: NDArray[np.int64]) -> Array:
    """The logarithm of p ** (1 / T), normalised, with the T that is best on the other folds (n, K).
    p: (n, K), 0 where there is no such choice; scores, and scores divided by their sum, give the
    same. right: the right choices (n,). cluster: numbers from 0 (n,)."""
    rows = np.arange(len(p))
    log_p = np.log(p, out=np.full(p.shape, -np.inf), where=p > 0)
    log_p[rows, right] = np.log(np.maximum(p[rows, right], SMALLEST))
    log_p -= log_p.max(axis=1, keepdims=True)

    def sharpened(sharper: float, some: NDArray[np.bool_]) -> Array:
        """`sharper` is log(1 / T)."""
        scaled = np.exp(sharper) * log_p[some]
        return np.asarray(scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True)))

    def objective(sharper: float, some: NDArray[np.bool_]) -> float:
        losses = -sharpened(sharper, some)[np.arange(some.sum()), right[some]]
        # Without the prior of log T a cell that is all right would have T = 0.
        clusters = len(np.unique(cluster[some]))
        prior = sharper**2 / (8 * clusters)
        return float(losses.mean() + prior)

    order = np.random.Generator(np.random.PCG64(0)).permutation(cluster.max() + 1)
    folds = (order % FOLDS)[cluster]
    result = np.full(p.shape, np.nan)
    for fold in np.unique(folds):
        others = folds != fold
        if others.any():
            best = minimize_scalar(
                objective, bounds=(-5, 5), args=(others,), options={"xatol": 1e-8}
            )
            result[~others] = sharpened(best.x, ~others)
    return result


def statistic(frame: pd.DataFrame) -> Callable[[Array], Array]:
    """NAMES, as columns, as a function of the weights of the answers (R, n), a resample a row."""
    x = frame[list(MEANS)].to_numpy(float)
    has = (~np.isnan(x)).astype(float)
    x = np.nan_to_num(x)
    f = frame.confidence.to_numpy()
    right = frame.accuracy.to_numpy()
    gap = right - f
    in_bin = (frame.bin.to_numpy()[:, None] == np.arange(BINS)).astype(float)
    order = f.argsort(kind="stable")
    begins = np.unique(f[order], return_index=True)[1]  # of the answers with one confidence

    def values(weights: Array) -> Array:
        # In a bin, answers * |accuracy - mean f| is |sum of (right - f)|.
        ece = np.abs((weights * gap) @ in_bin).sum(axis=1) / weights.sum(axis=1)
        hits = np.add.reduceat((weights * right)[:, order], begins, axis=1)
        misses = np.add.reduceat((weights * (1 - right))[:, order], begins, axis=1)
        misses_below = misses.cumsum(axis=1) - misses / 2  # of equal confidence count half
        won = (hits * misses_below).sum(axis=1)
        auroc = won / (hits.sum(axis=1) * misses.sum(axis=1))
        means = weights @ x / (weights @ has)
        return np.column_stack([means, ece, auroc])

    return values


@np.errstate(invalid="ignore")  # 0 / 0 is NaN: not defined
def bootstrap(values: Callable[[Array], Array], cluster: NDArray[np.int64]) -> dict[str, Any]:
    """The values of all answers by NAMES, and as NAME_interval their 95% percentile intervals:
    clusters are drawn, each with all its answers. None: not defined; such resamples do not count.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    size = int(cluster.max()) + 1
    drawn = []
    for start in range(0, RESAMPLES, RESAMPLES_AT_ONCE):
        number = min(RESAMPLES_AT_ONCE, RESAMPLES - start)
        clusters = generator.integers(size, size=(number, size))
        # All resamples are counted at once: those of the r-th have the numbers from r * size on.
        places = clusters + size * np.arange(number)[:, None]
        counts = np.bincount(places.ravel(), minlength=number * size).reshape(number, size)
        weights = counts[:, cluster].astype(float)
        drawn.append(values(weights))
    bounds = pd.DataFrame(np.concatenate(drawn), columns=NAMES).quantile([0.025, 0.975])
    of_all = values(np.ones((1, len(cluster))))[0]
    numbers: dict[str, Any] = {}
    for name, value in zip(NAMES, of_all, strict=True):
        numbers[name] = None if np.isnan(value) else float(value)
        is_known = bounds[name].notna().all()
        numbers[f"{name}_interval"] = bounds[name].tolist() if is_known else None
    return numbers


def measure(answers: Sequence[SavedAnswer]) -> dict[str, Any]:
    """All numbers of a cell, ready for JSON; None where one is not defined. docs/evaluation.md says
    what each is. Questions without an answer are predicted, and have no part in what is scored. A
    share of 0 or 100% has the interval of Wilson."""
    with_answers = [answer for answer in answers if answer.answer is not None]
    numbers = predicted(answers)
    if len(with_answers) < len(answers):
        numbers["scored"] = len(with_answers)
    if not with_answers:
        return numbers
    K = len(numbers["picks"])
    frame = scored(with_answers)
    numbers["questions"] = frame.id.nunique()
    numbers["clusters"] = int(frame.cluster.max()) + 1
    of_all = numbers["on_labels"]
    numbers.update(bootstrap(statistic(frame), frame.cluster.to_numpy()))
    if len(with_answers) < len(answers):
        numbers["on_labels"] = of_all  # a warning does not depend on right answers
    for name in SHARES:
        if numbers[name] in (0.0, 1.0):
            clusters = frame.cluster[frame[name].notna()].nunique()
            test = binomtest(round(numbers[name] * clusters), clusters)
            interval = test.proportion_ci(method="wilson")
            numbers[f"{name}_interval"] = [float(interval.low), float(interval.high)]

    peaks = [answer.peak_bytes for answer in answers if answer.peak_bytes is not None]
    numbers["peak_bytes"] = max(peaks, default=None)
    numbers["chance"] = float(frame.chance.mean())
    numbers["answers"] = np.bincount(frame.answer, minlength=K).tolist()

    tau = np.arange(51) / 50
    numbers["confidence_curve"] = {
        "tau": tau.tolist(),
        "correct": shares_above(tau, frame.confidence[frame.accuracy == 1]),
        "incorrect": shares_above(tau, frame.confidence[frame.accuracy == 0]),
    }
    bins = frame.groupby("bin").agg(
        count=("id", "size"), confidence=("confidence", "mean"), accuracy=("accuracy", "mean")
    )
    numbers["reliability"] = bins.reset_index().to_dict("list")

    by_seed = frame.groupby("seed").accuracy.mean()
    numbers["seed_accuracies"] = {str(seed): float(x) for seed, x in by_seed.items()}
    numbers["seeds_mean"] = float(by_seed.mean())
    numbers["seeds_sd"] = float(by_seed.std()) if len(by_seed) > 1 else None
    return numbers


def predicted(answers: Sequence[SavedAnswer]) -> dict[str, Any]:
    """The numbers that need no right answers. Those of NAMES that do are None."""
    K = max(len(answer.normalized) for answer in answers)
    numbers: dict[str, Any] = {"n": len(answers), **dict.fromkeys(NAMES)}
    values: dict[str, list[float | None]] = {
        "confidence": [answer.scores[answer.prediction] for answer in answers],
        "null": [answer.null for answer in answers],
        "on_labels": [answer.on_labels for answer in answers],
        "tokens": [answer.tokens for answer in answers],
        "seconds": [answer.seconds for answer in answers],
    }
    for name, of_answers in values.items():
        known = [value for value in of_answers if value is not None]
        numbers[name] = float(np.mean(known)) if known else None
        if name == "on_labels":
            numbers["on_labels_p5"] = float(np.quantile(known, 0.05)) if known else None
    numbers["picks"] = np.bincount([answer.prediction for answer in answers], minlength=K).tolist()
    return numbers


def shares_above(tau: Array, f: pd.Series) -> list[float] | None:
    """For each tau the share of confidences above it; None where there are none."""
    if f.empty:
        return None
    return (f.to_numpy()[:, None] > tau).mean(axis=0).tolist()


def difference(a: Sequence[SavedAnswer], b: Sequence[SavedAnswer]) -> dict[str, Any] | None:
    """The numbers of `a` minus those of `b`, over the n questions (same seed, text and answer) that
    both have; None if there are none. A resample draws the same clusters for both. The pairs of
    McNemar's exact test must be independent, so each cluster counts once, by its first question
    under the lowest seed.
    """
    of_b = {key_of(answer): answer for answer in b}
    shared_a = []
    shared_b = []
    for answer in a:
        other = of_b.get(key_of(answer))
        if other is not None and answer.answer is not None:
            shared_a.append(answer)
            shared_b.append(other)
    if not shared_a:
        return None
    frame_a = scored(shared_a)
    frame_b = scored(shared_b)
    values_a = statistic(frame_a)
    values_b = statistic(frame_b)

    def minus(weights: Array) -> Array:
        return values_a(weights) - values_b(weights)

    measured = bootstrap(minus, frame_a.cluster.to_numpy())
    gain = (frame_a.accuracy - frame_b.accuracy).groupby(frame_a.cluster).first()
    only_a = int((gain > 0).sum())
    only_b = int((gain < 0).sum())
    n = only_a + only_b
    return {
        "n": len(frame_a),
        "clusters": len(gain),
        "changed": int((frame_a.prediction != frame_b.prediction).sum()),
        "interval": measured.pop("accuracy_interval"),
        "mcnemar_p": float(binomtest(only_a, n).pvalue) if n else 1.0,
        "only_a": only_a,
        "only_b": only_b,
        **measured,
    }


def holm(ps: Sequence[float]) -> list[float]:
    """Each p value, corrected for how many there are (Holm 1979): the probability that chance alone
    brings any of them below 0.05 is then at most 5%."""
    ordered = pd.Series(ps, dtype=float).sort_values(kind="stable")
    corrected = (ordered * np.arange(len(ps), 0, -1)).clip(upper=1).cummax()
    return list(map(float, corrected.sort_index()))
