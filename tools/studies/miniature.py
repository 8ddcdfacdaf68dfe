"""Where Self-Ensemble helps on the miniature: from runs of `minise eval --experiment main`.

    python -m tools.studies.miniature runs/llama-main runs/mistral-main runs/qwen2-main
    python -m tools.studies.miniature runs/reasoner

Six tables, each of what the folders hold:

- Accuracy of standard inference by the label of the right answer, and with the best label bias.
- Accuracy by how well known a fact is: rank 1 is the best known of its kind.
- Confidence, separately for the questions that both standard inference and Self-Ensemble answer
  rightly, that only Self-Ensemble does, and that neither does. Without this split, the shares with
  f < 0.5 or f > 0.5 are over different questions for each method.
- Paired differences in accuracy, with intervals by fact.
- NLL, as it is and at the temperature that is best for other questions.
- How much wider intervals are if all questions about one fact are drawn together.

And of runs of `--experiment reasoning --task miniature-hops`: accuracy by how the training showed
the question.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minise.data.miniature import LARGEST, evaluation_questions, load_facts, shown
from minise.evaluation.metrics import SMALLEST_PROBABILITY, difference, summarise
from minise.evaluation.samples import read_samples
from minise.methods.sample import Sample
from minise.prompt import LABELS
from minise.report.tables import number, percent
from tools.markdown import table

HOPS = "miniature-hops"
RANKS = (1, 4, 8, 16, 32, 64)  # where each range begins
METHODS = ("standard", "dirichlet", "cyclic-matched", "self-ensemble")
WITHOUT_LIST = ("presence", "cloze", "recall")
PAIRS = (
    ("self-ensemble", "standard"),
    ("dirichlet", "standard"),
    ("cyclic", "standard"),
    ("self-ensemble", "cyclic-matched"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    args = parser.parse_args()
    hops = [folder for folder in args.folders if list(folder.glob(f"samples-{HOPS}*.jsonl"))]
    if hops:
        print_accuracy_by_shown(hops)
    if others := [folder for folder in args.folders if folder not in hops]:
        print_accuracy_by_label(others)
        print()
        print_accuracy_by_fame(others)
        whole = [folder for folder in others if all(samples_of(folder, name) for name in METHODS)]
        for print_table in (
            print_confidence_apart,
            print_differences,
            print_matched_losses,
            print_intervals_by_fact,
        ):
            print()
            print_table(whole)


def samples_of(folder: Path, method: str) -> list[Sample]:
    return read_samples(folder / f"samples-miniature-{method}.jsonl")


def is_right(sample: Sample) -> bool:
    return sample.prediction == sample.answer


def texts_of(samples: Sequence[Sample], world: str) -> dict[str, str]:
    """The questions by their ids."""
    size = max(int(sample.id.rsplit("-", 1)[1]) for sample in samples) + 1
    return {
        question.id: question.text
        for seed in {sample.seed for sample in samples}
        for question in evaluation_questions(size, LARGEST, seed, world)
    }


def print_accuracy_by_label(folders: Sequence[Path]) -> None:
    """A row for each run: percent of standard inference by the label of the right answer."""
    rows = []
    for folder in folders:
        samples = samples_of(folder, "standard")
        answers = np.array([sample.answer for sample in samples])
        right = np.array([is_right(sample) for sample in samples])
        shares = [right[answers == i].mean() for i in range(LARGEST)]
        best = best_bias(np.array([sample.logits for sample in samples]), answers)
        by_label = [f"{100 * share:.0f}" for share in shares]
        rows.append([folder.name, *by_label, f"{100 * right.mean():.1f}", f"{100 * best:.1f}"])
    print(table(["run", *LABELS[:LARGEST], "all", "with the best bias"], rows))


def best_bias(logits: NDArray[Any], answers: NDArray[Any]) -> float:
    """The largest accuracy (a share) that one number added to each label's logits (n, K) reaches on
    these questions themselves: label by label the best number, until none makes it better."""
    n, K = logits.shape
    z, best = logits.copy(), 0.0
    while True:
        before = best
        for k in range(K):
            others = np.delete(z, k, axis=1)
            rival = np.delete(np.arange(K), k)[others.argmax(axis=1)]
            # The label wins a question if more than `margin` is added to it.
            margin = others.max(axis=1) - z[:, k]
            order = margin.argsort()
            won, lost = (answers == k)[order], (rival == answers)[order]
            right = lost.sum() + np.concatenate([[0], np.cumsum(won) - np.cumsum(lost)])
            place = int(right.argmax())
            edges = np.concatenate([[margin.min() - 1], margin[order], [margin.max() + 1]])
            if right[place] / n > best:
                best = right[place] / n
                z[:, k] += edges[place : place + 2].mean()
        if best == before:
            return float(best)


def print_differences(folders: Sequence[Path]) -> None:
    """A row for each run, a column for each of PAIRS: points of accuracy."""
    rows = []
    for folder in folders:
        cells = []
        for pair in PAIRS:
            first, second = (samples_of(folder, method) for method in pair)
            if not (first and second):
                cells.append("-")
                continue
            lead = difference(first, second)
            cells.append(percent(lead["accuracy"], lead["interval"], "+.1f"))
        rows.append([folder.name, *cells])
    print(table(["run", *(f"{a} - {b}" for a, b in PAIRS)], rows))


def print_matched_losses(folders: Sequence[Path]) -> None:
    """A row for each run and method: NLL in nats, and its lead over rotations at equal tokens."""
    rows = []
    for folder in folders:
        rotations = samples_of(folder, "cyclic-matched")
        for method in METHODS:
            samples = samples_of(folder, method)
            metrics, lead = summarise(samples), difference(samples, rotations)
            cells = [
                number(sign * of[name], bounds)
                for of, sign in ((metrics, 1), (lead, -1))
                for name in ("nll", "nll_matched")
                if (bounds := sorted(sign * x for x in of[f"{name}_interval"]))
            ]
            rows.append([folder.name, method, *cells])
    heads = ["run", "method", "NLL", "matched NLL", "less than rotations", "matched"]
    print(table(heads, rows))


def print_intervals_by_fact(folders: Sequence[Path]) -> None:
    """A row for each run and method: how many times wider 95% intervals over facts are than those
    over questions, and the correlation within a fact."""
    names = ("accuracy", "nll")
    heads = [f"{what}: {name}" for what in ("wider", "correlation") for name in names]
    rows = []
    for folder in folders:
        for method in METHODS:
            samples = samples_of(folder, method)
            facts = summarise(samples)
            alone = summarise([replace(sample, cluster=None) for sample in samples])
            widths = [
                [np.diff(of[f"{name}_interval"])[0] for name in names] for of in (facts, alone)
            ]
            right = [float(is_right(sample)) for sample in samples]
            shares = [sample.probabilities[sample.answer or 0] for sample in samples]
            losses = [-np.log(max(p, SMALLEST_PROBABILITY)) for p in shares]
            within = [correlation(samples, values) for values in (right, losses)]
            cells = [f"{facts['questions']:,}", f"{facts['clusters']:,}"]
            cells += [f"{wide / narrow:.1f}" for wide, narrow in zip(*widths, strict=True)]
            cells += [f"{r:.2f}" for r in within]
            rows.append([folder.name, method, *cells])
    print(table(["run", "method", "questions", "facts", *heads], rows))


def correlation(samples: Sequence[Sample], values: Sequence[float]) -> float:
    """Of the values of two questions about one fact, by the analysis of variance."""
    by_fact: dict[str, list[float]] = {}
    for sample, value in zip(samples, values, strict=True):
        by_fact.setdefault(sample.cluster or sample.id, []).append(value)
    n, mean = len(values), np.mean(values)
    spread = sum(len(x) * (np.mean(x) - mean) ** 2 for x in by_fact.values())
    between = spread / (len(by_fact) - 1)
    within = sum(float(np.var(x) * len(x)) for x in by_fact.values()) / (n - len(by_fact))
    size = (n - sum(len(x) ** 2 for x in by_fact.values()) / n) / (len(by_fact) - 1)
    return float((between - within) / (between + (size - 1) * within))


def print_accuracy_by_fame(folders: Sequence[Path]) -> None:
    """A row for each run and method, a column for each range of ranks: percent (questions)."""
    ranks: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for fact in load_facts():
        kinds[fact.kind] = ranks[fact.question] = kinds.get(fact.kind, 0) + 1
    ends = [*(f"{a} to {b - 1}" for a, b in pairwise(RANKS)), f"{RANKS[-1]} on"]
    rows = []
    for folder in folders:
        for method in (*METHODS, *WITHOUT_LIST):
            if not (samples := samples_of(folder, method)):
                continue
            texts = texts_of(samples, "miniature")
            right: list[list[bool]] = [[] for _ in RANKS]
            for sample in samples:
                rank = ranks[texts[sample.id]]
                place = max(i for i, start in enumerate(RANKS) if start <= rank)
                right[place].append(is_right(sample))
            cells = [f"{100 * sum(r) / len(r):.1f} ({len(r):,})" if r else "-" for r in right]
            rows.append([folder.name, method, *cells])
    print(table(["run", "method", *(f"rank {end}" for end in ends)], rows))


def print_accuracy_by_shown(folders: Sequence[Path]) -> None:
    """A row for each method, over all folders and numbers of choices: percent (answers) for
    questions of two hops that the training shows with steps, and for those it never shows."""
    right: dict[str, dict[str, list[bool]]] = {}
    for path in sorted(path for folder in folders for path in folder.glob(f"samples-{HOPS}-k*")):
        method = path.stem.removeprefix(f"samples-{HOPS}-").split("-", 1)[1]
        samples = read_samples(path)
        texts = texts_of(samples, HOPS)
        for sample in samples:
            of = right.setdefault(method, {"with steps": [], "never": []})
            of[shown(texts[sample.id])].append(is_right(sample))
    rows = [
        [method, *(f"{100 * sum(r) / len(r):.1f} ({len(r):,})" for r in of.values())]
        for method, of in right.items()
    ]
    print(table(["method", "shown with steps", "never shown"], rows))


def print_confidence_apart(folders: Sequence[Path]) -> None:
    """A row for each run and kind of question."""
    rows = []
    for folder in folders:
        one = {sample.key: sample for sample in samples_of(folder, "standard")}
        other = {sample.key: sample for sample in samples_of(folder, "self-ensemble")}
        for name, first, second in (
            ("both right", True, True),
            ("Self-Ensemble alone right", False, True),
            ("both wrong", False, False),
        ):
            keys = [k for k in one if (is_right(one[k]), is_right(other[k])) == (first, second)]
            cells = []
            for samples in (one, other):
                f = [samples[key].probabilities[samples[key].prediction] for key in keys]
                cells += [100 * sum(p < 0.5 for p in f) / len(f)]
                cells += [100 * sum(p > 0.5 for p in f) / len(f)]
            rows.append([folder.name, name, f"{len(keys):,}", *(f"{cell:.1f}" for cell in cells)])
    both = [f"{of}f {sign} 0.5" for of in ("standard: ", "Self-Ensemble: ") for sign in "<>"]
    print(table(["run", "questions", "n", *both], rows))


if __name__ == "__main__":
    main()
