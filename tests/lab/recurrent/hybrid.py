"""A tiny random Qwen3.5 with every parameter random and states that fade slowly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from minise import LocalModel, load
from minise.lab.recurrent.qwen35 import Qwen35
from minise.lab.recurrent.qwen35_config import read_hybrid_config
from tests.reference.support.tiny import make_tokenizer

# As the library writes it for text alone.
TINY: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 288,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
SLOW = -4.0  # the mean of A_log: a state fades by about exp(-0.01) a token


def randomise(decoder: torch.nn.Module, A_log: float = SLOW) -> None:
    """Fast decay, as libraries initialise it, hides what leaks through a state."""
    draw = torch.Generator().manual_seed(1)
    for name, parameter in decoder.named_parameters():
        noise = torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
        if name.endswith("A_log"):
            noise = A_log + 0.5 * noise
        elif "embed_tokens" not in name:
            noise = noise * (0.15 if parameter.dim() > 1 else 0.1)
        parameter.data = noise.to(parameter.dtype)


def make_decoder(raw: dict[str, Any] = TINY, A_log: float = SLOW) -> Qwen35:
    """In float64."""
    decoder = Qwen35(read_hybrid_config(raw)).double()
    randomise(decoder, A_log)
    return decoder.requires_grad_(False).eval()


def write_hybrid(folder: Path, raw: dict[str, Any] = TINY, prefix: str = "model.") -> Path:
    """A checkpoint folder. prefix: how the names of the text model's tensors begin."""
    text = raw.get("text_config", raw)
    state = {}
    for name, tensor in make_decoder(text).state_dict().items():
        state[name.replace("model.", prefix, 1)] = tensor.float().contiguous()
    if prefix != "model.":  # what lies beside the text model
        state["model.visual.patch_embed.proj.weight"] = torch.ones(3, 3)
        state["mtp.layers.0.mlp.up_proj.weight"] = torch.ones(3, 3)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    make_tokenizer(bos=False).save(str(folder / "tokenizer.json"))
    return folder


def load_hybrid(folder: Path, dtype: str = "float64", **options: Any) -> LocalModel:
    lm = load(write_hybrid(folder), dtype=dtype, **options)
    assert isinstance(lm, LocalModel)
    return lm


def prompts_of(seed: int) -> tuple[list[int], list[list[int]]]:
    """A beginning of 0 to 130 tokens, and 3 to 8 branches, of which some begin alike."""
    draw = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [draw.randrange(1, 288) for _ in range(count)]

    prefix = ids(draw.choice((0, 1, 3, 20, 64, 130)))
    stems = [ids(3) for _ in range(4)]
    branches = []
    for _ in range(draw.randrange(3, 9)):
        branch: list[int] = []
        for _ in range(draw.randrange(1, 4)):
            branch += draw.choice(stems)
        branches.append(branch + ids(draw.randrange(1, 5)))
    return prefix, branches
