"""What each method predicts: a table for a spreadsheet, and the questions where two disagree."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minise.errors import InputError, printable, quote, shorten
from minise.evaluation.samples import read_samples, samples_path
from minise.methods.sample import Sample
from minise.prompt import LABELS
from minise.report.results import Results

SHOWN = 20  # questions on a terminal


def predictions_csv(samples: dict[str, list[Sample]]) -> str:
    """A CSV file with a row for each seed and question of a task, and what each method says.

    A byte order mark tells spreadsheets that it is UTF-8. A text that they would take for a formula
    begins with an apostrophe instead.
    """
    by_method = {name: {sample.key: sample for sample in each} for name, each in samples.items()}
    several = len({seed for found in by_method.values() for seed, _ in found}) > 1
    rows: list[dict[str, str]] = []
    for key in dict.fromkeys(key for found in by_method.values() for key in found):
        said = {name: found[key] for name, found in by_method.items() if key in found}
        first = with_text(*said.values())
        row = {"id": first.id} | ({"seed": str(first.seed)} if several else {})
        row |= {"question": first.text["question"] if first.text else ""}
        row |= {"answer": _choice(first, first.answer)}
        for name, sample in said.items():
            row[name] = _choice(first, sample.prediction)
            row[f"{name}: probability"] = f"{sample.probabilities[sample.prediction]:.4f}"
            row[f"{name}: right"] = _verdict(sample)
        rows.append(row)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    file = io.StringIO()
    csv.writer(file).writerows([_cell(text) for text in line] for line in table)
    return "\ufeff" + file.getvalue()


@dataclass(frozen=True)
class Disagreement:
    """The questions of a task that two methods, `names`, answer differently, of `shared` ones."""

    task: str
    names: tuple[str, str]
    shared: int
    pairs: list[tuple[Sample, Sample]]

    def title(self) -> str:
        a, b = self.names
        text = f"{self.task}: {a} and {b} disagree on {len(self.pairs):,} of {self.shared:,}"
        if all(one.answer is None for one, _ in self.pairs):
            return f"{text} questions"
        right = [
            sum(s.prediction == s.answer for s in side) for side in zip(*self.pairs, strict=True)
        ]
        return f"{text} questions; right there: {a} {right[0]:,}, {b} {right[1]:,}"

    def rows(self) -> list[dict[str, str]]:
        """Each question with what the two say, as text."""
        found = []
        for pair in self.pairs:
            first = with_text(*pair)
            row = {"id": first.id if first.seed == 0 else f"{first.id}, seed {first.seed}"}
            row |= {"question": first.text["question"] if first.text else ""}
            row |= {"answer": _choice(first, first.answer) or "not known"}
            for name, sample in zip(self.names, pair, strict=True):
                p = sample.probabilities[sample.prediction]
                row[name] = f"{shorten(_choice(first, sample.prediction), 60)} ({p:.1%})"
                row[name] += f", {verdict}" if (verdict := _verdict(sample)) else ""
            found.append({name: " ".join(text.split()) for name, text in row.items()})
        return found

    def as_text(self) -> str:
        """For a terminal: the first SHOWN of them."""
        width = max(map(len, ("answer", *self.names)))
        lines = [self.title()]
        for row in self.rows()[:SHOWN]:
            lines += ["", shorten(f"{row.pop('id')}  {row.pop('question')}".rstrip(), 100)]
            lines += [f"    {name:<{width}}  {shorten(text, 90)}" for name, text in row.items()]
        if len(self.pairs) > SHOWN:
            lines += ["", f"... and {len(self.pairs) - SHOWN:,} more"]
        return printable("\n".join(lines))

    def as_markdown(self) -> str:
        """All of them, as a table."""
        rows = [
            [shorten(text, 300).replace("|", "\\|").replace("<", "&lt;") for text in row.values()]
            for row in self.rows()
        ]
        table = [["id", "question", "answer", *self.names], ["---"] * 5, *rows]
        lines = [" | ".join(["", *row, ""]).strip() for row in table]
        return printable("\n".join([self.title(), "", *(lines if rows else []), ""]))


def disagreements(runs: Sequence[tuple[Path, Results]], a: str, b: str) -> list[Disagreement]:
    """Where two methods disagree, for each task: in each folder that has both, or else between the
    folders. Raises InputError where no task has both, and for a question that is not the same."""
    found = []
    for task in dict.fromkeys(task for _, run in runs for task in run.raw["config"]["tasks"]):
        alone = [[one] for one in runs if all(_find([one], task, name) for name in (a, b))]
        for group in alone or [list(runs)]:
            sides = [_find(group, task, name) for name in (a, b)]
            shared = [(one, sides[1][key]) for key, one in sides[0].items() if key in sides[1]]
            for one, other in shared:
                if one.question_hash != other.question_hash:
                    problem = "is not the same for both; report runs of one task"
                    raise InputError(f"{task}: question {quote(one.id, 40)} {problem}")
            pairs = [pair for pair in shared if pair[0].prediction != pair[1].prediction]
            title = f"{group[0][1].model}, {task}" if len(alone) > 1 else task
            if shared:
                found.append(Disagreement(title, (a, b), len(shared), pairs))
    if not found:
        each = [v for _, run in runs for v in run.raw["config"]["variants"].values()]
        known = ", ".join(dict.fromkeys(variant["name"] for v in each for variant in v))
        problem = f"no task has answers of both {quote(a)} and {quote(b)}"
        raise InputError(f"{problem}; the methods are {shorten(known, 150)}")
    return found


def _find(
    runs: Sequence[tuple[Path, Results]], task: str, name: str
) -> dict[tuple[int, str], Sample]:
    """The samples of a method, by seed and id, from the first folder that has some."""
    for folder, _ in runs:
        if samples := read_samples(samples_path(folder, task, name)):
            return {sample.key: sample for sample in samples}
    return {}


def with_text(*samples: Sample) -> Sample:
    """The first of these samples of one question that carries its text, else the first."""
    return next((sample for sample in samples if sample.text), samples[0])


def _choice(sample: Sample, index: int | None) -> str:
    """A choice as text; as its label where the sample carries no text, or as its number, counted
    from 1, beyond the labels; empty if not known."""
    if index is None:
        return ""
    if sample.text:
        return sample.text["choices"][index]
    return LABELS[index] if index < len(LABELS) else str(index + 1)


def _verdict(sample: Sample) -> str:
    if sample.answer is None:
        return ""
    return "right" if sample.prediction == sample.answer else "wrong"


def _cell(text: str) -> str:
    """The text, so that a spreadsheet takes it for a text or a number."""
    is_number = re.fullmatch(r"[-+]?[0-9.,]+", text)
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and not is_number else text
