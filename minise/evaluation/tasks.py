"""Where the questions come from: the paper's data sets, the miniature, or a file of one's own.

A file of one's own is .jsonl (an object a line), .json (a list of objects), .csv or .parquet, with
the columns

- question: text;
- choices: a list of two or more texts, the right one there once; in CSV the columns choice_1,
  choice_2, ..., where empty cells at the end mean fewer choices;
- answer: the index of the right choice, counted from 0;
- id: optional, text or a whole number; without one it is a hash of question and choices.

The published files of QASC, TruthfulQA and MMLU-Pro are known by their columns, whatever the name
of the file. Other columns are ignored. Of TruthfulQA the questions with at least five different
incorrect answers are asked; MMLU-Pro's are asked of all categories, but under the task's name of
biology alone. A malformed row stops everything before any work, or is left out and listed; none is
dropped silently.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

from minise.errors import InputError
from minise.evaluation.miniature import LARGEST, evaluation_questions
from minise.evaluation.rows import KINDS, Row, Rows, brief, read_rows
from minise.grouping import permutation
from minise.prompt import Question
from minise.source import dataset_file, one_line

DEFAULT_GROUPS = {
    "qasc": (4, 20),
    "truthfulqa": (3, 6),
    "mmlu_pro_biology": (5, 40),
    "miniature": (4, 20),
}
MINIATURE = "miniature"
WRONG = 5  # incorrect answers that a TruthfulQA question is given, and must have

T = TypeVar("T")


@dataclass(frozen=True)
class Task:
    """Questions with their answers. Their ids are unique; versions of a question with fewer choices
    share its id, in tasks of their own.

    `source`: what they were made from, so that another can tell whether it is the same. `skipped`:
    the malformed rows left out, each as "FILE, row 3: reason".
    """

    name: str
    questions: list[Question]
    source: dict[str, Any]
    skipped: list[str] = field(default_factory=list)


def default_groups(name: str) -> tuple[int, int]:
    """The paper's group size m and trials N for a task; QASC's for one that it does not have.

    >>> default_groups("truthfulqa-k4")
    (3, 6)
    """
    return DEFAULT_GROUPS.get(re.sub(r"-k\d+$", "", name), DEFAULT_GROUPS["qasc"])


def load_tasks(
    names: Sequence[str],
    *,
    data: Path | None = None,
    revision: str | None = None,
    num_choices: Sequence[int] = (),
    options: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    questions: int = 1000,
    skip_bad_rows: bool = False,
) -> list[Task]:
    """The tasks of these names: those of DEFAULT_GROUPS, or paths of files.

    `data` is a file at hand in place of the hub's, `revision` the hub's branch, tag or commit, each
    for the one data set of the hub among the names. `options` keeps the questions with exactly that
    many choices, `limit` the first so many of each task; `questions` is the size of the miniature.

    `num_choices` makes of each task one per K: a question keeps its id, its answer and K - 1 of its
    other choices in their order, all of which it has at every larger K too (Section 3.1). Which
    ones, and TruthfulQA's draws, depend on (seed, question id) and nothing else.

    Raises InputError for what is missing or unreadable, for malformed rows unless `skip_bad_rows`,
    and where no question is left or one has too few choices.
    """
    _check_request(names, data, revision, num_choices, limit, questions)
    tasks = []
    for name in names:
        if name == MINIATURE:
            task = _miniature(questions, seed)
        else:
            path = data if name in _PUBLISHED else Path(name)
            task = _task_of_rows(name, path, revision, seed, skip_bad_rows)
        kept = [q for q in task.questions if options in (None, len(q.choices))][:limit]
        if not kept:
            have = ", ".join(map(str, sorted({len(q.choices) for q in task.questions})))
            raise InputError(f"{name}: no question has exactly {options} choices; they have {have}")
        if not num_choices:
            tasks.append(replace(task, questions=kept))
        for K in num_choices:
            if name == MINIATURE:
                versions = evaluation_questions(questions, K, seed)[:limit]
            else:
                versions = [_with_fewer_choices(name, question, K, seed) for question in kept]
            tasks.append(replace(task, name=f"{task.name}-k{K}", questions=versions))
    made = [task.name for task in tasks]
    if twice := next((name for name in made if made.count(name) > 1), None):
        raise InputError(f'two tasks are called "{twice}"; name it once, or rename a file')
    return tasks


def _check_request(
    names: Sequence[str],
    data: Path | None,
    revision: str | None,
    num_choices: Sequence[int],
    limit: int | None,
    questions: int,
) -> None:
    published = [name for name in names if name in _PUBLISHED]
    named = "several are named" if published else "none is named"
    if not names:
        raise InputError(f"no task is named; give one of {', '.join(DEFAULT_GROUPS)}, or a file")
    if data is not None and len(published) != 1:
        raise InputError(
            f"{data}: stands in for the file of one data set on the hub, and {named}; "
            f"name one of {', '.join(_PUBLISHED)}"
        )
    if revision is not None and data is not None:
        raise InputError(f"{data}: is a file; a revision is of the hub's, leave it out")
    if revision is not None and len(published) != 1:
        raise InputError(
            f"revision {revision}: is of one data set on the hub, and {named}; "
            f"name one of {', '.join(_PUBLISHED)}"
        )
    numbers = {"limit": limit, "number of questions": questions}
    for what, number in numbers.items():
        if number is not None and number < 1:
            raise InputError(f"{what} {number} is below 1; at least one question is needed")
    if few := [K for K in num_choices if K < 2]:
        raise InputError(f"questions of {few[0]} choices leave nothing to choose; give 2 or more")


def _miniature(questions: int, seed: int) -> Task:
    facts = Path(__file__).with_name("facts.json").read_bytes()
    source = {"facts_sha256": hashlib.sha256(facts).hexdigest()}
    return Task(MINIATURE, evaluation_questions(questions, LARGEST, seed), source)


def _with_fewer_choices(task: str, question: Question, K: int, seed: int) -> Question:
    """The question with K of its choices, in their order, the right one among them."""
    choices = question.choices
    if len(choices) < K:
        raise InputError(
            f'{task}: question "{question.id}" has {len(choices)} choices, not {K}; ask for fewer, '
            "or keep only the questions that have as many (--choices)"
        )
    order = permutation(len(choices), f"fewer/{seed}/{question.id}")
    dropped = [i for i in order if i != question.answer][K - 1 :]
    kept = [i for i in range(len(choices)) if i not in dropped]
    answer = [i == question.answer for i in kept].index(True)
    return replace(question, choices=[choices[i] for i in kept], answer=answer)


class _NotAsked(Exception):
    """A sound row that the task makes no question of, and why."""


def _task_of_rows(
    name: str, path: Path | None, revision: str | None, seed: int, skip_bad_rows: bool
) -> Task:
    """The task of a file; without one, of the file on the hub of the data set of that name."""
    if path is None:
        dataset = _PUBLISHED[name]
        path, commit = dataset_file(dataset.repository, dataset.file, revision)
        label = f"{dataset.repository}, {dataset.file}"
        source = {"repository": dataset.repository, "revision": commit, "file": dataset.file}
    elif not path.suffix and not os.path.exists(path):
        raise InputError(f"{path}: no such task; give {', '.join(DEFAULT_GROUPS)}, or {KINDS}")
    else:
        label, source = str(path), {"file": str(path)}
    published = _PUBLISHED.get(name)
    rows, source["sha256"] = read_rows(path, label)
    read = _recognise(label, rows, published.layouts if published else tuple(_LAYOUTS))
    if published and published.category:
        read = partial(_of_category, published.category, read)
    questions, bad = _questions(label, rows, read, seed)
    if bad and not (skip_bad_rows and questions):
        count = f"{len(bad)} bad {'rows' if len(bad) > 1 else 'row'} in all"
        if path.suffix.lower() != ".jsonl":
            count += ", rows counted from 1 without the header"
        other = "leave them out with --skip-bad-rows" if questions else "give another: none is good"
        raise InputError(f"{bad[0]} ({count}); mend the file, or {other}")
    return Task(name if published else path.stem, questions, source, bad)


def _questions(
    label: str, rows: Rows, read: Callable[[Row, int], Question], seed: int
) -> tuple[list[Question], list[str]]:
    """The questions of the sound rows, and the others with what is wrong with them."""
    questions: list[Question] = []
    bad: list[str] = []
    places: dict[str, str] = {}
    why = "no rows"
    for place, row in rows:
        try:
            if isinstance(row, InputError):
                raise row
            question = read(row, seed)
            if question.id in places:
                raise InputError(f'question "{question.id}" is in {places[question.id]} already')
        except _NotAsked as reason:
            why = f"{place}: {reason}"
        except InputError as error:
            bad.append(f"{label}, {place}: {one_line(error)}")
        else:
            places[question.id] = place
            questions.append(question)
    if not questions and not bad:
        raise InputError(f"{label}: holds no question that can be asked ({why})")
    return questions, bad


# From a row to a question


def _own(row: Row, seed: int) -> Question:
    """The layout of the module's docstring."""
    choices, answer = _field(row, "choices", list), _field(row, "answer", int)
    identity = "" if row.get("id") in (None, "") else _identity(row, "id")
    return _question(_field(row, "question", str), choices, answer, identity)


