"""predictions.csv: a row for each question, method and seed, to merge with a table of one's own."""

import csv
import io
from pathlib import Path

from minise.lab.data.asked import Asked
from minise.lab.evaluation.folder import LEFT_OUT, read_reason, reason_path, samples_path, suffix
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.rows import LeftOut, key_of, key_of_question, read_rows
from minise.lab.files import write_file
from minise.lab.methods.saved import SavedAnswer

# score: of the chosen text; error: its standard error; normalized: the score divided by the sum of
# all. none_of_the_above, on_labels: means over the prompts. left_out: why
# there is no prediction.
COLUMNS = (
    *("task", "method", "seed", "id", "question", "prediction", "score", "error"),
    *("normalized",),
    *("none_of_the_above", "on_labels", "tokens", "answer", "right", "left_out"),
)


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet program runs


def write_predictions(folder: Path, run: Run, for_spreadsheet: bool = False) -> Path:
    """Write the answers of a folder with the texts of their questions; of a shard, its own.
    for_spreadsheet: so that Excel takes the file for UTF-8, and no cell for a formula."""
    i, n = run.shard
    text = io.StringIO()
    # What a row lacks is empty. Its end is "\r\n": the writer quotes a cell for the characters of
    # that alone, and readers take a lone "\r" in a cell for the end of a row.
    if for_spreadsheet:
        text.write("\ufeff")
    table = csv.DictWriter(text, COLUMNS, lineterminator="\r\n")
    table.writeheader()
    for task in run.tasks:
        for variant in task.variants:
            path = samples_path(folder, task.name, variant.name, run.shard)
            row_of = {key_of(row): row for row in read_rows(path)}
            why = read_reason(reason_path(path))
            if not row_of and why is None:
                continue  # a fitted method, which no shard has, or whose fit is left out
            why = (why or "a method that it needs has no answer").removeprefix(LEFT_OUT)
            for asked in task.questions[i::n]:
                row = row_of.get(key_of_question(asked), why)
                written = {"task": task.name, "method": variant.name, **cells(asked, row)}
                if for_spreadsheet:
                    written = {name: as_text(value) for name, value in written.items()}
                table.writerow(written)
    path = folder / f"predictions{suffix(run.shard)}.csv"
    write_file(path, text.getvalue())
    return path


def cells(asked: Asked, row: SavedAnswer | LeftOut | str) -> dict[str, object]:
    """The cells of a row after its task and method, but for those that are not known. row: the
    answer, or why there is none."""
    question = asked.question
    known: dict[str, object] = {"seed": asked.seed, "id": question.id, "question": question.text}
    if question.answer is not None:
        known["answer"] = question.choices[question.answer]
    if not isinstance(row, SavedAnswer):
        known["left_out"] = row.left_out if isinstance(row, LeftOut) else row
        return known
    if question.answer is not None:
        known["right"] = int(question.answer == row.prediction)
    known["prediction"] = question.choices[row.prediction]
    known["score"] = rounded(row.scores[row.prediction])
    known["error"] = rounded(row.error)
    known["normalized"] = rounded(row.normalized[row.prediction])
    known["none_of_the_above"] = rounded(row.null)
    known["on_labels"] = rounded(row.on_labels)
    known["tokens"] = row.tokens
    return known


def as_text(value: object) -> object:
    """The value of a cell, with an apostrophe before what would be a formula."""
    if isinstance(value, str) and value.startswith(FORMULA):
        try:
            float(value)  # a negative number is none
        except ValueError:
            return f"'{value}"
    return value


def rounded(number: float | None) -> str:
    return "" if number is None else f"{number:.6f}"
