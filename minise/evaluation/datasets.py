"""The paper's data sets: where their files lie on the hub, and how their rows become ours.

A new data set is a function from its row to a row of our format (question_file.py), and an entry
of DATASETS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_uppercase
from textwrap import shorten

from minise.errors import InputError, one_line
from minise.grouping import permutation
from minise.question import Question
from minise.question_file import Row, Rows, brief, field, to_question

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
        raise InputError(f"answerKey {brief(key)} is not one of the labels {brief(labels)}")
    return {**row, "id": field(row, "id", str, int), "choices": texts, "answer": labels.index(key)}


def _mmlu_pro(row: Row, columns: Columns, seed: int) -> Row:
    options, index = field(row, "options", list), field(row, "answer_index", int)
    if (letter := field(row, "answer", str)) != ascii_uppercase[index : index + 1]:
        raise InputError(f"answer is {brief(letter)}, but answer_index {index}")
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
        raise InputError(f"{incorrect} holds {brief(odd[0])}; it must hold texts")
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
OWN = Dataset("minise", "", "", (("question", "choices", "answer"),), lambda row, *_: row)

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


def to_questions(label: str, rows: Rows, name: str, seed: int) -> tuple[list[Question], list[str]]:
    """The questions of the sound rows, and the malformed rows, each as "FILE, row 3: reason".

    The rows have a layout of the data set `name`; or, where `name` is a file's, our own or one of
    any data set, whose categories are then all asked. Raises InputError where they have none of
    these layouts, and where all rows are sound but none is asked.
    """
    known = [DATASETS[name]] if name in DATASETS else [OWN, *DATASETS.values()]
    dataset, columns = _find_layout(label, rows, known)
    category = dataset.category if name in DATASETS else None
    questions: dict[str, tuple[str, Question]] = {}
    bad, not_asked = [], "no rows"
    for place, row in rows:
        try:
            if not isinstance(row, dict):
                unread = isinstance(row, InputError)
                raise row if unread else InputError(f"is {brief(row)}, not an object")
            if category and field(row, "category", str) != category:
                raise NotAsked(f"category {brief(row['category'])}, not {category}")
            question = to_question(dataset.convert(row, columns, seed))
            if question.id in questions:
                first, _ = questions[question.id]
                raise InputError(f'question "{question.id}" is in {first} already')
            questions[question.id] = place, question
        except NotAsked as reason:
            not_asked = f"{place}: {reason}"
        except InputError as error:
            bad.append(f"{label}, {place}: {one_line(error)}")
    if not questions and not bad:
        raise InputError(f"{label}: holds no question that can be asked ({not_asked})")
    return [question for _, question in questions.values()], bad


def _find_layout(label: str, rows: Rows, known: list[Dataset]) -> tuple[Dataset, Columns]:
    """Which of these data sets the rows are of, and which of its layouts they have."""
    found = dict.fromkeys(column for _, row in rows if isinstance(row, dict) for column in row)
    layouts = [(dataset, columns) for dataset in known for columns in dataset.layouts]
    for dataset, columns in layouts:
        if found.keys() >= set(columns):
            return dataset, columns
    if not any(isinstance(row, dict) for _, row in rows):
        return layouts[0]  # any will do: each row has its own reason
    wanted = ", or ".join(f"{data.title}'s: {', '.join(columns)}" for data, columns in layouts)
    in_csv = "; in CSV choices are choice_1, choice_2, ..." if OWN in known else ""
    have = shorten(", ".join(found), 200) or "missing"
    raise InputError(f"{label}: columns {have}; give {wanted}{in_csv}")
