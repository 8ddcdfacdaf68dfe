"""What each method predicts, as a table for a spreadsheet and as text."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from minise.errors import printable, quote
from minise.methods.sample import Sample
from minise.prompt import LABELS

MOST_COLUMNS = 200  # of a user's file: each is a cell in every row
MOST_CELL = 32_767  # characters, as many as a cell of a spreadsheet holds


def predictions_csv(
    samples: Mapping[str, list[Sample]],
    places: Mapping[str, str] | None = None,
    originals: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """A CSV file with a row for each seed and question of a task, and the predictions of each
    method, from its samples.

    places: by question id, where a question is: "FILE, row 3"; the number becomes the column `row`.
    originals: by question id, its row in that file; see `_add_originals`.
    `decided` and `trials` are of methods that stop when the answer is decided.

    A byte order mark tells spreadsheets that it is UTF-8. A text that they would take for a formula
    begins with an apostrophe instead.
    """
    by_method = {name: {sample.key: sample for sample in each} for name, each in samples.items()}
    keys = list(dict.fromkeys(key for by_key in by_method.values() for key in by_key))
    several_seeds = len({seed for seed, _ in keys}) > 1
    rows: list[dict[str, str]] = []
    places, originals = places or {}, originals or {}
    for key in keys:
        answered = {name: by_key[key] for name, by_key in by_method.items() if key in by_key}
        first = with_text(*answered.values())
        row = {"row": places[first.id].rpartition(" ")[2]} if first.id in places else {}
        row["id"] = first.id
        if several_seeds:
            row["seed"] = str(first.seed)
        row["question"] = first.text["question"] if first.text else ""
        row["answer"] = choice_text(first, first.answer)
        for name, sample in answered.items():
            row[name] = choice_text(first, sample.prediction)
            row[f"{name}: letter"] = _letter(sample.prediction)
            row[f"{name}: probability"] = f"{sample.probabilities[sample.prediction]:.4f}"
            row[f"{name}: right"] = verdict(sample)
            notes = sample.notes or {}
            if "decided" in notes and "trials" in notes:
                row[f"{name}: decided"] = "decided" if notes["decided"] else "undecided"
                row[f"{name}: trials"] = str(notes["trials"])
            row[f"{name}: tokens"] = str(sample.tokens)
        rows.append(row)
    _add_originals(rows, [originals.get(id, {}) for _, id in keys])
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    file = io.StringIO()
    csv.writer(file).writerows([_spreadsheet_text(text) for text in line] for line in table)
    return "\ufeff" + file.getvalue()


def _add_originals(rows: list[dict[str, str]], originals: Sequence[Mapping[str, Any]]) -> None:
    """Add the columns of the user's file after those of `rows`, at most MOST_COLUMNS: one is called
    `file: NAME` where its name is taken. A column that is empty, or here with the same name and the
    same texts, is left out."""
    taken = {column for row in rows for column in row}
    columns = dict.fromkeys(name for original in originals for name in original)
    for column in list(columns)[:MOST_COLUMNS]:
        texts = [_cell(original.get(column)) for original in originals]
        if not any(texts) or all(
            row.get(column) == text for row, text in zip(rows, texts, strict=True)
        ):
            continue
        name = column
        while name in taken:
            name = f"file: {name}"
        taken.add(name)
        for row, text in zip(rows, texts, strict=True):
            row[name] = text


def _cell(value: Any) -> str:
    """A value of a file as one cell: a text as it is, a list or a number as JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return quote(value, MOST_CELL)


def with_text(*samples: Sample) -> Sample:
    """The first of these samples of one question that carries its text, else the first."""
    return next((sample for sample in samples if sample.text), samples[0])


def choice_text(sample: Sample, index: int | None) -> str:
    """A choice as text. Where the sample carries no text: its label, or its number from 1 where
    there are no more labels. Empty if the index is None."""
    if index is None:
        return ""
    if sample.text:
        return sample.text["choices"][index]
    return _letter(index)


def _letter(index: int) -> str:
    """The label of a choice, or its number from 1 where there are no more labels."""
    return LABELS[index] if index < len(LABELS) else str(index + 1)


def verdict(sample: Sample) -> str:
    """Whether the prediction is "right" or "wrong"; empty where the answer is not known."""
    if sample.answer is None:
        return ""
    return "right" if sample.prediction == sample.answer else "wrong"


def _spreadsheet_text(text: str) -> str:
    """The text without control characters, as a spreadsheet takes it for a text or a number. Some
    make cells of what a semicolon or a tab parts, and of lines, so each part is protected."""
    safe = printable(text.replace("\r\n", "\n"))
    parts = re.split(r"([;\t\n])", safe)
    return "".join(f"'{part}" if _is_formula(part) else part for part in parts)


def _is_formula(text: str) -> bool:
    if re.fullmatch(r"[-+]?[0-9.,]+", text):
        return False
    # Spreadsheets skip what cannot be seen. NFKC makes a full-width sign a plain one.
    for c in unicodedata.normalize("NFKC", text):
        if not c.isspace() and unicodedata.category(c)[0] not in "CM":
            return c in "=+-@"
    return False
