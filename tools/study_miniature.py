"""Where Self-Ensemble helps on the miniature: from runs of `minise eval --experiment main`.

    python tools/study_miniature.py runs/llama-main runs/mistral-main runs/qwen2-main
    python tools/study_miniature.py runs/reasoner

Two tables. Accuracy by how well known a fact is: rank 1 is the best known of its kind. And
confidence apart for the questions that standard inference and Self-Ensemble both answer rightly,
that Self-Ensemble alone does, and that neither does: the shares with f < 0.5, or f > 0.5, of one
method are over other questions than those of the other. And of runs of `--experiment reasoning
--task miniature-hops`: accuracy by how the training showed the question.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from minise.evaluation.samples import Sample, read_samples
from minise.miniature import LARGEST, evaluation_questions, load_facts, shown

HOPS = "miniature-hops"
RANKS = (1, 4, 8, 16, 32, 64)  # where each range begins
METHODS = ("standard", "dirichlet", "cyclic-matched", "self-ensemble")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    args = parser.parse_args()
    hops = [folder for folder in args.folders if list(folder.glob(f"samples-{HOPS}*.jsonl"))]
    if hops:
        print_accuracy_by_shown(hops)
    if others := [folder for folder in args.folders if folder not in hops]:
        print_accuracy_by_fame(others)
        print()
        print_confidence_apart(others)


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


def print_accuracy_by_fame(folders: Sequence[Path]) -> None:
    """A row for each run and method, a column for each range of ranks: percent (questions)."""
    ranks: dict[str, int] = {}
    kinds: dict[str, int] = {}
    for fact in load_facts():
        kinds[fact.kind] = ranks[fact.question] = kinds.get(fact.kind, 0) + 1
    ends = [*(f"{a} to {b - 1}" for a, b in pairwise(RANKS)), f"{RANKS[-1]} on"]
    print("| run | method | " + " | ".join(f"rank {end}" for end in ends) + " |")
    print("|---|---|" + "---|" * len(ends))
    for folder in folders:
        for method in METHODS:
            samples = samples_of(folder, method)
            texts = texts_of(samples, "miniature")
            right: list[list[bool]] = [[] for _ in RANKS]
            for sample in samples:
                rank = ranks[texts[sample.id]]
                place = max(i for i, start in enumerate(RANKS) if start <= rank)
                right[place].append(is_right(sample))
            cells = [f"{100 * sum(r) / len(r):.1f} ({len(r):,})" if r else "-" for r in right]
            print(f"| {folder.name} | {method} | " + " | ".join(cells) + " |")


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
    print("| method | shown with steps | never shown |\n|---|---|---|")
    for method, of in right.items():
        cells = [f"{100 * sum(r) / len(r):.1f} ({len(r):,})" for r in of.values()]
        print(f"| {method} | " + " | ".join(cells) + " |")


def print_confidence_apart(folders: Sequence[Path]) -> None:
    """A row for each run and kind of question."""
    print(
        "| run | questions | n | standard: f < 0.5 | f > 0.5 | Self-Ensemble: f < 0.5 | f > 0.5 |"
    )
    print("|---|---|---|---|---|---|---|")
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
            for found in (one, other):
                f = [found[key].probabilities[found[key].prediction] for key in keys]
                cells += [100 * sum(p < 0.5 for p in f) / len(f)]
                cells += [100 * sum(p > 0.5 for p in f) / len(f)]
            shares = " | ".join(f"{cell:.1f}" for cell in cells)
            print(f"| {folder.name} | {name} | {len(keys):,} | {shares} |")


if __name__ == "__main__":
    main()
