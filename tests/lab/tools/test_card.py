"""The program for a GPU, with a CPU in its place."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minise import load
from tools.bench import card
from tools.bench.flex import FlexDecoder
from tools.bench.ways import WORK, labels_after, prompts_of


@pytest.mark.slow
def test_the_written_model_has_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "SQUARES", (64,))
    for name in ("ROUNDS", "PRODUCTS"):
        monkeypatch.setattr(card, name, 1)
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 999}
    monkeypatch.setattr(card, "SHAPE", card.SHAPE | small)
    card.write_model(tmp_path / "model", "cpu")
    found = card.rate(str(tmp_path / "model"), "cpu", "float32")
    assert found.pop("TFLOP/s of the best product") >= 0
    assert found.keys() == card.GOALS.keys()
    assert all(one["a second"] > 0 and one["tokens"] > 300 for one in found.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own
def test_flex_attention_gives_what_chunks_give() -> None:
    """Compiled, with a C++ compiler; also under sliding windows."""
    for folder in ("weights/tiny-llama", "weights/tiny-mistral"):
        lm = load(folder, dtype=torch.float32)
        prompts = prompts_of(WORK["truthfulqa"], lm.config.vocab_size)
        by_chunks = labels_after(lm, prompts, "tree")
        flex = replace(lm, decoder=FlexDecoder(lm.decoder))
        by_flex = labels_after(flex, prompts, "tree")
        torch.testing.assert_close(by_flex, by_chunks, rtol=1e-4, atol=1e-4)
