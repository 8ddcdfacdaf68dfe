"""Records of runs of `minise eval` in docs/real/, and the forms of the tables made from them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from minise.evaluation.metrics import difference, holm, measure
from minise.evaluation.results import read_run
from minise.evaluation.rows import answer_of
from minise.methods.saved import SavedAnswer
from tools import markdown

RECORDS = Path(__file__).parents[1] / "docs" / "real"
KEPT = (
    *("id", "seed", "cluster", "question_hash", "answer", "prediction"),
    *("probabilities", "label", "on_labels", "null", "tokens", "notes"),
)
SHARES = ("accuracy", "under", "over", "confidence", "null", "on_labels", "flips")


def record(run: Path, name: str, model: str) -> None:
    """Write a run into docs/real/NAME. `model`: its name; the run knows a folder."""
    done = read_run(run)
    folder = RECORDS / name
    folder.mkdir(parents=True)
    what = {**done.content["config"], "model": model, "shards": 1}
    about = re.sub(r"\"Question\(.* id='(\S+)',.*\"", r'"\1"', json.dumps(what, indent=1))
    (folder / "run.json").write_text(about + "\n")
    for task, by_method in done.answers.items():
        for method, answers in by_method.items():
            lines = []
            for answer in answers:
                line = {name: short(getattr(answer, name)) for name in KEPT}
                lines.append(json.dumps(line) + "\n")
            packed = gzip.compress("".join(lines).encode(), mtime=0)
            (folder / f"{task}-{method}.jsonl.gz").write_bytes(packed)


def short(value: Any) -> Any:
    """The value with four digits for each number that is not whole."""
    if isinstance(value, list):
        return [short(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


@cache
def answers_of(cell: str) -> list[SavedAnswer]:
    """The answers of "NAME/TASK-METHOD". Records hold no scores."""
    packed = (RECORDS / f"{cell}.jsonl.gz").read_bytes()
    answers = []
    for text in gzip.decompress(packed).splitlines():
        line = json.loads(text)
        answers.append(answer_of({**line, "scores": line["probabilities"]}))
    return answers


@cache
def numbers(cell: str) -> dict[str, Any]:
    return measure(answers_of(cell))


def minus(cell: str, other: str) -> dict[str, Any]:
    """The numbers of a cell minus those of another one, over the questions that both have."""
    found = difference(answers_of(cell), answers_of(other))
    assert found, f"{cell} and {other} have no question in common"
    return found


@dataclass(frozen=True)
class Table:
    """rows: what they are called, and the beginning of their cells. columns: a title, the rest of
    the cell, and a number that `measure` gives."""

    head: str
    rows: Sequence[tuple[str, str]]
    columns: Sequence[tuple[str, str, str]]

    def text(self) -> str:
        titles = [*self.head.split(" | "), *(title for title, _, _ in self.columns)]
        body = []
        for label, start in self.rows:
            shown = [written(numbers(start + end), name) for _, end, name in self.columns]
            body.append([label, *shown])
        return markdown.table(titles, body)


@dataclass(frozen=True)
class Differences:
    """pairs: a name and two cells; the first minus the second, by exact McNemar tests and Holm."""

    head: str
    pairs: Sequence[tuple[str, ...]]

    def text(self) -> str:
        found = [minus(a, b) for _, a, b in self.pairs]
        corrected = holm([one["mcnemar_p"] for one in found])
        titles = [*self.head.split(" | "), "questions", "points", "p", "Holm"]
        body = []
        for (label, *_), one, p in zip(self.pairs, found, corrected, strict=True):
            low, high = (f"{100 * x:+.1f}" for x in one["interval"])
            points = f"{100 * one['accuracy']:+.1f} [{low}, {high}]"
            body.append([label, str(one["n"]), points, f"{one['mcnemar_p']:.2g}", f"{p:.2g}"])
        return markdown.table(titles, body)


@dataclass(frozen=True)
class Changed:
    """pairs: what they are called, and two cells. How many predictions differ over the questions
    that both have, the largest distance of a probability, and the accuracy of each."""

    head: str
    pairs: Sequence[tuple[str, str, str]]

    def text(self) -> str:
        body = []
        for label, a, b in self.pairs:
            of_b = {answer.id: answer for answer in answers_of(b)}
            n = 0
            changed = 0
            right_a = 0
            right_b = 0
            largest = 0.0
            for one in answers_of(a):
                other = of_b.get(one.id)
                if other is None:
                    continue
                n += 1
                changed += one.prediction != other.prediction
                right_a += one.prediction == one.answer
                right_b += other.prediction == other.answer
                for p, q in zip(one.probabilities, other.probabilities, strict=True):
                    largest = max(largest, abs(p - q))
            percents = [f"{100 * right / n:.1f}" for right in (right_a, right_b)]
            body.append([label, str(n), str(changed), f"{largest:.4f}", *percents])
        titles = [*self.head.split(" | "), "questions", "changed", "largest distance"]
        return markdown.table([*titles, "accuracy of the first", "of the second"], body)


def written(values: dict[str, Any], name: str) -> str:
    """A number as the page shows it; "accuracy+" is with its interval."""
    value = values.get(name.removesuffix("+"))
    if value is None:
        return "-"  # a run does not have it
    if name in ("n", "tokens"):
        return f"{value:,.0f}"
    if name.removesuffix("+") not in SHARES:
        return f"{value:.3f}"
    text = f"{100 * value:.1f}"
    if name.endswith("+"):
        low, high = (f"{100 * x:.1f}" for x in values[f"{name[:-1]}_interval"])
        text += f" [{low}, {high}]"
    return text
