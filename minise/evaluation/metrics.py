"""The quality of a method's answers and of its confidence, with bootstrap intervals.

A cell is the lines of one task under one method. The confidence f of an answer is the probability
of the choice that it predicts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest

from minise.evaluation.rows import KEYS, Row

TAU = 0.5  # the paper's, in its table of under- and over-confidence
BINS = 15  # of the expected calibration error
RESAMPLES, AT_ONCE = 1000, 100
FOLDS = 5  # of the clusters, for the temperature of matched_nll
# The answer has probability 0 if no group held it. One such question would make the mean infinite.
SMALLEST = 1e-12
SHARES = ("accuracy", "under", "over", "flips")
LOSSES = ("nll", "matched_nll", "brier")
READ_OUT = ("confidence", "null", "on_labels")
MEANS = ("accuracy", *LOSSES, "under", "over", "flips", "tokens", *READ_OUT, "seconds")
NAMES = (*MEANS, "ece", "auroc")
Array = NDArray[np.float64]


def scored(rows: Sequence[Row]) -> pd.DataFrame:
    """A line for each answer, sorted by seed and question id, with what the metrics are means of;
    NaN where an answer has no part in one. cluster: numbers from 0, in the order of the names."""
    rows = sorted(rows, key=lambda row: (row["seed"], row["id"]))
    keys = (*KEYS, "prediction", "tokens")
    frame = pd.DataFrame({key: [row[key] for row in rows] for key in keys})
    names = [row.get("cluster") or f"\0{row['id']}" for row in rows]
    frame["cluster"] = np.unique(names, return_inverse=True)[1]
    frame["seconds"] = [row.get("seconds", np.nan) for row in rows]
    for name in ("null", "on_labels"):
        frame[name] = np.array([row.get(name) for row in rows], dtype=float)
    frame["chance"] = [1 / len(row["probabilities"]) for row in rows]
    f = np.array([row["probabilities"][row["prediction"]] for row in rows])
    p = np.array([row["probabilities"][row["answer"]] for row in rows])
    right = frame.answer == frame.prediction
    frame["confidence"], frame["accuracy"] = f, right.astype(float)
    under_all = frame.groupby(["id", "question_hash"]).seed.transform("size")
    alike = frame.groupby(["id", "question_hash", "prediction"]).seed.transform("size")
    frame["flips"] = (under_all - alike) / (under_all - 1)
    frame["bin"] = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], f)
    frame["under"] = np.where(right, f < TAU, np.nan)
    frame["over"] = np.where(right, np.nan, f > TAU)
    frame["nll"] = -np.log(np.maximum(p, SMALLEST))
    frame["matched_nll"] = matched(rows, frame.cluster.to_numpy())
    frame["brier"] = [sum(x * x for x in row["probabilities"]) for row in rows] - 2 * p + 1
    return frame


def matched(rows: Sequence[Row], cluster: NDArray[np.int64]) -> Array:
    """Each answer's -log p(answer) at the temperature that is best on the other folds (n,)."""
    log_p = np.full((len(rows), max(len(row["probabilities"]) for row in rows)), -np.inf)
    for line, row in zip(log_p, rows, strict=True):
        line[: len(row["probabilities"])] = np.log(np.maximum(row["probabilities"], SMALLEST))
    right = log_p[np.arange(len(rows)), [row["answer"] for row in rows]]
    top = log_p.max(axis=1)

    def losses(sharper: float, of: NDArray[np.bool_]) -> Array:
        """`sharper` is log(1 / T). As a function of 1 / T each loss is convex."""
        b = np.exp(sharper)
        spread = np.exp(b * (log_p[of] - top[of, None])).sum(axis=1)
        return np.asarray(np.log(spread) - b * (right[of] - top[of]))

    def objective(x: float, of: NDArray[np.bool_]) -> float:
        # Without the prior of log T a cell that is all right would have T = 0.
        return float(losses(x, of).mean() + x**2 / (8 * len(np.unique(cluster[of]))))

    order = np.random.Generator(np.random.PCG64(0)).permutation(cluster.max() + 1)
    folds = (order % FOLDS)[cluster]
    result = np.full(len(rows), np.nan)
    for fold in np.unique(folds):
        if (others := folds != fold).any():
            tight = {"xatol": 1e-8}
            best = minimize_scalar(objective, bounds=(-5, 5), args=(others,), options=tight)
            result[~others] = losses(best.x, ~others)
    return result


def statistic(frame: pd.DataFrame) -> Callable[[Array], Array]:
    """NAMES, as columns, as a function of the weights of the answers (R, n), a resample a row."""
    x = frame[list(MEANS)].to_numpy(float)
    x, has = np.nan_to_num(x), (~np.isnan(x)).astype(float)
    right, gap = frame.accuracy.to_numpy(), (frame.accuracy - frame.confidence).to_numpy()
    in_bin = (frame.bin.to_numpy()[:, None] == np.arange(BINS)).astype(float)
    order = frame.confidence.to_numpy().argsort(kind="stable")
    begins = np.unique(frame.confidence.to_numpy()[order], return_index=True)[1]

    def of(weights: Array) -> Array:
        # In a bin, answers * |accuracy - mean f| is |sum of (right - f)|.
        ece = np.abs((weights * gap) @ in_bin).sum(axis=1) / weights.sum(axis=1)
        hits, misses = (
            np.add.reduceat((weights * part)[:, order], begins, axis=1)
            for part in (right, 1 - right)
        )
        won = (hits * (misses.cumsum(axis=1) - misses / 2)).sum(axis=1)
        auroc = won / (hits.sum(axis=1) * misses.sum(axis=1))
        return np.column_stack([weights @ x / (weights @ has), ece, auroc])

    return of


