"""The quality of a method's answers and of its confidence, with bootstrap intervals.

A cell is the samples of one task under one method, one for each seed and question. The confidence
f of a sample is the probability of the choice that it predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minise.errors import InputError, quote
from minise.loading.plugin import load_extra
from minise.methods.sample import Sample

TAU = 0.5  # the paper's, in its table of under- and over-confidence
BINS = 15  # of the expected calibration error
RESAMPLES = 1000
FOLDS = 5  # of the questions, for the temperature of nll_matched
# The answer has probability 0 if no group held it. One such question would make the mean infinite.
SMALLEST_PROBABILITY = 1e-12

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
_LOSSES = ("nll", "nll_matched", "brier")  # these are no shares
Ratios = dict[str, tuple[Array, Array]]  # numbers that are the sum of one column by that of another
Statistics = Callable[[Array], dict[str, Any]]  # of the weights of the samples (n,)


def summarise(samples: Sequence[Sample]) -> dict[str, Any]:
    """All numbers of a cell, ready for JSON. A number that is not defined is None.

    - accuracy: the share of right predictions.
    - nll: the mean of -log p(answer) in nats, where p is at least 1e-12.
    - nll_matched: the same after p ** (1 / T), normalised, where T is the one temperature that is
      best on other clusters (see below), in five folds. A method that is only flatter or sharper
      than another has nearly the same. log T has a normal prior of deviation 2: where a method is
      right on all other clusters, no T would be sharp enough. Not defined for a single cluster.
    - brier: the mean of sum_k (p_k - y_k)^2, from 0 to 2.
    - ece_width: the expected calibration error. 15 bins of equal width divide the samples by f, an
      upper edge belongs to its bin, and |accuracy - mean f| is averaged over the samples.
    - auroc: the probability that f is larger for a right prediction than for a wrong one; a tie
      counts half.
    - under_confidence: the share of f < 0.5 among the right predictions. over_confidence: the share
      of f > 0.5 among the wrong ones (the paper's appendix, Table "Under-confidence and
      over-confidence ratios"). With "_scores" f is the score, the mean of Eq. 2; scores need not
      sum to 1. The paper does not say which of the two it takes.

    NAME + "_interval" is the 95% interval of each of these: a percentile bootstrap over clusters.
    At 0 and 100% all resamples are equal; there a share has the Wilson interval of its clusters.
    A cluster is what `Sample.cluster` names, such as a fact; without that it is the question's id,
    and in any case all seeds of a question are drawn together: one question under five seeds is not
    five questions. A resample in which a number is not defined does not count. The ECE is biased
    upwards, and a resample adds to the bias: its interval can even exclude the value.

    Also: n (samples), questions, clusters, confidence (the mean f), tokens (mean per sample), the
    accuracy of each seed with mean and sample standard deviation, and confidence_curve (Section
    3.1): the share of samples with f > "tau", separately for "correct" and "incorrect" predictions.
    chance: the mean of 1/K. reliability: the bins of ece_width, each with its samples ("count"),
    how many "questions" they are of, their mean f ("confidence") and their accuracy; None in an
    empty bin.

    Raises InputError for a cell that is empty or has a question twice under one seed, and for
    probabilities, an answer or a prediction that cannot be.
    """
    ordered = list(_by_key(samples).values())
    cluster = _clusters(ordered)
    f, ratios = _read(ordered, cluster)
    correct = ratios["accuracy"][0]
    bin_of = np.searchsorted(_bin_edges()[1:-1], f)
    return {
        "n": len(ordered),
        "questions": len({sample.id for sample in ordered}),
        "clusters": int(cluster.max()) + 1,
        **_widened(_bootstrap(_statistics(f, ratios, bin_of), cluster), ratios, cluster),
        "confidence": float(f.mean()),
        "bins": BINS,
        "tau": TAU,
        "resamples": RESAMPLES,
        "confidence_curve": _confidence_curve(f, correct),
        "reliability": _reliability(ordered, f, correct, bin_of),
        "chance": mean(1 / len(sample.probabilities) for sample in ordered),
        "tokens": mean(float(sample.tokens) for sample in ordered),
        **_by_seed(ordered, correct),
    }


def difference(a: Sequence[Sample], b: Sequence[Sample]) -> dict[str, Any]:
    """The numbers of cell `a` minus those of cell `b`, over the n samples (same seed and question)
    that both have.

    accuracy (with its 95% "interval"), nll, nll_matched, under_confidence and over_confidence; None
    if one of the two values is not defined. The intervals are paired: a resample draws the same
    clusters for both.

    changed: how many samples the two predict differently.

    mcnemar_p: the exact two-sided McNemar test of only_a, the number of questions that only a
    answers right, against only_b. The pairs of this test must be independent, so each cluster
    counts once, by its first question under the lowest seed that both cells have.

    Raises InputError as `summarise` does, for cells that share no sample, and for cells that share
    a seed and an id of two different questions.
    """
    a_by_key, b_by_key = _by_key(a), _by_key(b)
    pairs = [(one, b_by_key[key]) for key, one in a_by_key.items() if key in b_by_key]
    if not pairs:
        raise InputError("the two methods share no question under one seed; run both on the same")
    for one, other in pairs:
        if (one.question_hash, one.answer) != (other.question_hash, other.answer):
            where = f"question {quote(one.id)}, seed {one.seed}"
            raise InputError(f"{where}: it is not the same for both methods; run both on one task")
    cluster = _clusters([one for one, _ in pairs])
    a_ratios, b_ratios = (_read(side, cluster)[1] for side in zip(*pairs, strict=True))

    def statistics(weights: Array) -> dict[str, Any]:
        of_a, of_b = _divided(a_ratios, weights), _divided(b_ratios, weights)
        names = ("accuracy", "nll", "nll_matched", "under_confidence", "over_confidence")
        return {name: of_a[name] - of_b[name] for name in names}

    measured = _bootstrap(statistics, cluster)
    by_cluster: dict[int, int] = {}  # 1: only a is right; -1: only b
    for number, (one, other) in zip(cluster.tolist(), pairs, strict=True):  # in order of seeds
        right_a, right_b = (sample.prediction == sample.answer for sample in (one, other))
        by_cluster.setdefault(number, right_a - right_b)
    only_a, only_b = (list(by_cluster.values()).count(sign) for sign in (1, -1))
    return {
        "changed": sum(one.prediction != other.prediction for one, other in pairs),
        "n": len(pairs),
        "questions": len({one.id for one, _ in pairs}),
        "clusters": len(by_cluster),
        "accuracy": measured.pop("accuracy"),
        "interval": measured.pop("accuracy_interval"),
        "mcnemar_p": _mcnemar(only_a, only_b),
        "only_a": only_a,
        "only_b": only_b,
        **measured,
    }


def _mcnemar(only_a: int, only_b: int) -> float:
    """The p value of the exact two-sided test that neither count is favoured; 1 for no pairs."""
    n = only_a + only_b
    return float(load_extra("scipy.stats").binomtest(only_a, n, 0.5).pvalue) if n else 1.0


def _by_key(samples: Sequence[Sample]) -> dict[tuple[int, str], Sample]:
    """Sorted by seed and question id: no number depends on the order of a file."""
    by_key = {sample.key: sample for sample in sorted(samples, key=lambda sample: sample.key)}
    if not by_key or len(by_key) < len(samples):
        counts = f"{len(samples)} samples for {len(by_key)} pairs of seed and question"
        raise InputError(f"{counts}; give the samples of one task and one method")
    return by_key


def _clusters(samples: Sequence[Sample]) -> Labels:
    """The number of each sample's cluster (n,): 0, 1, ..., in the order of their names."""
    names = [(sample.cluster or "", "" if sample.cluster else sample.id) for sample in samples]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names])


