"""Equal bits for models of unusual sizes, on the kernels of this machine.

Where a width is not a multiple of a vector, or the bytes of a row are not a multiple of 16, kernels
treat the end or the beginning of a row in another way. Real models have no such widths; forks may.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import branch_logits
from minise.exact import run as exact
from minise.layout import causal_mask
from tests.support.tiny import FAMILIES, load_tiny

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def facts(
    family: str, hidden: int, heads: int, kv: int, h: int, wide: int, V: int
) -> dict[str, Any]:
    return {
        **FAMILIES[family],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": h,
        "intermediate_size": wide,
        "vocab_size": V,
    }


# Widths of the MLP 7, 41 and 129; of a head 6, 20, 24 and 96; odd vocabularies; windows of a few
# tokens, shorter than any group.
SIZES: dict[str, dict[str, Any]] = {
    "llama 7": facts("llama", 20, 3, 1, 20, 7, 289),
    "llama 41": facts("llama", 36, 2, 2, 24, 41, 301),
    "mistral 129": {**facts("mistral", 44, 4, 2, 96, 129, 293), "sliding_window": 3},
    "mistral 7": {**facts("mistral", 13, 2, 1, 6, 7, 283), "sliding_window": 1},
    "qwen2 41": {**facts("qwen2", 35, 6, 2, 24, 41, 287), "sliding_window": 5},
    "qwen2 129": {**facts("qwen2", 21, 5, 5, 20, 129, 285), "sliding_window": 2},
}


@dataclass(frozen=True)
class Prompts:
    prefix: list[int]
    branches: list[list[int]]


def draw_prompts(seed: int) -> Prompts:
    """A trunk of odd or even length, and branches that begin with parts of one another."""
    draw = random.Random(seed)
    prefix = draw.choices(range(50, 280), k=draw.choice((0, 1, 30, 63, 90)))
    branches: list[list[int]] = [draw.choices(range(50, 280), k=9)]
    while len(branches) < 5:
        shared = draw.randrange(len(branches[-1]) + 1)
        ending = draw.choices(range(50, 280), k=draw.choice((1, 4, 17, 37)))
        branches.append(branches[-1][:shared] + ending)
    return Prompts(prefix, branches)


@pytest.fixture(scope="module", params=DTYPES, ids=lambda dtype: str(dtype)[6:])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("name", SIZES)
def test_the_engines_agree_to_the_last_bit(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    lm = load_tiny(tmp_path, SIZES[name], dtype=dtype)
    for seed in range(2):
        prompts = draw_prompts(seed)
        expected = branch_logits(lm, prompts.prefix, prompts.branches, "separate")
        assert expected.isfinite().all()
        for engine in ("dense", "tree"):
            assert torch.equal(
                branch_logits(lm, prompts.prefix, prompts.branches, engine), expected
            )
        whole = [prompts.prefix + branch for branch in prompts.branches] + draw_prompts(
            seed + 10
        ).branches
        together = branch_logits(lm, [], whole)
        assert torch.equal(together[: len(expected)], expected)
        columns = branch_logits(lm, prompts.prefix, prompts.branches, columns=[5, 250, 7])
        assert torch.equal(
            columns[1],
            branch_logits(lm, prompts.prefix, prompts.branches[1:2], columns=[5, 250, 7])[0],
        )


@pytest.mark.parametrize("name", ["llama 41", "mistral 129", "qwen2 41"])
def test_the_engines_agree_on_a_trunk_of_700_tokens(
    tmp_path: Path, dtype: torch.dtype, name: str
) -> None:
    """Longer than a block of keys in any kernel, so that a sum over the keys has several parts, and
    parts are empty outside of a window."""
    lm = load_tiny(tmp_path, SIZES[name], dtype=dtype)
    draw = random.Random(0)
    prefix = draw.choices(range(50, 280), k=700)
    branches = [draw.choices(range(50, 280), k=k) for k in (3, 40)]
    branches.append(branches[1][:20] + branches[0])
    expected = branch_logits(lm, prefix, branches, "separate")
    for engine in ("dense", "tree"):
        assert torch.equal(branch_logits(lm, prefix, branches, engine), expected)


@pytest.mark.parametrize("name", ["llama 7", "mistral 7", "qwen2 129"])
def test_a_batch_gives_each_item_the_bits_that_it_has_alone(
    tmp_path: Path, dtype: torch.dtype, name: str
) -> None:
    decoder = load_tiny(tmp_path, SIZES[name], dtype=dtype).decoder
    tokens = torch.randint(50, 280, (3, 19), generator=torch.Generator().manual_seed(0))
    together = exact.forward(decoder, tokens, torch.arange(19), causal_mask(19))
    for item, hidden in zip(tokens, together, strict=True):
        alone = exact.forward(decoder, item, torch.arange(19), causal_mask(19))
        assert torch.equal(hidden, alone)
        last = exact.forward(decoder, item[:11], torch.arange(11), causal_mask(11))[-1]
        assert torch.equal(hidden[10], last)
        assert torch.equal(exact.logits(decoder, hidden[10]), exact.logits(decoder, hidden)[10])
