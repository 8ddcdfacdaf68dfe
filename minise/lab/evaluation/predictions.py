"""predictions.csv: what was predicted, a row for each answer, for a table of one's own."""

import csv
import io
from pathlib import Path

from minise.lab.evaluation.folder import samples_path, suffix
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.rows import key_of, key_of_question, read_answers
from minise.lab.files import write_file
from minise.lab.methods.saved import SavedAnswer
from minise.question import Question

# probability: of the chosen text; score: before it is divided by the sum of all; error: the
# standard error of the score. none_of_the_above, on_labels: means over the prompts.
COLUMNS = (
    *("task", "method", "seed", "id", "question", "prediction", "probability", "score", "error"),
    *("none_of_the_above", "on_labels", "tokens", "answer", "right"),
)


def write_predictions(folder: Path, run: Run) -> Path:
    """Write the answers of a folder with the texts of their questions; of a shard, its own."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for task in run.tasks:
        question_of = {key_of_question(asked): asked.question for asked in task.questions}
        for variant in task.variants:
            path = samples_path(folder, task.name, variant.name, run.shard)
            for answer in read_answers(path):
                question = question_of[key_of(answer)]
                table.writerow([task.name, variant.name, *cells(answer, question)])
    path = folder / f"predictions{suffix(run.shard)}.csv"
    write_file(path, text.getvalue())
    return path


def cells(answer: SavedAnswer, question: Question) -> list[object]:
    """The cells of a row after its task and method; an empty one for what is not known."""
    right: list[object] = ["", ""]
    if question.answer is not None:
        right = [question.choices[question.answer], int(question.answer == answer.prediction)]
    return [
        answer.seed,
        answer.id,
        question.text,
        question.choices[answer.prediction],
        rounded(answer.probabilities[answer.prediction]),
        rounded(answer.scores[answer.prediction]),
        rounded(answer.error),
        rounded(answer.null),
        rounded(answer.on_labels),
        answer.tokens,
        *right,
    ]


def rounded(number: float | None) -> str:
    return "" if number is None else f"{number:.6f}"