def _read(samples: Sequence[Sample], cluster: Labels) -> tuple[Array, Ratios]:
    """The confidence of each sample (n,), and the columns (n,) of each ratio."""
    rows = []
    for sample in samples:
        if problem := sample.problem():
            raise InputError(f"question {quote(sample.id)}, seed {sample.seed}: {problem}")
        p, answer, best = sample.probabilities, sample.answer, sample.prediction
        if answer is None:
            raise InputError(f"question {quote(sample.id)} has no answer, so nothing is measured")
        square = sum((x - (k == answer)) ** 2 for k, x in enumerate(p))
        rows.append((p[best], sample.scores[best], p[answer], best == answer, square))
    f, scores, p_answer, right, brier = np.array(list(zip(*rows, strict=True)), dtype=np.float64)
    wrong, all_of_them = 1 - right, np.ones(len(samples))
    return f, {
        "accuracy": (right, all_of_them),
        "nll": (-np.log(np.maximum(p_answer, SMALLEST_PROBABILITY)), all_of_them),
        "nll_matched": (_matched(samples, cluster), all_of_them),
        "brier": (brier, all_of_them),
        "under_confidence": (right * (f < TAU), right),
        "over_confidence": (wrong * (f > TAU), wrong),
        "under_confidence_scores": (right * (scores < TAU), right),
        "over_confidence_scores": (wrong * (scores > TAU), wrong),
    }


def _widened(measured: dict[str, Any], ratios: Ratios, cluster: Labels) -> dict[str, Any]:
    """With Wilson's intervals for shares of 0 and 100%."""
    for name, (_, whole) in ratios.items():
        if measured[name] in (0.0, 1.0) and name not in _LOSSES:
            n = len(np.unique(cluster[whole > 0]))
            measured[f"{name}_interval"] = wilson_interval(measured[name], n)
    return measured


def wilson_interval(share: float, n: int) -> list[float]:
    """Wilson's 95% interval of a share of n."""
    test = load_extra("scipy.stats").binomtest(round(share * n), n)
    low, high = test.proportion_ci(method="wilson")
    return [float(low), float(high)]


