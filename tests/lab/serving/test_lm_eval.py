"""Inside lm-evaluation-harness a task gives the probabilities of `minise.self_ensemble`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minise
from minise.errors import InputError

lm_eval = pytest.importorskip("lm_eval", reason="the extra [harness] is missing")
from lm_eval.tasks import TaskManager  # noqa: E402

ROOT = Path(__file__).parents[3]
WEIGHTS = ROOT / "weights/tiny-llama"
ROWS = [
    {
        "question": f"Which city lies in {land}?",
        "choices": {"text": ["Lima", "Rome", "Oslo", "Cairo", "Quito"], "label": list("ABCDE")},
        "answerKey": key,
    }
    for land, key in [("Peru", "A"), ("Italy", "B"), ("Norway", "C")]
]


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    """The task that the package has, on the rows above, with fewer trials."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    files = {"data_files": {"validation": str(rows)}, "cache_dir": str(folder)}
    task = {"task": "mine", "include": str(ROOT / "minise/lab/serving/qasc_self_ensemble.yaml")}
    task |= {"dataset_path": "json", "dataset_kwargs": files, "metadata": {"trials": 3, "seed": 7}}
    (folder / "mine.yaml").write_text(json.dumps(task), "utf-8")  # JSON is YAML
    return TaskManager(include_path=str(folder), include_defaults=False)


def test_a_task_has_the_probabilities_of_self_ensemble(manager: TaskManager) -> None:
    model = {"pretrained": str(WEIGHTS), "dtype": "float32", "device": "cpu", "batch_size": 8}
    found = lm_eval.simple_evaluate("hf", model, tasks=["mine"], task_manager=manager)
    lm, right = minise.load(WEIGHTS), []
    for row, sample in zip(ROWS, found["samples"]["mine"], strict=True):
        question = minise.Question(row["question"], row["choices"]["text"])
        answer = minise.self_ensemble(lm, question, trials=3, seed=7)
        gold, probabilities = sample["brier_score"]
        np.testing.assert_allclose(probabilities, answer.normalized, rtol=0, atol=1e-5)
        right.append(gold == answer.prediction)
    assert found["results"]["mine"]["acc,none"] == pytest.approx(np.mean(right))


def test_the_task_of_the_docs_asks_a_file_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs/serving.md").read_text("utf-8").partition("```yaml\n")[2]
    (tmp_path / "mine.yaml").write_text(text.partition("```")[0], "utf-8")
    rows = []
    for row in ROWS:
        choices = row["choices"]["text"]
        rows.append({"question": row["question"], "choices": choices, "answer": 0})
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "mine.jsonl").write_text("".join(lines), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    task = TaskManager(include_defaults=False).load(["mine.yaml"])["tasks"]["mine"]
    docs = list(task.test_docs())
    assert len(docs) == len(ROWS)
    first = task.construct_requests(docs[0], ROWS[0]["question"])[0]
    assert first.args[0].startswith("Which city lies in Peru?\n(A) ")


def make_task(manager: TaskManager) -> Any:
    return manager.load(["mine"])["tasks"]["mine"]


def test_what_stands_around_the_question_stands_around_each_prompt(manager: TaskManager) -> None:
    context = f"<user>{ROWS[0]['question']}<end>"
    task = make_task(manager)
    requests = task.construct_requests(ROWS[0], context, apply_chat_template=True)
    contexts = [request.args[0] for request in requests]
    assert all(text.startswith(f"<user>{ROWS[0]['question']}\n(A) ") for text in contexts)
    assert all(text.endswith("(E) None of the above\nAnswer:<end>") for text in contexts[:5])
    assert "".join(request.args[1] for request in requests) == "ABCDEAB" * 3


@pytest.mark.parametrize(
    ("shots", "context", "named"),
    [(5, ROWS[0]["question"], "num_fewshot"), (0, "Which town?", "apply_chat_template")],
)
def test_a_context_that_does_not_fit_is_refused(
    manager: TaskManager, shots: int, context: str, named: str
) -> None:
    task = make_task(manager)
    task.set_config("num_fewshot", shots)
    with pytest.raises(InputError, match=named):
        task.construct_requests(ROWS[0], context)


def test_numbers_that_are_not_finite_are_refused(manager: TaskManager) -> None:
    with pytest.raises(InputError, match="float32"):
        make_task(manager).process_results(ROWS[0], [(float("nan"), False)] * 21)
