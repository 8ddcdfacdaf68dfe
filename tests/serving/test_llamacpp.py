"""llama.cpp's own server with a tiny model, beside the same weights here."""

from pathlib import Path
from typing import Any

import pytest

from minise import LanguageModel, Question, load
from minise.data.tasks import Selection, load_tasks
from minise.method import SelfEnsemble, label_logits
from tests.serving.conftest import start_llamacpp, write_gguf


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
        plan = SelfEnsemble(trials=3).plan(models[0], question)
        wide, *others = (label_logits(lm, plan) for lm in models)
        for name, rows in zip(apart, others, strict=True):
            pairs = [(a.softmax(-1), b.softmax(-1)) for a, b in zip(wide, rows, strict=True)]
            apart[name] = max(apart[name], *(float((p - q).abs().max()) for p, q in pairs))
    assert 0 < apart["served"] < 4 * apart["ours"] < 1e-4


def test_its_cache_computes_what_a_tree_does(
    models: list[LanguageModel], questions: list[Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which prompts go out, each shares most with the one before."""
    served = models[-1]
    plan = SelfEnsemble().plan(served, questions[0])
    request, replies = served.elsewhere.request, list[dict[str, Any]]()

    def watch(path: str, body: dict[str, Any]) -> Any:
        body["response_fields"].append("timings")
        replies.append(request(path, body))
        return replies[-1]

    monkeypatch.setattr(served.elsewhere, "request", watch)
    label_logits(served, plan)
    firsts = [
        one for one in replies if len(one["completion_probabilities"][0]["top_logprobs"]) == 100
    ]
    asked = sum(one["tokens_evaluated"] for one in firsts)
    computed = asked - sum(one["timings"]["cache_n"] for one in firsts)
    prompts = set(map(tuple, plan.branches))
    assert asked == sum(len(plan.prefix) + len(branch) for branch in prompts)
    assert computed <= plan.tokens("tree") + len(prompts)
    assert asked > 1.5 * computed
