"""The paper's data sets: where their files lie on the hub, and how their rows become ours.

A new data set is a function from its row to a row of our format (rows.py), and an entry
of DATASETS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_uppercase
from textwrap import shorten

from minise.data.question_file import Rows
from minise.data.rows import (
    FIELDS,
    Row,
    choice_columns,
    counted_from_1,
    field,
    own_columns,
    own_row,
    to_question,
)
from minise.errors import InputError, one_line, printable, quote
from minise.grouping import permutation
from minise.question import Question

WRONG = 5  # incorrect answers of a TruthfulQA question
Columns = tuple[str, ...]


class NotAsked(Exception):
    """The row is sound, but the data set does not ask it. The message says why."""


@dataclass(frozen=True)
class Dataset:
    """A published data set, and the paper's group size and trials for it.

    `layouts`: the columns that its rows have, in one or more published layouts. `convert` turns a
    row into one of our format, given the columns of its layout and the seed of its draws; it raises
    InputError for a malformed row, or NotAsked. `category`: the one that is asked; None: all.
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
    found = row.get(incorrect)
    listed = found.split(";") if isinstance(found, str) else field(row, incorrect, list)
    if odd := [answer for answer in listed if not isinstance(answer, str)]:
        raise InputError(f"{incorrect} holds {quote(odd[0])}; it must hold texts")
    wrong = list(dict.fromkeys(answer.strip() for answer in listed if answer.strip()))
    if len(wrong) < WRONG:
        raise NotAsked(f"{len(wrong)} incorrect answers, fewer than {WRONG}")
    identity = to_question({"question": text, "choices": [right, *wrong], "answer": 0}).id
    drawn = permutation(len(wrong), f"wrong/{seed}/{identity}")[:WRONG]
    order = permutation(WRONG + 1, f"order/{seed}/{identity}")
    choices = [right, *(wrong[i] for i in drawn)]
    ordered = [choices[i] for i in order]
    return {"id": identity, "question": text, "choices": ordered, "answer": order.index(0)}


# Files in our own format. They are not on the hub, and take QASC's group size and trials.
OWN = Dataset("minise", "", "", ((),), lambda row, *_: own_row(row))

_PART = "-00000-of-00001.parquet"
_QASC = ("id", "question", "choices", "answerKey")
_TRUTHFUL_HUB = ("question", "best_answer", "incorrect_answers")
_TRUTHFUL_CSV = ("Question", "Best Answer", "Incorrect Answers")
_MMLU_PRO = ("question_id", "question", "options", "answer", "answer_index", "category")
DATASETS = {
    "qasc": Dataset("QASC", "allenai/qasc", f"data/validation{_PART}", (_QASC,), _qasc),
    # The hub has the first release, 817 questions. The paper's 277 are among the 790 of
    # TruthfulQA.csv of January 2025, which is not on the hub: give that file by --data.
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
# All that any row is read for.
COLUMNS = {
    *FIELDS,
    *(name for data in DATASETS.values() for names in data.layouts for name in names),
}


def to_questions(
    label: str, rows: Rows, name: str, seed: int
) -> tuple[dict[str, Question], list[str], list[str]]:
    """The questions of the sound rows by their places ("FILE, row 3"); the malformed rows, each as
    "FILE, row 3: reason"; and what a user should hear about the file.

    The rows have a layout of the data set `name`; or, where `name` is a file's, one of any data
    set, whose categories are then all asked, or our own. Ours may have no answers: then all rows
    have none. Raises InputError where the rows have none of these layouts, where all rows are sound
    but none is asked, and for answers that are counted from 1.
    """
    dataset, columns = _find_layout(label, rows, DATASETS.get(name))
    category = dataset.category if name in DATASETS else None
    notices, needs_answer = _look_at_answers(label, rows) if dataset is OWN else ([], True)
    questions: dict[str, Question] = {}
    places: dict[str, str] = {}  # by id
    bad, not_asked = [], "no rows"
    for place, row in rows:
        try:
            if not isinstance(row, dict):
                unread = isinstance(row, InputError)
                raise row if unread else InputError(f"is {quote(row)}, not an object")
            if category and field(row, "category", str) != category:
                raise NotAsked(f"category {quote(row['category'])}, not {category}")
            question = to_question(dataset.convert(row, columns, seed), needs_answer)
            if question.id in places:
                raise InputError(
                    f"question {quote(question.id)} is in {places[question.id]} already"
                )
            places[question.id] = place
            questions[f"{label}, {place}"] = question
        except NotAsked as reason:
            not_asked = f"{place}: {reason}"
        except InputError as error:
            bad.append(printable(f"{label}, {place}: {one_line(error)}"))
    if not questions and not bad:
        raise InputError(f"{label}: holds no question that can be asked ({not_asked})")
    return questions, bad, notices


def _look_at_answers(label: str, rows: Rows) -> tuple[list[str], bool]:
    """What to say about the answers of our own rows, and whether there are any."""
    found = [row for _, row in rows if isinstance(row, dict)]
    given = (row.get(own_columns(tuple(row))["answer"] or "") for row in found)
    if found and all(answer is None or not str(answer).strip() for answer in given):
        return [f"{label}: has no answers, so nothing can be scored"], False
    try:
        notice = counted_from_1(rows)
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    return [f"{label}: {notice}"] * bool(notice), True


def _find_layout(label: str, rows: Rows, only: Dataset | None) -> tuple[Dataset, Columns]:
    """Which data set the rows are of, and which of its layouts they have."""
    found = dict.fromkeys(column for _, row in rows if isinstance(row, dict) for column in row)
    known = [only] if only else list(DATASETS.values())
    layouts = [(dataset, columns) for dataset in known for columns in dataset.layouts]
    for dataset, columns in layouts:
        if found.keys() >= set(columns):
            return dataset, columns
    if not any(isinstance(row, dict) for _, row in rows):
        return layouts[0] if only else (OWN, ())  # any will do: each row has its own reason
    have = shorten(", ".join(found), 200) or "missing"
    if only:
        wanted = ", or ".join(f"{data.title}'s: {', '.join(columns)}" for data, columns in layouts)
        raise InputError(f"{label}: columns {have}; give {wanted}")
    names = own_columns(tuple(found))
    if names["question"] is None:
        raise InputError(f'{label}: no column is called "question"; its columns are {have}')
    try:
        if names["choices"] is None and not choice_columns(tuple(found)):
            wanted = "call them choice_1, choice_2, ... or A, B, ..., or write a list, choices"
            raise InputError(f"no column holds choices; {wanted} (its columns are {have})")
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    return OWN, ()
