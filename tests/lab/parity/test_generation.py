"""Greedy text against the reference library's `generate`, token for token."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import transformers

from minise import generate, load
from minise.lab.writing import generation
from tests.reference.support.reference import CASES, write_checkpoint

SHIPPED = Path(__file__).parents[3] / "weights"


def library_text(folder: Path, ids: list[int], count: int, stop: int | None) -> list[int]:
    """What the library writes, in float64, with its own cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    settings = transformers.GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=stop, pad_token_id=0
    )
    given = torch.tensor([ids])
    with torch.inference_mode():
        made = model.generate(
            given, attention_mask=torch.ones_like(given), generation_config=settings
        )
    return made[0, len(ids) :].tolist()


@pytest.mark.parametrize("name", list(CASES)[1::2])
def test_random_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "stop_tokens", lambda lm: [])
    folder = write_checkpoint(CASES[name], tmp_path)
    ids = [3, 50, 51, 52, 60, 61]
    ours = generate(load(folder, dtype=torch.float64), [ids], 40)[0]
    assert ours.tokens == library_text(folder, ids, 40, None)


@pytest.mark.parametrize(
    "name",
    [
        "tiny-mistral",
        pytest.param("tiny-llama", marks=pytest.mark.slow),
        pytest.param("tiny-qwen2", marks=pytest.mark.slow),
    ],
)
def test_shipped_models(name: str) -> None:
    """Far beyond Mistral's window of 40."""
    lm = load(SHIPPED / name, dtype=torch.float64)
    ids = lm.tokenizer.encode(["What is the capital of Spain?\n(A) Paris\n(B) Madrid\n"])[0]
    ours = generate(lm, [ids], 110)[0]
    ending = [1] if ours.finished else []  # the library's text holds its stop token
    assert len(ours.tokens) > 100
    assert [*ours.tokens, *ending] == library_text(SHIPPED / name, ids, 110, 1)