def _qasc(row: Row, seed: int) -> Question:
    key = _field(row, "answerKey", str)
    choices = {f"choices.{name}": value for name, value in _field(row, "choices", dict).items()}
    texts, labels = _field(choices, "choices.text", list), _field(choices, "choices.label", list)
    if len(texts) != len(labels):
        raise InputError(f"there are {len(texts)} choices.text, but {len(labels)} choices.label")
    if labels.count(key) != 1:
        raise InputError(f"answerKey {brief(key)} is not one of the labels {brief(labels)}")
    text = _field(row, "question", str)
    return _question(text, texts, labels.index(key), _identity(row, "id"))


def _mmlu_pro(row: Row, seed: int) -> Question:
    options, answer = _field(row, "options", list), _field(row, "answer_index", int)
    text = _field(row, "question", str)
    question = _question(text, options, answer, _identity(row, "question_id"))
    if (letter := _field(row, "answer", str)) != chr(ord("A") + answer):
        raise InputError(f"answer is {brief(letter)}, but answer_index {answer}")
    return question


def _of_category(
    category: str, read: Callable[[Row, int], Question], row: Row, seed: int
) -> Question:
    if (found := _field(row, "category", str)) != category:
        raise _NotAsked(f"category {brief(found)}, not {category}")
    return read(row, seed)


