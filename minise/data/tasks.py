"""Where the questions come from: the paper's data sets, the miniature, or a file in our format.

A malformed row stops everything before any work, or is left out and listed. None is dropped
silently.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minise.data.datasets import COLUMNS, DATASETS, OWN, to_questions
from minise.data.miniature import FACTS, LARGEST, WORLDS, evaluation_questions
from minise.data.question_file import KINDS, STDIN, read_rows
from minise.errors import InputError, quote
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
    group_size: int = OWN.group_size  # the paper's for the data set
    trials: int = OWN.trials
    places: dict[str, str] = field(default_factory=dict)  # by question id: "FILE, row 3"
    notices: list[str] = field(default_factory=list)  # what a user should hear about the file

    @property
    def choices(self) -> int | None:
        """The number K of every question; None where they differ."""
        sizes = {len(question.choices) for question in self.questions}
        return sizes.pop() if len(sizes) == 1 else None


def load_tasks(
    names: Sequence[str],
    *,
    data: Path | None = None,
    revision: str | None = None,
    cut_to: Sequence[int] = (),
    only_choices: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    questions: int = 1000,
    skip_bad_rows: bool = False,
    none_of_the_above: bool = False,
    include_path: Path | None = None,
    num_fewshot: int | None = None,
) -> list[Task]:
    """The tasks of these names: each is one of TASKS, or the path of a file.

    `data` is a file to read instead of the hub's, `revision` a branch, tag or commit of the hub;
    each needs exactly one data set of the hub among the names. `only_choices` keeps the questions
    with exactly that many choices, then `limit` the first ones of each task. `questions` is the
    size of the miniature.

    `cut_to` makes one task per K: a question keeps its id, its answer and K - 1 of its other
    choices, in their order. The choices at a smaller K are among those at a larger one (Section
    3.1). Which ones, and TruthfulQA's draws, depend on (seed, question id) and nothing else.

    `none_of_the_above` adds two tasks to each of `cut_to`, in which that text is the last of the K
    choices: TASK-none-wrong in place of a wrong choice, TASK-none-right in place of the right one.

    "lm-eval:NAME" is a task of lm-evaluation-harness, or of one's own in the folder `include_path`,
    with `num_fewshot` examples before each question; see bridges/harness.py.

    Raises InputError for what is missing or unreadable, for malformed rows unless `skip_bad_rows`,
    and where no question is left or one has too few choices.
    """
    _check_source(names, data, revision)
    for what, number in (("limit", limit), ("number of questions", questions)):
        if number is not None and number < 1:
            raise InputError(f"{what} {quote(number)} is below 1; at least one question is needed")
    if questions > MOST_MADE:
        raise InputError(f"{quote(questions)} questions are too many; make {MOST_MADE:,} at most")
    if few := [K for K in cut_to if K < 2]:
        raise InputError(f"questions of {few[0]} choices leave nothing to choose; give 2 or more")
    tasks: dict[str, Task] = {}
    for name in names:
        if name in WORLDS:
            source = {"facts_sha256": hashlib.sha256(FACTS.read_bytes()).hexdigest()}
            task = Task(name, name, evaluation_questions(questions, LARGEST, seed, name), source)
        elif name.startswith("lm-eval:"):
            from minise.bridges.harness import load_task  # it needs an extra

            task = load_task(name, include_path, num_fewshot, skip_bad_rows)
        else:
            path = data if name in DATASETS else Path(name)
            task = _task_of_file(name, path, revision, seed, skip_bad_rows)
        kept = [q for q in task.questions if only_choices in (None, len(q.choices))][:limit]
        if not kept:
            have = ", ".join(map(str, sorted({len(q.choices) for q in task.questions})))
            reason = f"no question has exactly {quote(only_choices)} choices; they have {have}"
            raise InputError(f"{name}: {reason}")
        made = questions if limit is None else min(questions, limit)
        for K in cut_to or (None,):
            called = f"{task.name}-k{K}" if K else task.name
            if called in tasks:
                raise InputError(
                    f"two tasks are called {quote(called)}; name one, or rename a file"
                )
            tasks[called] = replace(
                task, name=called, questions=_cut_all(name, kept, K, seed, made)
            )
            if K and none_of_the_above:
                right = [_without_answer(q) for q in tasks[called].questions]
                fewer = _cut_all(name, kept, K - 1, seed, made)
                wrong = [replace(q, choices=[*q.choices, NULL_OPTION]) for q in fewer]
                for kind, versions in {"wrong": wrong, "right": right}.items():
                    other = f"{called}-none-{kind}"
                    tasks[other] = replace(task, name=other, questions=versions)
    return list(tasks.values())


def _check_source(names: Sequence[str], data: Path | None, revision: str | None) -> None:
    if not names:
        raise InputError(f"no task is named; give one of {', '.join(TASKS)}, or a file")
    if data is not None and revision is not None:
        raise InputError(f"{data}: is a file; a revision is of the hub's, leave it out")
    count = sum(name in DATASETS for name in names)
    given = revision if data is None else data
    if given is not None and count != 1:
        named = "several are named" if count else "none is named"
        one = f"name one of {', '.join(DATASETS)}"
        raise InputError(f"{given}: is for one data set on the hub, and {named}; {one}")


def _cut_all(
    name: str, questions: list[Question], K: int | None, seed: int, made: int
) -> list[Question]:
    """The questions of a task with K choices each; None: as they are. `made`: how many there are of
    the miniature."""
    if K is None:
        return questions
    if name in WORLDS:  # its questions of K choices must be held out too
        return evaluation_questions(made, K, seed, name)
    return [_cut(name, question, K, seed) for question in questions]


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
    kept = sorted(set(order) - set(wrong[K - 1 :]))
    answer = [i == question.answer for i in kept].index(True)
    return replace(question, choices=[choices[i] for i in kept], answer=answer)


def _without_answer(question: Question) -> Question:
    """The question with "None of the above", as its last choice, in the place of the right one."""
    wrong = [text for i, text in enumerate(question.choices) if i != question.answer]
    return replace(question, choices=[*wrong, NULL_OPTION], answer=len(wrong))


def _task_of_file(
    name: str, path: Path | None, revision: str | None, seed: int, skip_bad_rows: bool
) -> Task:
    """The task of the file `path`; without one, of the hub's file of the data set `name`."""
    paper = DATASETS.get(name, OWN)
    if path is None:
        path, commit = dataset_file(paper.repository, paper.file, revision)
        label = f"{paper.repository}, {paper.file}"
        source = {"repository": paper.repository, "revision": commit, "file": paper.file}
    elif path == STDIN:
        label, source = "standard input", {"file": "-"}
    elif not path.suffix and not os.path.exists(path):
        raise InputError(f"{path}: no such task; give {', '.join(TASKS)}, or {KINDS}")
    else:
        label, source = str(path), {"file": str(path)}
    rows, source["sha256"] = read_rows(path, label, COLUMNS)
    questions, bad, notices = to_questions(label, rows, name, seed)
    if bad and not (skip_bad_rows and questions):
        count = f"{len(bad)} bad {'rows' if len(bad) > 1 else 'row'} in all"
        if path.suffix.lower() != ".jsonl":
            count += ", rows counted from 1 without the header"
        other = "leave them out with --skip-bad-rows" if questions else "give another: none is good"
        raise InputError(f"{bad[0]} ({count}); mend the file, or {other}")
    called, dataset = (name, name) if name in DATASETS else (path.stem, "own")
    return Task(
        name="stdin" if path == STDIN else called,
        dataset=dataset,
        questions=list(questions.values()),
        source=source,
        skipped=bad,
        group_size=paper.group_size,
        trials=paper.trials,
        places={question.id: place for place, question in questions.items()},
        notices=notices,
    )
