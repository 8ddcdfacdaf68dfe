"""Where the questions come from: the paper's data sets, the miniature, or a file of your own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minise.errors import InputError, quote
from minise.grouping import permutation
from minise.lab.data.datasets import DATASETS, Dataset
from minise.lab.data.miniature import LARGEST, WORLDS, evaluation_questions
from minise.lab.data.question_file import read_rows, split_name
from minise.lab.data.rows import Fields, own_fields
from minise.loading.source import fetch
from minise.question import Question

QUESTIONS = 1000  # of the miniature


@dataclass(frozen=True)
class Task:
    """Questions asked together, with different ids. Some may have no answer."""

    name: str  # the key in results, for people to read: "qasc-k4"
    dataset: str  # of DATASETS or WORLDS, or "own" for a file, whatever it is called
    questions: list[Question]
    origin: str  # as it was named: "qasc", "qasc@FILE", "FILE"
    group_size: int = 4  # the paper's m and N for the data set
    trials: int = 20

    @property
    def choices(self) -> int | None:
        """The number K of every question; None where they differ."""
        sizes = {len(question.choices) for question in self.questions}
        return sizes.pop() if len(sizes) == 1 else None


@dataclass(frozen=True)
class Selection:
    """Which questions a run asks. cut_to makes one task for each K, of the questions with enough
    choices for all: each keeps its id, its answer and K - 1 of its other choices, in their order;
    those at a smaller K are among those at a larger one (Section 3.1). skip: then without so
    many of the first ones of a data set. limit: then the first ones. question_seed: of the
    miniature and all draws. columns: of files of your own (rows.py)."""

    limit: int | None = None
    cut_to: Sequence[int] = ()
    question_seed: int = 0
    columns: str = ""
    skip: Mapping[str, int] = field(default_factory=dict)

    def part(self, dataset: str) -> slice:
        """The place of the questions among all that could be asked."""
        first = self.skip.get(dataset, 0)
        return slice(first, None if self.limit is None else first + self.limit)


ALL = Selection()


def load_tasks(texts: Sequence[str], selection: Selection = ALL) -> list[Task]:
    """The tasks of these names: of DATASETS or WORLDS, of a data set at a commit of the hub
    ("qasc@REVISION") or in a local file ("qasc@FILE"), or of the path of a file. Raises InputError
    for what is missing or malformed, and where no question is left."""
    if selection.limit is not None and selection.limit < 1:
        raise InputError(f"limit {selection.limit} leaves no question; give 1 or more")
    whole_tasks = [_load(text, selection) for text in texts]
    tasks: dict[str, Task] = {}
    for task in whole_tasks:
        for K in selection.cut_to or [0]:
            name = f"{task.name}-k{K}" if K else task.name
            questions = _choose(task, K, selection)
            if not questions:
                skipped = selection.skip.get(task.dataset, 0)
                after = f" after the first {skipped}" if skipped else ""
                none = f"no question{after} has {K or 2} choices"
                raise InputError(f"{name}: {none}; name other tasks or numbers")
            if name in tasks:
                raise InputError(f"{name}: is named twice; name other tasks or numbers")
            tasks[name] = replace(task, name=name, questions=questions)
    return list(tasks.values())


def _load(text: str, selection: Selection) -> Task:
    """The task of a name, with all its questions."""
    name, _, place = text.partition("@")
    if text in WORLDS:
        questions = evaluation_questions(QUESTIONS, LARGEST, selection.question_seed, text)
        return Task(text, text, questions, text)
    if name not in DATASETS:
        path = Path(text)
        own_name, _ = split_name(path)
        return Task(own_name, "own", read_questions(path, selection), text)
    dataset = DATASETS[name]
    path = Path(place)
    _, kind = split_name(path)
    if not kind:
        folder, _ = fetch(f"datasets/{dataset.repository}", [dataset.file], place or None)
        path = folder / dataset.file
    questions = read_questions(path, selection, dataset)
    return Task(name, name, questions, text, dataset.group_size, dataset.trials)


def read_questions(
    path: Path, selection: Selection = ALL, dataset: Dataset | None = None
) -> list[Question]:
    """The questions of a file, of a data set or (None) of the user's own. Raises InputError."""
    rows = read_rows(path)
    questions: dict[str, Question] = {}
    own: list[Fields] = []
    place = rows[0].place
    try:
        if dataset is None:
            own = own_fields([placed.row for placed in rows], selection.columns)
        else:
            rows = dataset.prepare(rows)
        for number, placed in enumerate(rows):
            place = placed.place
            fields: Fields | None
            if dataset is None:
                fields = own[number]
            else:
                fields = dataset.convert(placed.row, selection.question_seed)
            if fields is None:
                continue
            question = _question(fields)
            if question.id in questions:
                raise InputError(f"another row has the id {quote(question.id)}; change one")
            questions[question.id] = question
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # also InputError
        reason = error if isinstance(error, InputError) else f"{error!r}; take the published file"
        raise InputError(f"{path}, {place}: {reason}") from None
    return list(questions.values())


def _question(fields: Fields) -> Question:
    """The question of these fields, which `Question` checks."""
    answer = fields.answer
    if isinstance(answer, str) and isinstance(fields.choices, list):
        problem = f"answer {quote(answer)} is none of its choices"
        raise InputError(f"{problem}; mend it, or say the form: --columns answer_FORM=HEADER")
    identity = "" if fields.id is None else str(fields.id)
    return Question(fields.text, fields.choices, identity, answer)


def _choose(task: Task, K: int, selection: Selection) -> list[Question]:
    """The questions of a task with K of their choices each; 0: with all."""
    seed = selection.question_seed
    part = selection.part(task.dataset)
    if K and task.dataset in WORLDS:  # those of K choices must be held out, too
        return evaluation_questions(QUESTIONS, K, seed, task.dataset)[part]
    enough = max(selection.cut_to, default=0)
    questions = [question for question in task.questions if len(question.choices) >= enough]
    questions = questions[part]
    if K:
        questions = [_cut(question, K, seed) for question in questions]
    return questions


def _cut(question: Question, K: int, seed: int) -> Question:
    """The question with K of its choices, in their order, the right one among them."""
    if question.answer is None:
        raise InputError("without answers no choices can be left out; give no --cut-to")
    order = permutation(len(question.choices), f"fewer/{seed}/{question.id}")
    wrong = [i for i in order if i != question.answer]
    kept = sorted([question.answer, *wrong[: max(K, 1) - 1]])
    choices = [question.choices[i] for i in kept]
    return replace(question, choices=choices, answer=kept.index(question.answer))
