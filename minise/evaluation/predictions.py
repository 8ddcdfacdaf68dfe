"""What each method predicts, as a table for a spreadsheet and as text."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Mapping

from minise.errors import printable
from minise.methods.sample import Sample
from minise.prompt import LABELS


def predictions_csv(
    samples: Mapping[str, list[Sample]], places: Mapping[str, str] | None = None
) -> str:
    """A CSV file with a row for each seed and question of a task, and the predictions of each
    method, from its samples.

    places: by question id, where a question is: "FILE, row 3"; the number becomes the column `row`.
    `decided` and `trials` are of methods that stop when the answer is decided.

    A byte order mark tells spreadsheets that it is UTF-8. A text that they would take for a formula
    begins with an apostrophe instead.
    """
    by_method = {name: {sample.key: sample for sample in each} for name, each in samples.items()}
    keys = list(dict.fromkeys(key for by_key in by_method.values() for key in by_key))
    several_seeds = len({seed for seed, _ in keys}) > 1
    rows: list[dict[str, str]] = []
    places = places or {}
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
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = [columns, *([row.get(column, "") for column in columns] for row in rows)]
    file = io.StringIO()
    csv.writer(file).writerows([_spreadsheet_text(text) for text in line] for line in table)
    return "\ufeff" + file.getvalue()


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
