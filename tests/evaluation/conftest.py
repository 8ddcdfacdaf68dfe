"""A model and small runs, for the tests of evaluations."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minise.data.tasks import Selection, load_tasks
from minise.engines import LanguageModel
from minise.evaluation.experiments import Variant
from minise.evaluation.run import Asked, Run, TaskRun, evaluate
from minise.loading.checkpoint import load
from minise.question import Question

QUESTIONS = 6


@pytest.fixture(scope="session")
def lm() -> LanguageModel:
    return load("weights/tiny-llama")


@pytest.fixture(scope="session")
def asked() -> Asked:
    (task,) = load_tasks(["miniature"], Selection(limit=QUESTIONS, cut_to=(4,)))
    return [(0, question) for question in task.questions]


ABOUT = {"experiment": None, "quantize": None, "limit": None, "seeds": [0]}
ABOUT |= {"template": "default", "shots": "0"}


@pytest.fixture(scope="session")
def make_run(asked: Asked) -> Callable[..., Run]:
    """A run of a task called "words" by methods written as after --method."""

    def make(*texts: str, questions: Asked | None = None, **facts: Any) -> Run:
        variants = [Variant(text, text) for text in texts or ("standard",)]
        options = {"group_size": 2, "trials": 3}
        task = TaskRun("words", "own", asked if questions is None else questions, variants, options)
        return replace(Run([task], ABOUT), **facts)

    return make


@pytest.fixture(scope="session")
def finished(
    lm: LanguageModel, make_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder of a whole run. Tests only read it."""
    folder = tmp_path_factory.mktemp("finished")
    evaluate(lm, make_run("standard", "self-ensemble"), folder, print)
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    """The answers of a file, without what depends on the clock."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: row[name] for name in row if name != "seconds"} for row in rows]


def row(number: int, p: list[float], answer: int | None, **more: Any) -> dict[str, Any]:
    """An answer as a samples file holds it."""
    best = p.index(max(p))
    facts = {"id": f"q{number}", "seed": 0, "question_hash": f"h{number}", "answer": answer}
    facts |= {"prediction": best, "probabilities": p, "scores": p, "tokens": 10, "seconds": 0.1}
    return facts | more


def make_question(number: int, **facts: Any) -> Question:
    return Question(**{"text": f"Which is {number}?", "choices": ["1", "2", "3"], **facts})