def _statistics(f: Array, ratios: Ratios, bin_of: Labels) -> Statistics:
    """The numbers of a cell that have an interval, as a function of the samples' weights."""
    correct = ratios["accuracy"][0]
    level = np.unique(f, return_inverse=True)[1]  # the rank of f, equal ones together

    def statistics(weights: Array) -> dict[str, Any]:
        # In a bin, samples * |accuracy - mean f| is |sum of (correct - f)|.
        gaps = np.bincount(bin_of, weights * (correct - f))
        right = np.bincount(level, weights * correct)
        wrong = np.bincount(level, weights * (1 - correct))
        won = right @ (np.cumsum(wrong) - wrong / 2)
        return {
            **_divided(ratios, weights),
            "ece_width": np.abs(gaps).sum() / weights.sum(),
            "auroc": won / (right.sum() * wrong.sum()),
        }

    return statistics


def _bin_edges() -> Array:
    return np.linspace(0, 1, BINS + 1)


def _reliability(
    samples: Sequence[Sample], f: Array, correct: Array, bin_of: Labels
) -> dict[str, list[Any]]:
    """The bins of the ECE, as `summarise` describes them."""
    members = [np.flatnonzero(bin_of == i) for i in range(BINS)]
    return {
        "edges": _bin_edges().tolist(),
        "count": [len(bin) for bin in members],
        "questions": [len({samples[int(i)].id for i in bin}) for bin in members],
        "confidence": [float(f[bin].mean()) if len(bin) else None for bin in members],
        "accuracy": [float(correct[bin].mean()) if len(bin) else None for bin in members],
    }


def _confidence_curve(f: Array, correct: Array) -> dict[str, list[float] | None]:
    """The shares of f > tau of right and of wrong predictions; None where there are none."""
    taus = np.arange(51) / 50
    curve: dict[str, list[float] | None] = {"tau": taus.tolist()}
    for name, part in [("correct", f[correct == 1]), ("incorrect", f[correct == 0])]:
        curve[name] = (part[:, None] > taus).mean(axis=0).tolist() if part.size else None
    return curve


def _by_seed(samples: Sequence[Sample], correct: Array) -> dict[str, Any]:
    """The accuracy of each seed, and their mean and sample standard deviation."""
    seeds = np.array([sample.seed for sample in samples])
    accuracies = {str(seed): float(correct[seeds == seed].mean()) for seed in np.unique(seeds)}
    return {
        "seeds": accuracies,
        "accuracy_seeds_mean": mean(accuracies.values()),
        "accuracy_seeds_std": stdev(accuracies.values()) if len(accuracies) > 1 else None,
    }


def _matched(samples: Sequence[Sample], cluster: Labels) -> Array:
    """Each sample's -log p(answer) at the temperature that is best on the other folds (n,)."""
    log_p = np.full((len(samples), max(len(s.probabilities) for s in samples)), -np.inf)
    for row, sample in zip(log_p, samples, strict=True):
        p = np.maximum(sample.probabilities, SMALLEST_PROBABILITY)
        row[: len(p)] = np.log(p)
    right = log_p[np.arange(len(samples)), [sample.answer or 0 for sample in samples]]
    top = log_p.max(axis=1)

    def losses(sharper: float, of: NDArray[np.bool_]) -> Array:
        """`sharper` is log(1 / T). As a function of 1 / T each loss is convex."""
        b = np.exp(sharper)
        spread = np.exp(b * (log_p[of] - top[of, None])).sum(axis=1)
        return np.log(spread) - b * (right[of] - top[of])

    count = int(cluster.max()) + 1
    folds = (np.random.Generator(np.random.PCG64(0)).permutation(count) % FOLDS)[cluster]
    matched = np.full(len(samples), np.nan)
    minimize = load_extra("scipy.optimize").minimize_scalar
    for fold in np.unique(folds):
        if (others := folds != fold).any():
            size = len(np.unique(cluster[others]))
            # Without the prior a cell that is all right would have T = 0.
            mean_of = partial(lambda of, n, x: losses(x, of).mean() + x**2 / (8 * n), others, size)
            best = minimize(mean_of, bounds=(-5, 5), method="bounded", options={"xatol": 1e-8})
            matched[~others] = losses(best.x, ~others)
    return matched


def _divided(ratios: Ratios, weights: Array) -> dict[str, Any]:
    return {name: weights @ a / (weights @ b) for name, (a, b) in ratios.items()}


@np.errstate(invalid="ignore")  # 0 / 0 is NaN: not defined
def _bootstrap(statistics: Statistics, cluster: Labels) -> dict[str, Any]:
    """Each statistic of samples of these clusters (n,), and its 95% percentile interval."""
    generator = np.random.Generator(np.random.PCG64(0))
    size = int(cluster.max()) + 1
    resampled = []
    for _ in range(RESAMPLES):
        counts = np.bincount(generator.integers(size, size=size), minlength=size)
        resampled.append(statistics(counts[cluster].astype(np.float64)))
    measured: dict[str, Any] = {}
    for name, value in statistics(np.ones(len(cluster))).items():
        values = np.array([numbers[name] for numbers in resampled])
        values = values[~np.isnan(values)]
        interval = np.quantile(values, [0.025, 0.975]).tolist() if values.size else None
        measured[name] = None if np.isnan(value) else float(value)
        measured[f"{name}_interval"] = interval
    return measured
