"""Inside inspect_ai the solver gives the probabilities of `minise.self_ensemble`, and marks its
choice for the scorer `choice()`."""

import gc
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minise
from minise.errors import InputError

inspect_ai = pytest.importorskip("inspect_ai", reason="the extra [harness] is missing")
from inspect_ai.dataset import MemoryDataset, Sample  # noqa: E402
from inspect_ai.model import (  # noqa: E402
    ChatMessageSystem,
    ChatMessageUser,
    Logprob,
    Logprobs,
    ModelOutput,
    ModelUsage,
    TopLogprob,
    get_model,
)
from inspect_ai.scorer import choice  # noqa: E402
from inspect_ai.solver import SolverSpec  # noqa: E402

from minise.serving.inspect_ai import read_labels  # noqa: E402

# Its own warnings: of an argument of tenacity, and of streams that it leaves to be collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
WEIGHTS = Path(__file__).parents[2] / "weights/tiny-llama"
CITIES = ["Lima", "Rome", "Oslo", "Cairo", "Quito"]
TEXTS = [f"Which city lies in {land}?" for land in ("Peru", "Italy", "Norway")]


def evaluate(
    folder: Path, samples: list[Sample], model: Any, epochs: int = 1, **settings: Any
) -> Any:
    """The log of a run, with the solver by the name that a user gives it."""
    task = inspect_ai.Task(dataset=MemoryDataset(samples), scorer=choice())
    settings = {"m": 3, "trials": 2, "seed": 7, **settings}
    solver = SolverSpec("minise/self_ensemble", args_passed=settings)
    options = {"log_dir": str(folder), "display": "none", "epochs": epochs}
    (run,) = inspect_ai.eval(task, model=model, solver=solver, **options)
    gc.collect()  # its streams, here and not in another test
    return run


def test_a_task_has_the_probabilities_of_self_ensemble(tmp_path: Path) -> None:
    lm = minise.load(WEIGHTS)
    questions = [minise.Question(text, CITIES) for text in TEXTS]
    answers = [minise.self_ensemble(lm, question, 3, 2, seed=7) for question in questions]
    # The last target is another choice than the marked one.
    marked = [answer.prediction + (answer is answers[-1]) for answer in answers]
    samples = [
        Sample(input=text, choices=CITIES, target="ABCDE"[target % 5])
        for text, target in zip(TEXTS, marked, strict=True)
    ]
    # The prompt as it is: no chat template around it.
    plain = "{{ messages[-1]['content'] }}"
    model = get_model(
        "hf/tiny", model_path=str(WEIGHTS), device="cpu", chat_template=plain, dtype="float32"
    )
    run = evaluate(tmp_path, samples, model, top_logprobs=10)
    for sample, answer in zip(run.samples, answers, strict=True):
        found = sample.store["self_ensemble"]
        np.testing.assert_allclose(found, answer.probabilities, rtol=0, atol=1e-5)
    assert [sample.scores["choice"].value for sample in run.samples] == ["C", "C", "I"]


def says(logprobs: dict[str, float] | None) -> ModelOutput:
    """The output of a model with these log-probabilities of its first token."""
    output = ModelOutput.from_content("a-model", "A")
    output.usage = ModelUsage()  # else the provider fetches a tokenizer to count tokens
    if logprobs is not None:
        tops = [TopLogprob(token=token, logprob=value) for token, value in logprobs.items()]
        first = Logprob(token="A", logprob=0.0, top_logprobs=tops)
        output.choices[0].logprobs = Logprobs(content=[first])
    return output


@pytest.mark.parametrize(("most", "status"), [(40, "success"), (20, "error")])
def test_other_messages_stay_and_a_missing_label_is_refused(
    tmp_path: Path, most: int, status: str
) -> None:
    """Each epoch draws other groups."""
    asked = set()

    def answer(messages: list[Any], tools: Any, choice: Any, config: Any) -> ModelOutput:
        asked.add(tuple(message.text for message in messages))
        last = {"D": log(0.1)} if config.top_logprobs == 40 else {}
        return says({"A": log(0.5), "B": log(0.2), "C": log(0.1), **last})

    model = get_model("mockllm/model", custom_outputs=answer)
    messages = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content=TEXTS[0])]
    sample = Sample(input=messages, choices=CITIES, target="A")
    run = evaluate(tmp_path, [sample], model, epochs=2, top_logprobs=most)
    assert run.status == status
    assert status == "success" or '["D"] not among the 3' in run.error.message
    assert {system for system, _ in asked} == {"Be brief."}
    assert all(text.startswith(f"{TEXTS[0]}\n(A) ") for _, text in asked)
    assert all(text.endswith(") None of the above\nAnswer:") for _, text in asked)
    assert len(asked) == 8 or status == "error"  # 2 epochs of 2 trials of 2 groups


@pytest.mark.parametrize("spelled", ["A B", " A B", "\u0120A \u0120B", "\u2581A \u2581B"])
def test_a_label_is_read_however_the_provider_spells_it(spelled: str) -> None:
    first, second = spelled.rsplit(" ", 1) if spelled[0] != " " else (" A", " B")
    other = {"A": -9.0, "B": -9.0} if first != "A" else {" A": -9.0}
    read = read_labels(says({first: -1.0, second: -2.0, **other}), "AB")
    assert read.log_probabilities.tolist() == [-1.0, -2.0]


def test_of_two_tokens_with_one_text_the_more_probable_counts() -> None:
    read = read_labels(says({" A": -1.0, "\u0120A": -5.0}), "A")
    assert read.log_probabilities.tolist() == [-1.0]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, "no log-probabilities"),
        ({}, "no log-probabilities"),
        ({"A": -0.1, "C": -3.0}, '"B"'),
        ({"A": -0.1, " A": -4.0, " B": -4.0}, '"B"'),  # the two are not mixed
        ({"A": -0.1, "B": -9999.0}, '"B"'),
        ({"A": -0.1, "B": float("nan")}, '"B"'),
    ],
)
def test_no_missing_label_gets_probability_0(given: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read_labels(says(given), "AB")
