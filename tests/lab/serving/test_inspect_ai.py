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

from minise.lab.serving.inspect_ai import read_labels  # noqa: E402

# Its own warnings: of an argument of tenacity, and of streams that it leaves to be collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]
WEIGHTS = Path(__file__).parents[3] / "weights/tiny-llama"
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
        np.testing.assert_allclose(found, answer.normalized, rtol=0, atol=1e-5)
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


def test_other_messages_stay_and_each_epoch_draws_other_groups(tmp_path: Path) -> None:
    asked = set()

    def answer(messages: list[Any], tools: Any, choice: Any, config: Any) -> ModelOutput:
        asked.add(tuple(message.text for message in messages))
        return says({"A": log(0.5), "B": log(0.2), "C": log(0.1), "D": log(0.1)})

    model = get_model("mockllm/model", custom_outputs=answer)
    messages = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content=TEXTS[0])]
    sample = Sample(input=messages, choices=CITIES, target="A")
    assert evaluate(tmp_path, [sample], model, epochs=2).status == "success"
    assert {system for system, _ in asked} == {"Be brief."}
    assert all(text.startswith(f"{TEXTS[0]}\n(A) ") for _, text in asked)
    assert all(text.endswith(") None of the above\nAnswer:") for _, text in asked)
    assert len(asked) == 8  # 2 epochs of 2 trials of 2 groups


@pytest.mark.parametrize("cap", ["it gives no more", "it refuses more"])
@pytest.mark.parametrize("gives", [60, 300])
def test_a_missing_label_is_asked_for_with_as_many_tokens_as_there_are(
    tmp_path: Path, gives: int, cap: str
) -> None:
    """Then the sample ends, and the run goes on. The last label is the 90th token."""
    asked = set()

    def answer(messages: list[Any], tools: Any, choice: Any, config: Any) -> ModelOutput:
        asked.add(config.top_logprobs)
        if cap == "it refuses more" and config.top_logprobs > gives:
            raise ValueError(f"top_logprobs is at most {gives}")
        if "Oslo" in messages[-1].text.splitlines()[0]:  # the second sample
            return says({"A": log(0.5), "B": log(0.2), "C": log(0.1), "D": log(0.1)})
        tokens = ["A", "B", "C", *(f"t{i}" for i in range(86)), "D", *map(str, range(210))]
        likely = tokens[: min(gives, config.top_logprobs)]
        return says({token: log(0.3) - i for i, token in enumerate(likely)})

    model = get_model("mockllm/model", custom_outputs=answer)
    texts = ["Which one?", "Is it Oslo?"]
    samples = [Sample(input=text, choices=CITIES, target="A") for text in texts]
    run = evaluate(tmp_path, samples, model)
    assert run.status == "success"
    assert run.samples[1].limit is None
    if gives == 300:
        assert asked == {20, 100}
        assert run.samples[0].limit is None
    else:
        reason = run.samples[0].limit.reason
        assert '["D"] not among the' in reason
        assert "most probable tokens, all that it gives" in reason
        assert run.samples[0].scores["choice"].value != "C"


def test_a_provider_that_gives_no_log_probabilities_ends_the_run(tmp_path: Path) -> None:
    model = get_model("mockllm/model", custom_outputs=lambda *_: says(None))
    run = evaluate(tmp_path, [Sample(input=TEXTS[0], choices=CITIES, target="A")], model)
    assert run.status == "error"
    assert "gives no log-probabilities; use a provider that does" in run.error.message


def test_an_openai_compatible_server_is_asked(
    pretend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra brings what that needs."""
    pytest.importorskip("openai", reason="the extra [harness] is older")
    server = pretend("openai")
    monkeypatch.setenv("LOCAL_API_KEY", "none")
    monkeypatch.setenv("LOCAL_BASE_URL", f"{server.url}/v1")
    sample = Sample(input=TEXTS[0], choices=CITIES, target="A")
    run = evaluate(tmp_path, [sample], "openai-api/local/tiny")
    assert run.status == "success"
    assert sum(run.samples[0].store["self_ensemble"]) == pytest.approx(1)
    assert {body["top_logprobs"] for body in server.asked} == {20}


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