def _truthfulqa(question: str, best: str, incorrect: str, row: Row, seed: int) -> Question:
    """The best answer and five incorrect ones, drawn and in a random order (Section 5.1).

    The id is the content hash of the question with all its answers: a row's number would change
    with the order of the rows, and a hash of the drawn choices with the seed.
    """
    text, right = _field(row, question, str), _field(row, best, str).strip()
    found = row.get(incorrect)
    listed = found.split(";") if isinstance(found, str) else _field(row, incorrect, list)
    if odd := [answer for answer in listed if not isinstance(answer, str)]:
        raise InputError(f"{incorrect} holds {brief(odd[0])}; it must hold texts")
    wrong = list(dict.fromkeys(answer.strip() for answer in listed if answer.strip()))
    if len(wrong) < WRONG:
        raise _NotAsked(f"{len(wrong)} incorrect answers, fewer than {WRONG}")
    whole = _question(text, [right, *wrong], 0)
    drawn = permutation(len(wrong), f"wrong/{seed}/{whole.id}")[:WRONG]
    choices = [right, *(wrong[i] for i in drawn)]
    order = permutation(len(choices), f"order/{seed}/{whole.id}")
    return replace(whole, choices=[choices[i] for i in order], answer=order.index(0))


def _question(text: str, choices: list[Any], answer: int, identity: str = "") -> Question:
    """The question, checked for what an evaluation needs beyond asking it."""
    if len(choices) < 2:
        raise InputError(f"choices: {len(choices)}; at least 2 are needed")
    question = Question(text, choices, identity, answer)
    try:
        "".join([question.id, text, *choices]).encode()
    except UnicodeEncodeError:
        raise InputError("holds text that is not UTF-8; save the file as UTF-8") from None
    plain = [choice.strip() for choice in choices]
    if plain.count(plain[answer]) > 1:
        raise InputError(f"two choices are {brief(plain[answer])}, the right one")
    return question


