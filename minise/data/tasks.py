"""Where the questions come from: the paper's data sets, the miniature, or a file in our format.

A malformed row stops everything before any work, or is left out and listed. None is dropped
silently.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minise.data.datasets import COLUMNS, DATASETS, QUESTION_FILE, to_questions
from minise.data.miniature import FACTS, LARGEST, WORLDS, evaluation_questions
from minise.data.question_file import ENDINGS, KINDS, STDIN, read_rows
from minise.data.rows import Row, with_names
from minise.errors import InputError, quote
from minise.files import read_bytes
from minise.grouping import permutation
from minise.loading.source import dataset_file
from minise.prompt import NULL_OPTION
from minise.question import Question

TASKS = (*DATASETS, *WORLDS)
MOST_MADE = 100_000  # questions of the miniature


@dataclass(frozen=True)
class Task:
    """Questions asked together: all with their answers, or all without. Their ids are unique within
    the task; the versions of a question with fewer choices share its id, in tasks of their own."""

    name: str  # the key in results, for people to read: "qasc-k4"
    dataset: str  # one of TASKS, or "own" for a file, whatever it is called
    questions: list[Question]
    source: dict[str, Any]  # files, hashes, the hub's commit: the same source gives the same task
    skipped: list[str] = field(default_factory=list)  # malformed rows: "FILE, row 3: reason"
    group_size: int = QUESTION_FILE.group_size  # the paper's for the data set
    trials: int = QUESTION_FILE.trials
    places: dict[str, str] = field(default_factory=dict)  # by question id: "FILE, row 3"
    rows: dict[str, Row] = field(default_factory=dict)  # of a user's own file, by question id
    notices: list[str] = field(default_factory=list)  # what a user should know about the file

    @property
    def choices(self) -> int | None:
        """The number K of every question; None where they differ."""
        sizes = {len(question.choices) for question in self.questions}
        return sizes.pop() if len(sizes) == 1 else None


@dataclass(frozen=True)
class Selection:
    """Which questions a run asks, and with which of their choices.

    only_choices keeps the questions with exactly that many choices, then limit the first ones of
    each task. questions: the size of the miniature.

    cut_to makes one task per K: a question keeps its id, its answer and K - 1 of its other choices,
    in their order. The choices at a smaller K are among those at a larger one (Section 3.1). Which
    ones, and TruthfulQA's draws, depend on (seed, question id) and nothing else.

    none_of_the_above adds two tasks to each of cut_to, in which that text is the last of the K
    choices: TASK-none-wrong in place of a wrong choice, TASK-none-right in place of the right one.

    skip_bad_rows: leave malformed rows out, and list them, in place of refusing them.

    columns: how files of the user's own questions call the columns of rows.py: {"answer": "Correct
    Answer"}. answers: the one of FORMS in rows.py that their answers have; None: it is found out.
    """

    cut_to: Sequence[int] = ()
    only_choices: int | None = None
    seed: int = 0
    limit: int | None = None
    questions: int = 1000
    none_of_the_above: bool = False
    skip_bad_rows: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    answers: str | None = None

    def check(self) -> None:
        """Raise InputError for numbers that select nothing, or too much."""
        for what, number in (("limit", self.limit), ("number of questions", self.questions)):
            if number is not None and number < 1:
                raise InputError(
                    f"{what} {quote(number)} is below 1; at least one question is needed"
                )
        if self.questions > MOST_MADE:
            count = quote(self.questions)
            raise InputError(f"{count} questions are too many; make {MOST_MADE:,} at most")
        for K in self.cut_to:
            if K < 2:
                raise InputError(
                    f"questions of {K} choices leave nothing to choose; give 2 or more"
                )

    @property
    def miniature_count(self) -> int:
        """How many questions the miniature makes at a number of choices K."""
        return self.questions if self.limit is None else min(self.questions, self.limit)


ALL = Selection()


def load_tasks(names: Sequence[str], selection: Selection = ALL) -> list[Task]:
    """The tasks of these names. Each is one of TASKS; or a data set of the hub at a branch, tag or
    commit, "qasc@REVISION", or from a local file, "qasc@FILE"; or the path of a file.

    Raises InputError for what is missing or unreadable, for malformed rows unless they are skipped,
    and where no question is left or one has too few choices.
    """
    if not names:
        raise InputError(f"no task is named; give one of {', '.join(TASKS)}, or a file")
    selection.check()
    own = [n for n in names if n.partition("@")[0] not in TASKS]
    if (selection.columns or selection.answers) and not own:
        raise InputError("--columns and --answers are for a file of your own questions; name one")
    tasks: dict[str, Task] = {}
    for name in names:
        for task in _select(_load(name, selection), name, selection):
            if task.name in tasks:
                raise InputError(
                    f"two tasks are called {quote(task.name)}; name one, or rename a file"
                )
            tasks[task.name] = task
    return list(tasks.values())


def _load(name: str, selection: Selection) -> Task:
    """The task of a name, with all its questions."""
    if name in WORLDS:
        questions = evaluation_questions(selection.questions, LARGEST, selection.seed, name)
        source = {"facts_sha256": hashlib.sha256(read_bytes(FACTS)).hexdigest()}
        return Task(name, name, questions, source)
    dataset, has_place, place = name.partition("@")
    if dataset not in DATASETS:
        return _of_file(name, Path(name), selection)
    if not has_place:
        return _of_hub(dataset, None, selection)
    if not place:
        raise InputError(f"{name}: names nothing after the @; give a revision or a file")
    # What ends as such a file does is one, though it may be missing: a revision "rows.csv" would
    # only lead to a message about the hub.
    if os.path.isfile(place) or Path(place).suffix.lower() in ENDINGS:
        return _of_file(dataset, Path(place), selection)
    return _of_hub(dataset, place, selection)


def _of_hub(dataset: str, revision: str | None, selection: Selection) -> Task:
    """The data set, from the hub."""
    repository, file = DATASETS[dataset].repository, DATASETS[dataset].file
    path, commit = dataset_file(repository, file, revision)
    source = {"repository": repository, "revision": commit, "file": file}
    return _read(dataset, path, f"{repository}, {file}", source, selection)


def _of_file(name: str, path: Path, selection: Selection) -> Task:
    """The task of a local file: of the data set `name`, or whatever is in it."""
    if path == STDIN:
        return _read(name, path, "standard input", {"file": "-"}, selection)
    if not path.suffix and not os.path.exists(path):
        raise InputError(f"{path}: no such task; give {', '.join(TASKS)}, or {KINDS}")
    return _read(name, path, str(path), {"file": str(path)}, selection)


def _read(name: str, path: Path, label: str, source: dict[str, Any], selection: Selection) -> Task:
    """The task of a file, which messages call `label`."""
    columns, form = ({}, None) if name in DATASETS else (selection.columns, selection.answers)
    rows, sha256 = read_rows(path, label, {*COLUMNS, *columns.values()})
    own = {} if name in DATASETS else {f"{label}, {place}": row for place, row in rows}
    try:
        rows = with_names(rows, columns)
    except InputError as error:
        raise InputError(f"{label}: {error}") from None
    questions, bad, notices = to_questions(label, rows, name, selection.seed, form)
    if bad and not (selection.skip_bad_rows and questions):
        count = f"{len(bad)} bad {'rows' if len(bad) > 1 else 'row'} in all"
        if path.suffix.lower() != ".jsonl":
            count += ", rows counted from 1 without the header"
        other = "leave them out with --skip-bad-rows" if questions else "give another: none is good"
        raise InputError(f"{bad[0]} ({count}); fix the file, or {other}")
    paper = DATASETS.get(name, QUESTION_FILE)
    title, dataset = (name, name) if name in DATASETS else (path.stem, "own")
    return Task(
        name="stdin" if path == STDIN else title,
        dataset=dataset,
        questions=list(questions.values()),
        source={**source, "sha256": sha256},
        skipped=bad,
        group_size=paper.group_size,
        trials=paper.trials,
        places={question.id: place for place, question in questions.items()},
        rows={question.id: own[place] for place, question in questions.items() if own},
        notices=notices,
    )


def _select(task: Task, name: str, selection: Selection) -> Iterator[Task]:
    """The tasks that a selection makes of one: one for each K of cut_to."""
    questions = task.questions
    if selection.only_choices is not None:
        questions = [q for q in questions if len(q.choices) == selection.only_choices]
    questions = questions[: selection.limit]
    if not questions:
        sizes = ", ".join(map(str, sorted({len(q.choices) for q in task.questions})))
        only = quote(selection.only_choices)
        raise InputError(f"{name}: no question has exactly {only} choices; they have {sizes}")
    if not selection.cut_to:
        yield replace(task, questions=questions)
    for K in selection.cut_to:
        cut = replace(
            task, name=f"{task.name}-k{K}", questions=_cut_all(name, questions, K, selection)
        )
        yield cut
        if selection.none_of_the_above:
            fewer = _cut_all(name, questions, K - 1, selection)
            wrong = [replace(q, choices=[*q.choices, NULL_OPTION]) for q in fewer]
            right = [_without_answer(q) for q in cut.questions]
            yield replace(cut, name=f"{cut.name}-none-wrong", questions=wrong)
            yield replace(cut, name=f"{cut.name}-none-right", questions=right)


def _cut_all(name: str, questions: list[Question], K: int, selection: Selection) -> list[Question]:
    """The questions of a task with K choices each."""
    if name in WORLDS:  # its questions of K choices must be held out, too
        return evaluation_questions(selection.miniature_count, K, selection.seed, name)
    return [_cut(name, question, K, selection.seed) for question in questions]


def _cut(task: str, question: Question, K: int, seed: int) -> Question:
    """The question with K of its choices, in their order, the right one among them."""
    choices = question.choices
    if len(choices) < K:
        raise InputError(
            f"{task}: question {quote(question.id)} has {len(choices)} choices, not {quote(K)}; "
            "give a smaller --cut-to K, or keep questions that have enough with --only-choices K"
        )
    if question.answer is None:
        raise InputError(f"{task}: has no answers, so choices cannot be left out; give no --cut-to")
    order = permutation(len(choices), f"fewer/{seed}/{question.id}")
    wrong = [i for i in order if i != question.answer]
    indices = sorted([question.answer, *wrong[: K - 1]])
    answer = indices.index(question.answer)
    return replace(question, choices=[choices[i] for i in indices], answer=answer)


def _without_answer(question: Question) -> Question:
    """The question with "None of the above", as its last choice, in the place of the right one."""
    wrong = [text for i, text in enumerate(question.choices) if i != question.answer]
    return replace(question, choices=[*wrong, NULL_OPTION], answer=len(wrong))