@np.errstate(invalid="ignore")  # 0 / 0 is NaN: not defined
def bootstrap(of: Callable[[Array], Array], cluster: NDArray[np.int64]) -> dict[str, Any]:
    """The values of all answers by NAMES, and as NAME_interval their 95% percentile intervals:
    clusters are drawn, each with all its answers. None: not defined; such resamples do not count.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    size = int(cluster.max()) + 1
    drawn = []
    for start in range(0, RESAMPLES, AT_ONCE):
        number = min(AT_ONCE, RESAMPLES - start)
        places = generator.integers(size, size=(number, size)) + size * np.arange(number)[:, None]
        counts = np.bincount(places.ravel(), minlength=number * size).reshape(number, size)
        drawn.append(of(counts[:, cluster].astype(float)))
    bounds = pd.DataFrame(np.concatenate(drawn), columns=NAMES).quantile([0.025, 0.975])
    numbers: dict[str, Any] = {}
    for name, value in zip(NAMES, of(np.ones((1, len(cluster))))[0], strict=True):
        numbers[name] = None if np.isnan(value) else float(value)
        is_known = bounds[name].notna().all()
        numbers[f"{name}_interval"] = bounds[name].tolist() if is_known else None
    return numbers


def measure(rows: Sequence[Row]) -> dict[str, Any]:
    """All numbers of a cell, ready for JSON; None where one is not defined. docs/evaluation.md says
    what each is. A share of 0 or 100% has the interval of Wilson."""
    most = max(len(row["probabilities"]) for row in rows)
    picks = np.bincount([row["prediction"] for row in rows], minlength=most).tolist()
    if any(row["answer"] is None for row in rows):
        return {"n": len(rows), "picks": picks}
    frame = scored(rows)
    numbers = bootstrap(statistic(frame), frame.cluster.to_numpy())
    for name in SHARES:
        if numbers[name] in (0.0, 1.0):
            n = frame.cluster[frame[name].notna()].nunique()
            test = binomtest(round(numbers[name] * n), n)
            numbers[f"{name}_interval"] = list(map(float, test.proportion_ci(method="wilson")))
    by_seed = frame.groupby("seed").accuracy.mean()
    taus = np.arange(51) / 50
    curve: dict[str, Any] = {"tau": taus.tolist()}
    for name, is_right in (("correct", 1), ("incorrect", 0)):
        f = frame.confidence[frame.accuracy == is_right].to_numpy()
        curve[name] = (f[:, None] > taus).mean(axis=0).tolist() if len(f) else None
    bins = frame.groupby("bin").agg(
        count=("id", "size"), confidence=("confidence", "mean"), accuracy=("accuracy", "mean")
    )
    return {
        "n": len(frame),
        "questions": frame.id.nunique(),
        "clusters": int(frame.cluster.max()) + 1,
        **numbers,
        "peak_bytes": max((row["peak_bytes"] for row in rows if "peak_bytes" in row), default=None),
        "on_labels_p5": frame.on_labels.quantile(0.05) if frame.on_labels.notna().any() else None,
        "chance": float(frame.chance.mean()),
        "picks": picks,
        "answers": np.bincount(frame.answer, minlength=most).tolist(),
        "confidence_curve": curve,
        "reliability": bins.reset_index().to_dict("list"),
        "seed_accuracies": {str(seed): float(x) for seed, x in by_seed.items()},
        "seeds_mean": float(by_seed.mean()),
        "seeds_sd": float(by_seed.std()) if len(by_seed) > 1 else None,
    }


def difference(a: Sequence[Row], b: Sequence[Row]) -> dict[str, Any] | None:
    """The numbers of `a` minus those of `b`, over the n questions (same seed, text and answer) that
    both have; None if there are none. A resample draws the same clusters for both. The pairs of
    McNemar's exact test must be independent, so each cluster counts once, by its first question
    under the lowest seed.
    """
    of_a, of_b = ({tuple(row[key] for key in KEYS): row for row in side} for side in (a, b))
    shared = [key for key in of_a if key in of_b and key[-1] is not None]
    if not shared:
        return None
    one, other = (scored([side[key] for key in shared]) for side in (of_a, of_b))
    value_a, value_b = statistic(one), statistic(other)
    measured = bootstrap(lambda w: value_a(w) - value_b(w), one.cluster.to_numpy())
    gain = (one.accuracy - other.accuracy).groupby(one.cluster).first()
    only_a, only_b = int((gain > 0).sum()), int((gain < 0).sum())
    n = only_a + only_b
    return {
        "n": len(one),
        "clusters": len(gain),
        "changed": int((one.prediction != other.prediction).sum()),
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