def _field(row: Row, name: str, kind: type[T]) -> T:
    value = row.get(name)
    if value is None:
        raise InputError(f"{name} is missing")
    if isinstance(value, str) and not value.strip():
        raise InputError(f"{name} is empty")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{name} is {brief(value)}; it must be {_KINDS[kind]}")
    return value


_KINDS: dict[type, str] = {str: "text", int: "a whole number", list: "a list", dict: "an object"}


def _identity(row: Row, name: str) -> str:
    is_number = isinstance(row.get(name), int)
    return str(_field(row, name, int)) if is_number else _field(row, name, str)


# The layouts, and where the data sets lie


@dataclass(frozen=True)
class _Layout:
    """Columns that a row must have, and how it becomes a question."""

    columns: tuple[str, ...]
    read: Callable[[Row, int], Question]


_LAYOUTS = {
    "minise": _Layout(("question", "choices", "answer"), _own),
    "QASC": _Layout(("id", "question", "choices", "answerKey"), _qasc),
    "TruthfulQA.csv": _Layout(
        ("Question", "Best Answer", "Incorrect Answers"),
        partial(_truthfulqa, "Question", "Best Answer", "Incorrect Answers"),
    ),
    "TruthfulQA": _Layout(
        ("question", "best_answer", "incorrect_answers"),
        partial(_truthfulqa, "question", "best_answer", "incorrect_answers"),
    ),
    "MMLU-Pro": _Layout(
        ("question_id", "question", "options", "answer", "answer_index", "category"), _mmlu_pro
    ),
}


@dataclass(frozen=True)
class _Published:
    """A data set's file on the hub, the layouts that it and copies of it have, and the category
    that is asked of it."""

    repository: str
    file: str
    layouts: tuple[str, ...]
    category: str | None = None


_PUBLISHED = {
    "qasc": _Published("allenai/qasc", "data/validation-00000-of-00001.parquet", ("QASC",)),
    # The first release, 817 questions. The paper's 277 are of the 790 of TruthfulQA.csv as of
    # January 2025, which is not there: give it as the file at hand.
    "truthfulqa": _Published(
        "truthfulqa/truthful_qa",
        "generation/validation-00000-of-00001.parquet",
        ("TruthfulQA", "TruthfulQA.csv"),
    ),
    "mmlu_pro_biology": _Published(
        "TIGER-Lab/MMLU-Pro", "data/test-00000-of-00001.parquet", ("MMLU-Pro",), "biology"
    ),
}


def _recognise(label: str, rows: Rows, layouts: Sequence[str]) -> Callable[[Row, int], Question]:
    """How to read the rows, from their columns."""
    found = {column: None for _, row in rows if isinstance(row, dict) for column in row}
    for layout in map(_LAYOUTS.__getitem__, layouts):
        if found.keys() >= set(layout.columns):
            return layout.read
    if all(isinstance(row, InputError) for _, row in rows):
        return _own  # of no row: each has its reason
    wanted = ", or ".join(f"{name}'s: {', '.join(_LAYOUTS[name].columns)}" for name in layouts)
    raise InputError(
        f"{label}: columns {shorten(', '.join(found), 200) or 'missing'}; give {wanted}"
        + "; in CSV choices are choice_1, choice_2, ..." * ("minise" in layouts)
    )
