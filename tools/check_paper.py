"""Recompute those of the paper's printed numbers that can be recomputed, for docs/paper.md.

    python -m tools.check_paper

Each line says what is printed and what follows from it. The accuracies, ratios and improvements are
those of minise/evaluation/paper.json, copied as printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import floor
from pathlib import Path
from statistics import fmean
from typing import Any

from tools import markdown

PAPER = json.loads((Path(__file__).parents[1] / "minise" / "evaluation" / "paper.json").read_text())
NUMBERS = [{**number, **number["match"]} for number in PAPER["numbers"]]
NAMES = {"qasc": "QASC", "truthfulqa": "TruthfulQA", "mmlu_pro_biology": "MMLU-Pro Biology"}
# How many questions else it could be: as the text says, in the first release, in the test split.
OTHERS = {"qasc": 927, "truthfulqa": 285, "mmlu_pro_biology": 717}
MAIN = ("LLaMA-3-8B", "Mistral-7B-v0.1", "Qwen2-7B")
AVERAGES = {2: 89.85, 4: 81.97, 6: 72.10, 8: 66.81}  # the last row of the table of K
SEEDS = {"Mistral-7B-v0.1": 77.91, "Qwen2-7B": 65.87}  # two rows of the table of seeds, as printed
ON_AVERAGE = 8  # points that the conclusion claims
# The table of efficiency, LLaMA-3-8B on an A40: seconds, and GiB in the two ways of running it.
SECONDS, MEMORY = 0.78, (14.97, 15.12)
VOCABULARY, HIDDEN, PARAMETERS, BANDWIDTH = 128_256, 4096, 8_030_261_248, 696e9


def printed(what: str = "accuracy", **facts: Any) -> dict[tuple[str, str], float]:
    """The numbers of records with these facts and of no one experiment, by model and method."""
    return {
        (number["model"], number["kind"]): number[what]
        for number in NUMBERS
        if what in number and "experiment" not in number and facts.items() <= number.items()
    }


def is_share(value: float, n: int) -> bool:
    """Whether it is a whole number of n questions, in percent, rounded to two digits."""
    return f"{100 * round(value * n / 100) / n:.2f}" == f"{value:.2f}"


def is_cut(value: float, n: int) -> bool:
    """The same, cut off after two digits."""
    return floor(1e4 * floor(value * n / 100 + 0.5) / n) == round(100 * value)


def lines() -> Iterator[tuple[str, str]]:
    """What is printed, and what follows."""
    yield from counts()
    yield from averages()
    yield from contradictions()


def counts() -> Iterator[tuple[str, str]]:
    for dataset, n in PAPER["questions"].items():
        if dataset not in NAMES:
            continue
        accuracies = [
            number["accuracy"]
            for number in NUMBERS
            if number["dataset"] == dataset and "accuracy" in number
        ]
        odd = [value for value in accuracies if not is_share(value, n)]
        cut = [f"{value:.2f}" for value in odd if is_cut(value, n)]
        none = [f"{value:.2f}" for value in odd if not is_cut(value, n)]
        finding = f"{len(accuracies) - len(odd)} are whole numbers of {n} questions, rounded"
        finding += f"; {' and '.join(cut)} are, but cut off" * bool(cut)
        finding += f"; {' and '.join(none)} is not" * bool(none)
        other = OTHERS[dataset]
        fit = sum(is_share(value, other) for value in accuracies)
        yield (
            f"{NAMES[dataset]}, {len(accuracies)} accuracies",
            f"{finding}; of {other}, {fit} would be",
        )


def averages() -> Iterator[tuple[str, str]]:
    right = {}
    for K in AVERAGES:
        of = printed(dataset="qasc", choices=K, kind="standard")
        right[K] = f"{fmean(of[model, 'standard'] for model in MAIN):.2f}"
    agree = sum(right[K] == f"{value:.2f}" for K, value in AVERAGES.items())
    yield "standard at K = 2, 4, 6, 8: averages of three models", f"{agree} of {len(right)} agree"
    cells = {dataset: printed(dataset=dataset) for dataset in (*NAMES, "average")}
    eight = printed(dataset="qasc", choices=8)
    means = {
        key: fmean([eight[key], cells["truthfulqa"][key], cells["mmlu_pro_biology"][key]])
        for key in cells["average"]
    }
    agree = sum(f"{means[key]:.2f}" == f"{value:.2f}" for key, value in cells["average"].items())
    yield "main table: averages over data sets", f"{agree} of {len(means)} agree"
    wrong, count = [], 0
    for dataset in (*NAMES, "average"):
        results = eight if dataset == "qasc" else cells[dataset]
        for (model, method), gain in printed("improve", dataset=dataset).items():
            difference = results[model, method] - results[model, "standard"]
            count += 1
            if f"{difference:.2f}" != f"{gain:.2f}":
                name = f"{method} of {model} on {NAMES.get(dataset, dataset)}"
                wrong.append(f"{name} is {difference:+.2f}, printed {gain:+.2f}")
    yield "main table: improvements", f"{count - len(wrong)} of {count} agree; {'; '.join(wrong)}"
    gains = printed("improve", dataset="average", kind="self-ensemble").values()
    yield f"improves accuracy by {ON_AVERAGE}% on average", f"by {fmean(gains):.2f} points"


def contradictions() -> Iterator[tuple[str, str]]:
    n = PAPER["questions"]["qasc"]
    passes = [number["accuracy"] for number in NUMBERS if number.get("experiment") == "efficiency"]
    few, many = (round(value * n / 100) for value in passes)
    apart = f"{many - few} apart, though the two are equivalent"
    finding = f"{few} and {many} of {n} questions: {apart}"
    yield f"multi-pass {passes[0]:.2f}, single-pass {passes[1]:.2f}", finding
    sizes = {
        (number["group_size"], number["trials"]): number["accuracy"]
        for number in NUMBERS
        if number.get("experiment") == "sensitivity"
    }
    scale = printed(dataset="qasc", choices=8, kind="self-ensemble")["Qwen2.5-7B", "self-ensemble"]
    same = [f"m={m}, N={trials}" for (m, trials), value in sizes.items() if value == scale]
    finding = f"the table of sizes has {sizes[4, 20]:.2f} there, and this number at {same[0]}"
    yield f"Qwen2.5-7B with m=4, N=20: {scale:.2f}", finding
    ours = printed(dataset="qasc", choices=8, kind="self-ensemble")
    for model, other in (MAIN[1:], MAIN[:0:-1]):
        far, near = (abs(SEEDS[model] - ours[one, "self-ensemble"]) for one in (model, other))
        finding = f"{far:.2f} from its number in the main table, {near:.2f} from that of {other}"
        yield f"seeds: {model} {SEEDS[model]:.2f}", finding
    read = 2 * (PARAMETERS - VOCABULARY * HIDDEN)  # bytes; a pass looks few embeddings up
    times = [passes * read / BANDWIDTH for passes in (40, 20)]
    finding = f"to read {read / 1e9:.1f} GB of weights 40 times takes {times[0]:.2f} s at"
    finding += f" {BANDWIDTH / 1e9:.0f} GB/s, 20 times {times[1]:.2f} s"
    yield f"efficiency: {SECONDS} s for 40 groups", finding
    rows = (MEMORY[1] - MEMORY[0]) * 2**30 / (2 * VOCABULARY)
    finding = f"{MEMORY[1] - MEMORY[0]:.2f} GiB more, the bfloat16 logits of {rows:.0f} tokens"
    yield f"efficiency: {MEMORY[0]} and {MEMORY[1]} GB", finding


def table() -> str:
    return markdown.table(["printed", "recomputed"], lines())


if __name__ == "__main__":
    print(table())
