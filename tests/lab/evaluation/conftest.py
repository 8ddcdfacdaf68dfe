"""A model and small runs, for the tests of evaluations."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minise import LocalModel, Question, load
from minise.lab.data.asked import Asked
from minise.lab.data.tasks import Selection, load_tasks
from minise.lab.evaluation.experiments import Variant
from minise.lab.evaluation.request import Run, TaskRun
from minise.lab.evaluation.run import evaluate
from minise.lab.methods.saved import SavedAnswer

QUESTIONS = 6


@pytest.fixture(scope="session")
def lm() -> LocalModel:
    model = load("weights/tiny-llama")
    assert isinstance(model, LocalModel)
    return model


@pytest.fixture(scope="session")
def equal_bits() -> LocalModel:
    """The same model, whose bits do not depend on what shares a pass."""
    model = load("weights/tiny-llama", equal_bits=True)
    assert isinstance(model, LocalModel)
    return model


@pytest.fixture(scope="session")
def asked() -> list[Asked]:
    return some_questions(QUESTIONS)


def some_questions(count: int) -> list[Asked]:
    """Questions about the miniature's world, with 4 choices."""
    (task,) = load_tasks(["miniature"], Selection(limit=count, cut_to=(4,)))
    return [Asked(question) for question in task.questions]


ABOUT = {"experiment": None, "quantize": None, "limit": None, "seeds": [0]}
ABOUT |= {"template": "default", "shots": "0"}


@pytest.fixture(scope="session")
def make_run(asked: list[Asked]) -> Callable[..., Run]:
    """A run of a task called "words" by methods written as after --method."""

    def make(
        *texts: str, questions: list[Asked] | None = None, engine: str | None = None, **facts: Any
    ) -> Run:
        variants = [Variant(text, text, engine) for text in texts or ("standard",)]
        options = {"group_size": 2, "trials": 3}
        task = TaskRun("words", "own", asked if questions is None else questions, variants, options)
        return replace(Run([task], ABOUT), **facts)

    return make


@pytest.fixture(scope="session")
def finished(
    lm: LocalModel, make_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a whole run. Tests only read it."""
    folder = tmp_path_factory.mktemp("finished")
    evaluate(lm, make_run("standard", "self-ensemble"), folder, print)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    """The answers of a file, without what depends on the clock."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        line.pop("seconds", None)
    return found


def saved(number: int, p: list[float], answer: int | None, **more: Any) -> SavedAnswer:
    """An answer as a samples file holds it."""
    facts: dict[str, Any] = {"id": f"q{number}", "seed": 0, "question_hash": f"h{number}"}
    facts |= {"answer": answer, "prediction": p.index(max(p)), "scores": p, "normalized": p}
    facts |= {"tokens": 10, "seconds": 0.1}
    return SavedAnswer(**{**facts, **more})


def make_question(number: int, **facts: Any) -> Question:
    return Question(**{"text": f"Which is {number}?", "choices": ["1", "2", "3"], **facts})
