"""The paper's data sets: where their files are on the hub, and how their rows become questions.

A new data set is a function from its row to a row of FIELDS (rows.py), and an entry of DATASETS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from string import ascii_uppercase
from textwrap import shorten

from minise.data.question_file import Rows
from minise.data.rows import (
    FIELDS,
    Row,
    advice,
    answer_form,
    choice_columns,
    counted_from_1,
    field,
    field_columns,
    ignored,
    read_row,
    to_question,
)
from minise.errors import InputError, one_line, printable, quote
from minise.grouping import permutation
from minise.question import Question

WRONG = 5  # incorrect answers of a TruthfulQA question
Columns = tuple[str, ...]


class LeftOut(Exception):
    """The row is valid, but the data set leaves it out. The message says why."""


@dataclass(frozen=True)
class Dataset:
    """A published data set, and the paper's group size and trials for it.

    `layouts`: the columns that its rows have, in one or more published layouts. `convert` turns a
    row into one of FIELDS, by the columns of its layout and the seed of its draws; it raises
    InputError for a malformed row, or LeftOut. `category`: the one that is asked; None: all.
    """

    title: str
    repository: str
    file: str
    layouts: tuple[Columns, ...]
    convert: Callable[[Row, Columns, int], Row]
    category: str | None = None
    group_size: int = 4
    trials: int = 20


def _qasc(row: Row, columns: Columns, seed: int) -> Row:
    key = field(row, "answerKey", str)
    parts = {f"choices.{name}": value for name, value in field(row, "choices", dict).items()}
    texts, labels = field(parts, "choices.text", list), field(parts, "choices.label", list)
    if len(texts) != len(labels):
        raise InputError(f"there are {len(texts)} choices.text, but {len(labels)} choices.label")
    if labels.count(key) != 1:
        raise InputError(f"answerKey {quote(key)} is not one of the labels {quote(labels)}")
    return {**row, "id": field(row, "id", str, int), "choices": texts, "answer": labels.index(key)}


def _mmlu_pro(row: Row, columns: Columns, seed: int) -> Row:
    options, index = field(row, "options", list), field(row, "answer_index", int)
    if (letter := field(row, "answer", str)) != ascii_uppercase[index : index + 1]:
        raise InputError(f"answer is {quote(letter)}, but answer_index {index}")
    identity = field(row, "question_id", str, int)
    return {**row, "id": identity, "choices": options, "answer": index}


def _truthfulqa(row: Row, columns: Columns, seed: int) -> Row:
    """The best answer and five incorrect ones, drawn and in a random order (Section 5.1). The id is
    the hash of the question with all its answers: it depends neither on the order of the rows nor
    on the draws."""
    question, best, incorrect = columns
    text, right = field(row, question, str), field(row, best, str).strip()
    cell = row.get(incorrect)
    answers = cell.split(";") if isinstance(cell, str) else field(row, incorrect, list)
    for answer in answers:
        if not isinstance(answer, str):
            raise InputError(f"{incorrect} holds {quote(answer)}; it must hold texts")
    wrong = list(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
    if len(wrong) < WRONG:
        raise LeftOut(f"{len(wrong)} incorrect answers, fewer than {WRONG}")
    identity = to_question({"question": text, "choices": [right, *wrong], "answer": 0}).id
    drawn = permutation(len(wrong), f"wrong/{seed}/{identity}")[:WRONG]
    order = permutation(WRONG + 1, f"order/{seed}/{identity}")
    choices = [right, *(wrong[i] for i in drawn)]
    ordered = [choices[i] for i in order]
    return {"id": identity, "question": text, "choices": ordered, "answer": order.index(0)}


# Files of questions in the format of rows.py. They take QASC's group size and trials.
QUESTION_FILE = Dataset("minise", "", "", ((),), lambda row, *_: read_row(row))

_PART = "-00000-of-00001.parquet"
_QASC = ("id", "question", "choices", "answerKey")
_TRUTHFUL_HUB = ("question", "best_answer", "incorrect_answers")
_TRUTHFUL_CSV = ("Question", "Best Answer", "Incorrect Answers")
_MMLU_PRO = ("question_id", "question", "options", "answer", "answer_index", "category")
DATASETS = {
    "qasc": Dataset("QASC", "allenai/qasc", f"data/validation{_PART}", (_QASC,), _qasc),
    # The hub has the first release, 817 questions. The paper's 277 are among the 790 of
    # TruthfulQA.csv of January 2025, which is not on the hub: give it by --task truthfulqa@FILE.
    "truthfulqa": Dataset(
        "TruthfulQA",
        "truthfulqa/truthful_qa",
        f"generation/validation{_PART}",
        (_TRUTHFUL_HUB, _TRUTHFUL_CSV),
        _truthfulqa,
        group_size=3,
        trials=6,
    ),
    "mmlu_pro_biology": Dataset(
        "MMLU-Pro",
        "TIGER-Lab/MMLU-Pro",
        f"data/test{_PART}",
        (_MMLU_PRO,),
        _mmlu_pro,
        category="biology",
        group_size=5,
        trials=40,
    ),
}
# Every column that may be read.
COLUMNS = set(FIELDS)
for _dataset in DATASETS.values():
    COLUMNS.update(*_dataset.layouts)


def to_questions(
    label: str, rows: Rows, name: str, seed: int, form: str | None = None
) -> tuple[dict[str, Question], list[str], list[str]]:
    """The questions of the valid rows by their places ("FILE, row 3"); the malformed rows, each as
    "FILE, row 3: reason"; and notices about the file for the user.

    The rows have a layout of the data set `name`. If `name` is a file's, they have the format of
    rows.py, or a layout of any data set, and then all of its categories are asked. Rows in the
    format of rows.py may have no answers, but then all of them have none. form: the one of FORMS
    that the answers have; None: it is found out. Raises InputError if the rows have none of these
    layouts, if all rows are valid but left out, and for answers of no clear form.
    """
    dataset, columns = _find_layout(label, rows, DATASETS.get(name))
    category = dataset.category if name in DATASETS else None
    notices: list[str] = []
    needs_answer = True
    if dataset is QUESTION_FILE:
        notices, needs_answer, form = _look_at_answers(label, rows, form)
        dataset = replace(dataset, convert=lambda row, *_: read_row(row, form))
    elif form:
        reason = f"has the columns of {dataset.title}, whose answers have one form"
        raise InputError(f"{label}: {reason}; leave --answers out")
    questions: dict[str, Question] = {}
    places: dict[str, str] = {}  # by id
    malformed, left_out = [], "no rows"
    for place, row in rows:
        try:
            if isinstance(row, InputError):
                raise row
            if not isinstance(row, dict):
                raise InputError(f"is {quote(row)}, not an object")
            if category and field(row, "category", str) != category:
                raise LeftOut(f"category {quote(row['category'])}, not {category}")
            question = to_question(dataset.convert(row, columns, seed), needs_answer)
            if question.id in places:
                first = places[question.id]
                raise InputError(f"question {quote(question.id)} is in {first} already")
            places[question.id] = place
            questions[f"{label}, {place}"] = question
        except LeftOut as reason:
            left_out = f"{place}: {reason}"
        except InputError as error:
            malformed.append(printable(f"{label}, {place}: {one_line(error)}"))
    if not questions and not malformed:
        raise InputError(f"{label}: holds no question that can be asked ({left_out})")
    return questions, malformed, notices


def _look_at_answers(
    label: str, rows: Rows, form: str | None
) -> tuple[list[str], bool, str | None]:
    """Notices about rows in the format of rows.py, whether they have answers, and the form with
    which to read these: the given one, or the one that is found out."""
    objects = [row for _, row in rows if isinstance(row, dict)]
    answers = [row.get(field_columns(tuple(row))["answer"] or "") for row in objects]
    has_answers = not objects or not all(a is None or not str(a).strip() for a in answers)
    notice = "" if has_answers else "has no answers, so nothing can be scored"
    try:
        unread = ignored(tuple(dict.fromkeys(column for row in objects for column in row)))
        if has_answers and form is None:
            form = answer_form(rows)
            notice = "" if form in ("letter", "text") else counted_from_1(rows, form)
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    return [f"{label}: {text}" for text in (notice, unread) if text], has_answers, form


def _find_layout(label: str, rows: Rows, only: Dataset | None) -> tuple[Dataset, Columns]:
    """The data set that the rows belong to, and which of its layouts they have."""
    objects = [row for _, row in rows if isinstance(row, dict)]
    names = tuple(dict.fromkeys(column for row in objects for column in row))
    candidates = [only] if only else list(DATASETS.values())
    layouts = [(dataset, columns) for dataset in candidates for columns in dataset.layouts]
    for dataset, columns in layouts:
        if set(columns) <= set(names):
            return dataset, columns
    if not objects:
        # Any layout will do: each row is refused for a reason of its own.
        return layouts[0] if only else (QUESTION_FILE, ())
    listed = shorten(", ".join(names), 200) or "missing"
    if only:
        options = ", or ".join(f"{data.title}'s: {', '.join(columns)}" for data, columns in layouts)
        raise InputError(f"{label}: columns {listed}; give {options}")
    _check_columns(label, names, listed)
    return QUESTION_FILE, ()


def _check_columns(label: str, names: Columns, listed: str) -> None:
    """Raise InputError if no columns have the names of a question and its choices."""
    fields = field_columns(names)
    if fields["question"] is None:
        # Without a guess, as for headings in another language, the form of the option.
        form = "; say which is which: --columns question=COLUMN,A=COLUMN,B=COLUMN,answer=COLUMN"
        remedy = advice(names) or (form if names else "")
        reason = f'no column is called "question"; its columns are {listed}{remedy}'
        raise InputError(f"{label}: {reason}")
    try:
        has_choices = fields["choices"] is not None or bool(choice_columns(names))
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    if not has_choices:
        remedy = "call them choice_1, choice_2, ... or A, B, ..., or write a list, choices"
        reason = f"no column holds choices; {remedy} (its columns are {listed}){advice(names)}"
        raise InputError(f"{label}: {reason}")
