"""llama.cpp's own server with a tiny model, beside the same weights here."""

import csv
from pathlib import Path
from typing import Any

import pytest

from minise import LanguageModel, Question, load
from minise.commands.cli import main
from minise.engines import token_counts
from minise.lab.data.tasks import Selection, load_tasks
from minise.method import SelfEnsemble
from tests.lab.serving.conftest import start_llamacpp, write_gguf, write_shipped


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return load_tasks(["miniature"], Selection(limit=20))[0].questions


@pytest.fixture(scope="module")
def models(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LanguageModel]:
    """The model in float64, in float32, and served."""
    wide, narrow = (load(folder, dtype=dtype) for dtype in ("float64", "float32"))
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, narrow.decoder, narrow.config)
    server = start_llamacpp(path)
    served = load(f"server:{server.listening_address}", tokenizer=folder)
    object.__setattr__(served, "process", server)  # it ends with the model
    return [wide, narrow, served]


def test_probabilities_are_those_of_the_weights_within_rounding(
    models: list[LanguageModel], questions: list[Question]
) -> None:
    """llama.cpp computes in float32 too, and adds in another order: it may be as far from float64
    as we are in float32, times what another order may do."""
    apart = {"ours": 0.0, "served": 0.0}
    for question in questions:
        _, prompts = SelfEnsemble(trials=3).prompts(models[0], question)
        wide, *others = (lm.logits(prompts) for lm in models)
        for name, rows in zip(apart, others, strict=True):
            for a, b in zip(wide, rows, strict=True):
                gap = (a.labels.softmax(dim=-1) - b.labels.softmax(dim=-1)).abs().max()
                apart[name] = max(apart[name], float(gap))
    assert 0 < apart["served"] < 4 * apart["ours"] < 1e-4


def test_its_cache_computes_what_a_tree_does(
    models: list[LanguageModel], questions: list[Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which prompts go out, each shares most with the one before."""
    served = models[-1]
    _, prompts = SelfEnsemble().prompts(served, questions[0])
    request, replies = served.server.request, list[dict[str, Any]]()

    def watch(path: str, body: dict[str, Any]) -> Any:
        body["response_fields"].append("timings")
        replies.append(request(path, body))
        return replies[-1]

    monkeypatch.setattr(served.server, "request", watch)
    served.logits(prompts)
    firsts = [
        one for one in replies if len(one["completion_probabilities"][0]["top_logprobs"]) == 100
    ]
    asked = sum(one["tokens_evaluated"] for one in firsts)
    computed = asked - sum(one["timings"]["cache_n"] for one in firsts)
    branches = set(map(tuple, prompts.branches))
    assert asked == sum(len(prompts.prefix) + len(branch) for branch in branches)
    tree = token_counts(prompts.prefix, prompts.branches)["tree"]
    assert computed <= tree + len(branches)
    assert asked > 1.5 * computed


# A table of questions, asked of llama.cpp's server with a shipped model and its tokens.

SHIPPED = Path(__file__).parents[3] / "weights" / "tiny-llama"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("shipped") / "tiny-llama.gguf"
    write_shipped(path, SHIPPED)
    return start_llamacpp(path)


@pytest.mark.parametrize("path", ["", "/v1/completions", "/v1/chat/completions"])
def test_a_table_of_twenty_questions_becomes_predictions(
    shipped: Any, questions: list[Question], tmp_path: Path, path: str
) -> None:
    """By token ids, as texts, and as chats. What a form does not give is left out, and counted."""
    table = tmp_path / "my.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "question", "choice1", "choice2", "choice3", "choice4"])
        for question in questions:
            rows.writerow([question.id, question.text, *question.choices[:4]])
    words = ["eval", "--task", str(table), "--method", "standard", "--tokenizer", str(SHIPPED)]
    here = tmp_path / "here"
    there = tmp_path / "there"
    address = f"server:{shipped.listening_address}{path}"
    assert main([*words[:-2], "--model", str(SHIPPED), "--dtype", "float32", "-o", str(here)]) == 0
    assert main([*words, "--model", address, "-o", str(there)]) == 0
    right = read_predictions(here)
    read = read_predictions(there)
    left_out = len(questions) - len(read)
    report = (there / "report.md").read_text()
    assert (f"{left_out} of 20 questions are left out" in report) == (left_out > 0)
    assert len(read) >= 12
    for name, row in read.items():
        assert row["prediction"] == right[name]["prediction"]
        # A chat also counts labels without a blank before them.
        apart = abs(float(row["normalized"]) - float(right[name]["normalized"]))
        assert apart < (0.02 if "chat" in path else 1e-3)


def read_predictions(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "predictions.csv").open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file) if not row["left_out"]}
