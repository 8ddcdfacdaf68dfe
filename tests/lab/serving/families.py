"""Tiny random models of the transformers library, of families that it packs right and wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import load
from minise.lab.serving.transformers import TransformersModel
from tests.reference.support.tiny import make_tokenizer

library = pytest.importorskip("transformers", reason="the extra [parity] is missing")
SIZES: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
SMALL_EXPERTS = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# Windows and chunks are shorter than a prompt, or than a packed pass.
WINDOW = {"head_dim": 8, "sliding_window": 16}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


@dataclass(frozen=True)
class Family:
    """A model_type of the library, and what its config has in addition to SIZES."""

    model_type: str
    facts: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "llama": Family("llama"),
    "qwen3": Family("qwen3", {"head_dim": 8}),
    "gemma2": Family("gemma2", WINDOW),
    "gemma3_text": Family("gemma3_text", WINDOW),
    "olmo2": Family("olmo2"),
    "phi3": Family("phi3"),
    "mistral with a window": Family("mistral", {"sliding_window": 16}),
    "gpt_neox": Family("gpt_neox"),
    "qwen2_moe": Family("qwen2_moe", EXPERTS | SMALL_EXPERTS),
    "mixtral": Family("mixtral", {"num_local_experts": 4}),
    "falcon, rotary": Family("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "gpt2": Family("gpt2"),
    "gptj": Family("gptj", {"rotary_dim": 4}),
    "opt": Family("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "stablelm": Family("stablelm"),
    "cohere": Family("cohere"),
    "starcoder2 with a window": Family("starcoder2", {"sliding_window": 16}),
    "granite": Family("granite", {"attention_multiplier": 0.5, "logits_scaling": 2.0}),
    "smollm3": Family("smollm3"),
    "gpt_oss": Family("gpt_oss", {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "bloom": Family("bloom"),
    "falcon, alibi": Family("falcon", {"alibi": True}),
    "mpt": Family("mpt"),
    "qwen3_next": Family(
        "qwen3_next",
        {**EXPERTS, **SMALL_EXPERTS, **LINEAR, "head_dim": 8, "num_hidden_layers": 4},
    ),
    "gpt_neo": Family(
        "gpt_neo", {"attention_types": [[["global", "local"], 1]], "window_size": 32}
    ),
    "llama4_text": Family(
        "llama4_text",
        {
            "attention_chunk_size": 32,
            "num_local_experts": 2,
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "num_hidden_layers": 4,
        },
    ),
    "phi3, longrope": Family(
        "phi3", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 64}
    ),
    "llama, dynamic rope": Family(
        "llama", {"rope_parameters": DYNAMIC_ROPE, "max_position_embeddings": 64}
    ),
}


def load_family(folder: Path, name: str, dtype: str = "float32") -> TransformersModel:
    """A model of FAMILIES with every parameter random, written to a folder and loaded."""
    family = FAMILIES[name]
    config = library.AutoConfig.for_model(family.model_type, **{**SIZES, **family.facts})
    torch.manual_seed(0)
    model = library.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    lm = load(f"transformers:{folder}", dtype=dtype)
    assert isinstance(lm, TransformersModel)
    return lm
