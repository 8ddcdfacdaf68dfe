"""Records of runs of `minise eval` in answers/, and the numbers that pages show of them.

python -m tools.studies.records RUN NAME --model "MODEL, dequantised from Q4_K_M"

keeps the answers of a finished run, without its texts, with four digits a number; with `--groups`
also every prompt's output.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from minise.lab.evaluation.cuts import read_cuts
from minise.lab.evaluation.metrics import difference, measure
from minise.lab.evaluation.results import read_run
from minise.lab.evaluation.rows import answer_of
from minise.lab.methods.saved import SavedAnswer

RECORDS = Path(__file__).parent / "answers"
DOCS = Path(__file__).parents[2] / "docs"
KEPT = (
    "id",
    "seed",
    "cluster",
    "question_hash",
    "answer",
    "prediction",
    "label",
    "on_labels",
    "null",
    "tokens",
    "notes",
)
RESAMPLES = 10_000
SIGNS = 100_000  # draws of random signs
DRAWS = 1_000  # random subsets of the trials, of each size


def record(run: Path, name: str, model: str, groups: bool) -> None:
    """Write a run into answers/NAME. `model`: its name; the run knows a folder. groups: keep
    every prompt's output, too."""
    done = read_run(run)
    folder = RECORDS / name
    folder.mkdir(parents=True)
    what = {**done.content["config"], "model": model, "shards": 1, "cuts": cuts_of(run)}
    about = re.sub(r"\"Question\(.* id='(\S+)',.*\"", r'"\1"', json.dumps(what, indent=1))
    (folder / "run.json").write_text(about + "\n")
    for task, by_method in done.answers.items():
        for method, answers in by_method.items():
            lines = []
            for answer in answers:
                line = {name: short(getattr(answer, name)) for name in KEPT}
                line["probabilities"] = short(answer.normalized)
                if groups and answer.groups is not None:
                    line["groups"] = [short(asdict(group)) for group in answer.groups]
                lines.append(json.dumps(line) + "\n")
            packed = gzip.compress("".join(lines).encode(), mtime=0)
            (folder / f"{task}-{method}.jsonl.gz").write_bytes(packed)


def cuts_of(run: Path) -> dict[str, list[dict[str, Any]]]:
    """When and where each shard of a run was under way, as the program wrote it."""
    return {path.stem: read_cuts(path) for path in sorted(run.glob("cuts*.jsonl"))}


def short(value: Any) -> Any:
    """The value with four digits for each number that is not whole."""
    if isinstance(value, dict):
        return {name: short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


@cache
def answers_of(cell: str) -> list[SavedAnswer]:
    """The answers of "NAME/TASK-METHOD". Records hold no scores, but these follow: a trial lists
    each choice once, so the scores of a question have the sum of what its prompts give to choices:
    the number of a trial's prompts, times 1 less the mean of "None of the above"."""
    packed = (RECORDS / f"{cell}.jsonl.gz").read_bytes()
    prompts = prompts_of_trial(cell)
    answers = []
    for text in gzip.decompress(packed).splitlines():
        line = json.loads(text)
        line["normalized"] = line.pop("probabilities")
        total = prompts * (1 - (line["null"] or 0))
        scores = [total * p for p in line["normalized"]]
        answers.append(answer_of({**line, "scores": scores}))
    return answers


def prompts_of_trial(cell: str) -> int:
    """How many prompts list all choices once, by what run.json says of the method."""
    name, _, rest = cell.partition("/")
    tasks = json.loads((RECORDS / name / "run.json").read_text("utf-8"))["tasks"]
    task = max((task for task in tasks if rest.startswith(f"{task}-")), key=len)
    methods = tasks[task]["methods"]
    method = methods[rest.removeprefix(f"{task}-")]
    if method["kind"] == "first-trials":
        method = methods[method["settings"]["of"]]
    choices = int(tasks[task]["choices"])
    if method["kind"] == "presence":
        return choices
    return math.ceil(choices / method["settings"].get("group_size", choices))


@cache
def numbers(cell: str) -> dict[str, Any]:
    return measure(answers_of(cell))


def minus(cell: str, other: str) -> dict[str, Any]:
    """The numbers of a cell minus those of another one, over the questions that both have."""
    found = difference(answers_of(cell), answers_of(other))
    assert found, f"{cell} and {other} have no question in common"
    return found


def gain(cells: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    """The accuracy of cells minus that of others, with an interval of 95% by resampling
    questions."""
    gains = gains_of(cells, others)
    generator = np.random.default_rng(0)
    means = []
    for _ in range(RESAMPLES):
        means.append(gains[generator.integers(0, len(gains), len(gains))].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    return {"n": len(gains), "accuracy": gains.mean(), "interval": [low, high]}


def gains_of(cells: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """The gain of each question that both have. It counts once: by the mean over its seeds or
    prompts."""
    shares = shares_right(cells)
    other_shares = shares_right(others)
    shared = sorted(shares.keys() & other_shares.keys())
    return np.array([shares[key] - other_shares[key] for key in shared])


def sign_p(gains: np.ndarray) -> float:
    """How often the mean of the questions' gains is as far from 0, on either side, if each gain may
    as well have the other sign."""
    generator = np.random.default_rng(0)
    observed = abs(gains.mean()) - 1e-12  # equal sums may differ in their last bit
    as_far = 0
    for _ in range(SIGNS // 1_000):
        signs = generator.choice([-1.0, 1.0], size=(1_000, len(gains)))
        means = (signs * gains).mean(axis=1)
        as_far += int((abs(means) >= observed).sum())
    return (1 + as_far) / (1 + SIGNS)


def shares_right(cells: Sequence[str]) -> dict[str, float]:
    """For each question, by its hash, the share of its answers that are right."""
    right: dict[str, list[bool]] = {}
    for cell in cells:
        for answer in answers_of(cell):
            right.setdefault(answer.question_hash, []).append(answer.prediction == answer.answer)
    return {question: sum(of_one) / len(of_one) for question, of_one in right.items()}


def of_subsets(cell: str, sizes: Sequence[int]) -> dict[int, float]:
    """The accuracy of the mean over as many random trials of a record with groups. Every trial must
    have each choice once. The same subsets are drawn for all questions; the mean over the draws."""
    answers = answers_of(cell)
    right_choice = np.array([answer.answer for answer in answers])
    groups_of_first = answers[0].groups
    assert groups_of_first is not None, f"{cell} was recorded without its groups"
    trials = 1 + max(group.trial for group in groups_of_first)
    by_trial = np.full((trials, len(answers), len(answers[0].normalized)), np.nan)
    for i, answer in enumerate(answers):
        for group in answer.groups or ():
            by_trial[group.trial, i, group.choices] = group.probabilities
    assert not np.isnan(by_trial).any(), f"a trial of {cell} has not all choices"
    generator = np.random.default_rng(0)
    accuracies = {}
    for size in sizes:
        total = 0.0
        for _ in range(DRAWS):
            chosen = generator.choice(trials, size, replace=False)
            predictions = by_trial[chosen].mean(axis=0).argmax(axis=1)
            total += (predictions == right_choice).mean()
        accuracies[size] = total / DRAWS
    return accuracies


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--model", required=True)
    parser.add_argument("--groups", action="store_true", help="keep every prompt's output")
    wanted = parser.parse_args()
    record(wanted.run, wanted.name, wanted.model, wanted.groups)


if __name__ == "__main__":
    main()
