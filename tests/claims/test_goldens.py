"""Our decoder against logits of the reference library, frozen by `python -m tools.make_goldens`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from minise.loading.checkpoint import read_weights
from minise.loading.config_json import read_config
from minise.loading.stored import read_headers

GOLDENS = Path(__file__).parents[1] / "support" / "goldens"
CASES = [
    "llama-grouped",
    "llama-linear-wide-heads",
    "llama-tied-llama3",
    "mistral-no-window",
    "mistral-window",
    "qwen2-biases",
    "qwen2-tied-mixed-windows",
    "qwen3-tied-mixed-windows",
    "qwen3-untied",
]


def test_the_frozen_checkpoints_are_complete() -> None:
    assert sorted(path.name for path in GOLDENS.iterdir()) == CASES
    for case in CASES:
        files = sorted(path.name for path in (GOLDENS / case).iterdir())
        assert files == ["config.json", "golden.safetensors", "model.safetensors"]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=str
)
@pytest.mark.parametrize("run", ["causal", "packed"])
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_reference_librarys_on_frozen_checkpoints(
    case: str, run: str, dtype: torch.dtype, tolerance: float
) -> None:
    folder = GOLDENS / case
    golden = load_file(folder / "golden.safetensors")
    config = read_config(folder / "config.json")
    stored = read_headers(config, [folder / "model.safetensors"])
    decoder = read_weights(stored, dtype, torch.device("cpu"))
    with torch.no_grad():
        hidden = decoder(golden[f"{run}.tokens"], golden[f"{run}.positions"], golden[f"{run}.mask"])
        logits = decoder.logits(hidden)
    expected = golden[f"{run}.logits"]
    assert logits.dtype == dtype
    assert logits.shape == expected.shape
    assert expected.abs().max() > 5
    assert (logits - expected).abs().max() <= tolerance
