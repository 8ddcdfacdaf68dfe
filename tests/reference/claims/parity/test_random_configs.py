"""Our decoder against the reference library on random configurations of all families."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

from minise import load
from tests.reference.support.reference import (
    SIZES,
    float64_islands,
    reference_logits,
    reference_model,
    runs,
    windows,
    write_checkpoint,
)

SEEDS = range(80)

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def random_case(seed: int) -> dict[str, Any]:
    """A config that the library accepts. The families take turns."""
    draw = random.Random(seed)
    heads = draw.choice((2, 3, 4, 6))
    own_width = draw.choice((4, 6, 8))  # a head's share of the stream
    model_type = MODEL_TYPES[seed % len(MODEL_TYPES)]
    layers, window = draw.choice((1, 2, 3, 4)), draw.choice((1, 3, 5, 9))
    case: dict[str, Any] = {
        **SIZES,
        "model_type": model_type,
        "hidden_size": heads * own_width,
        "intermediate_size": draw.choice((20, 33, 64)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([K for K in range(1, heads + 1) if heads % K == 0]),
        "rms_norm_eps": draw.choice((1e-6, 1e-5, 1e-2)),
        "tie_word_embeddings": draw.random() < 0.5,
        "rope_parameters": random_rope(draw),
    }
    if model_type != "qwen2" and draw.random() < 0.5:
        case["head_dim"] = draw.choice([width for width in (4, 8, 10, 16) if width != own_width])
    if model_type == "mistral":
        case["sliding_window"] = draw.choice((None, window, window))
    if model_type.startswith("qwen") and draw.random() < 0.7:
        case |= {"use_sliding_window": True, "sliding_window": window}
        if draw.random() < 0.5:
            case["max_window_layers"] = draw.randint(0, layers)
        else:  # in any order
            kinds = ("full_attention", "sliding_attention")
            case["layer_types"] = draw.choices(kinds, k=layers)
    return case


def random_rope(draw: random.Random) -> dict[str, Any]:
    rope: dict[str, Any] = {
        "rope_type": draw.choice(("default", "linear", "llama3")),
        "rope_theta": draw.choice((20.0, 500.0, 10000.0, 1000000.0)),
    }
    if rope["rope_type"] != "default":
        rope["factor"] = draw.choice((2.0, 4.0, 8.0))
    if rope["rope_type"] == "llama3":
        rope["low_freq_factor"] = draw.choice((1.0, 2.0))
        rope["high_freq_factor"] = draw.choice((4.0, 8.0))
        rope["original_max_position_embeddings"] = draw.choice((16, 64, 128))
    return rope


@pytest.mark.parametrize("seed", SEEDS)
@torch.no_grad()
def test_float64_logits_equal_those_of_the_library(seed: int, tmp_path: Path) -> None:
    """Of a plain prompt, masked by the library itself, and of a packed one with its full mask."""
    folder = write_checkpoint(random_case(seed), tmp_path, seed=seed)
    decoder = load(str(folder), dtype=torch.float64).decoder
    assert list(decoder.config.sliding_windows) == windows(
        reference_model(folder, torch.float64).config
    )
    for run, (tokens, positions, mask) in runs().items():
        given = None if run == "causal" else mask
        with float64_islands():
            expected = reference_logits(folder, tokens, positions, given, torch.float64)
        ours = decoder.logits(decoder(tokens, positions, mask))
        assert expected.std() > 0.5  # a model that says nothing would agree with any other
        assert (ours - expected).abs().max() <= 1e-9, run
