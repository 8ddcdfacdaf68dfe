"""Tiny random models of every causal class of the library transformers that can be built tiny, and
what becomes of their packed passes.

Windows and chunks are 16 and 32 tokens: shorter than the prompts below. Every parameter is random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import InputError, load
from minise.engines import separate
from minise.lab.serving.packable import unknown_part
from minise.lab.serving.transformers import PackedSoFar, TransformersModel, error_of_packing
from tests.reference.support.tiny import make_tokenizer

library = pytest.importorskip("transformers", reason="the extra [parity] is missing")
MOST_PARAMETERS = 2e7  # of a tiny model

# Fields of configs, under all the names that they have. A config is given those that it knows.
SIZES: dict[int, str] = {
    288: "vocab_size vocab_size_per_layer_input unpadded_vocab_size",
    32: "hidden_size d_model n_embd dim dim_model embedding_size embedding_dim word_embed_proj_dim "
    "n_embed lru_width attention_chunk_size chunk_size",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
    "encoder_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts "
    "zero_expert_num linear_num_value_heads mamba_n_heads mamba_num_heads n_mamba_heads",
    2: "num_key_value_heads num_kv_heads n_head_kv num_attention_groups num_experts_per_tok moe_k "
    "top_k_experts moe_topk experts_per_token num_experts_per_token moe_top_k index_n_heads "
    "linear_num_key_heads eos_token_id",
    8: "head_dim d_kv kv_channels qk_nope_head_dim qk_rope_head_dim v_head_dim attention_head_dim "
    "hidden_size_per_layer_input global_head_dim swa_head_dim index_topk index_head_dim "
    "mamba_d_state linear_key_head_dim linear_value_head_dim state_size ssm_state_size",
    48: "intermediate_size ffn_dim n_inner d_ff ffn_hidden_size dim_ff dff decoder_ffn_dim "
    "encoder_ffn_dim intermediate_size_mlp dense_intermediate_size",
    16: "qk_head_dim moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size "
    "shared_intermediate_size moe_shared_expert_intermediate_size q_lora_rank kv_lora_rank "
    "o_lora_rank attention_window_size window_size mamba_d_head mamba_head_dim keep_window_size",
    1: "n_shared_experts num_shared_experts n_group topk_group first_k_dense_replace "
    "num_nextn_predict_layers mamba_n_groups n_groups bos_token_id",
    512: "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length "
    "max_target_positions n_words",
    0: "pad_token_id",
}
LAYERS = "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers"

# What some classes need besides. A name with a comma is another config of the class before it.
HEADS = {"num_key_value_heads": 4}
DECODER = {"is_decoder": True}
DENSE = {"head_dim": 8}
INDEXER = {
    **{"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8},
    **{"indexer_budget": 16, "indexer_compress_ratio": 4},
}
HYBRID = {"layer_types": ["conv", "full_attention"]}
VISION = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}
OWN: dict[str, dict[str, Any]] = {
    "codegen": {"rotary_dim": 4},
    "deepseek_v2": {**HEADS, "num_experts_per_tok": 2},
    "dots1": {
        **{"n_routed_experts": 4, "num_local_experts": 4, "n_shared_experts": 1},
        **{"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    },
    "falcon, rotary": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon, alibi": {"alibi": True},
    "falcon_h1": {"mamba_d_ssm": None, "mamba_expand": 2},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granite": {"attention_multiplier": 0.5, "logits_scaling": 2.0},
    "granitemoehybrid, attention only": {"layer_types": ["attention", "attention"]},
    "hunyuan_v1_dense": DENSE,
    "hunyuan_v1_moe": DENSE,
    "lfm2": HYBRID,
    "lfm2_moe": {**HYBRID, "num_dense_layers": 1},
    "lfm2, attention only": {"layer_types": ["full_attention", "full_attention"]},
    "kimi_linear": {**HEADS, "linear_head_dim": 8, "linear_num_heads": 4},
    "llama, dynamic rope": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        "max_position_embeddings": 64,
    },
    "mamba2": {"head_dim": 16},
    "ministral": DENSE,
    "nemotron": {**DENSE, "num_key_value_heads": 2},
    "phi3, longrope": {
        "rope_parameters": LONG_ROPE,
        "original_max_position_embeddings": 64,
    },
    "qwen2, windows": {"use_sliding_window": True, "max_window_layers": 1},
    "qwen4_exp": INDEXER,
    "qwen4_exp_text": INDEXER,
    "reformer": {
        **DECODER,
        **{"attention_head_size": 8, "feed_forward_size": 48, "attn_layers": ["local", "lsh"]},
        **{"axial_pos_shape": [16, 32], "axial_pos_embds_dim": [16, 16]},
        **{"local_attn_chunk_length": 16, "lsh_attn_chunk_length": 16},
    },
    "stablelm, parallel": {"use_parallel_residual": True, "qk_layernorm": True},
    "xlm": {"emb_dim": 32, "causal": True},
    "xmod": {**DECODER, "languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": {
        **{"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
        **{"attention_hidden_size": 64, "attention_head_dim": 16},
    },
    "zamba2": {
        **{"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
        **{"mamba_headdim": 16, "mamba_ngroups": 1, "num_mem_blocks": 1},
    },
    "zaya": {"num_experts_per_tok": 1},
}
OF_MLA = "axk1 axk2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa"
for name in [*OF_MLA.split(), "longcat_flash", "minicpm3", "sarvam_mla", "youtu"]:
    OWN[name] = HEADS
ENCODERS = (
    "bart bert bert-generation big_bird bigbird_pegasus blenderbot blenderbot-small camembert "
    "data2vec-text electra ernie marian mbart megatron-bert mvp pegasus plbart rembert roberta "
    "roberta-prelayernorm roc_bert roformer trocr xlm-roberta xlm-roberta-xl"
)
for name in ENCODERS.split():
    OWN[name] = DECODER


def names() -> list[str]:
    """The causal classes of the installed library, by model_type, and other configs of some."""
    found = library.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    variants = [name for name in OWN if "," in name and name.partition(",")[0] in found]
    return sorted([*found, *variants])


def tiny_config(name: str) -> Any:
    """The config of a tiny model. Layers: so many that each kind of layer occurs."""
    model_type = name.partition(",")[0]
    default = library.CONFIG_MAPPING[model_type]()
    text = default.get_text_config()
    known = text.to_dict()
    facts: dict[str, Any] = {}
    for size, fields in SIZES.items():
        facts |= {field: size for field in fields.split() if known.get(field) is not None}
    kinds = getattr(text, "layer_types", None) or []
    layers = max([2, *(kinds.index(kind) + 1 for kind in set(kinds))])
    facts |= {field: layers for field in LAYERS.split() if field in known}
    if "sliding_window" in known:
        facts["sliding_window"] = 16
    own = OWN.get(name, {})
    if text is default:
        return type(default)(**{**facts, **own})
    (holder,) = [field for field in default.sub_configs if getattr(default, field, None) is text]
    parts: dict[str, Any] = {holder: {"model_type": text.model_type, **facts, **own}}
    if getattr(default, "vision_config", None) is not None:
        kind = default.vision_config.model_type
        parts["vision_config"] = {"model_type": kind, **VISION}
    return type(default)(**parts)


def build(folder: Path, name: str) -> None:
    """A tiny model written to a folder, with a tokenizer. Raises what the library raises."""
    config = tiny_config(name)
    with torch.device("meta"):
        shape = library.AutoModelForCausalLM.from_config(config)
    parameters = sum(one.numel() for one in shape.parameters())
    if parameters > MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters")
    torch.manual_seed(0)
    model = library.AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        width = 0.2 if parameter.dim() > 1 else 0.1  # scores of attention that tell tokens apart
        parameter.data += width * torch.randn(parameter.shape, generator=draw)
        if name.endswith("A_log"):
            parameter.data -= 3.0  # states that fade slowly, or what leaks through them is not seen
    model.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))


def load_tiny_of(folder: Path, name: str, dtype: str = "float32") -> TransformersModel:
    """A tiny model, written to a folder and loaded from it."""
    build(folder, name)
    lm = load(f"transformers:{folder}", dtype=dtype)
    assert isinstance(lm, TransformersModel)
    return lm


def some_ids(count: int, seed: int) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(5, 288, (count,), generator=draw).tolist()


def prompts_of(seed: int, trunk: int, *lengths: int) -> tuple[list[int], list[list[int]]]:
    """A beginning and branches of these lengths."""
    branches = [some_ids(length, 100 * seed + place) for place, length in enumerate(lengths, 1)]
    return some_ids(trunk, 100 * seed), branches


# From passes in which nothing reaches a window or a chunk to those in which each prompt does.
PASSES = [
    prompts_of(1, 4, 2, 1, 2),
    prompts_of(2, 6, 5, 5, 5, 5, 5, 5),
    prompts_of(3, 20, 80, 80, 20),
    prompts_of(4, 40, 40, 40, 40),
    prompts_of(5, 3, 60, 1, 7, 30),
]
FROM_SHORT = [*PASSES, *PASSES]
FROM_LONG = [*PASSES[::-1], *PASSES]


@dataclass(frozen=True)
class Row:
    """What became of a model. how: "packed", "separate prompts", "not built". why: if not packed.
    error: the largest of the logits that it gave, in standard deviations, against prompts alone."""

    name: str
    how: str
    why: str
    error: float


def judge(folder: Path, name: str) -> Row:
    """Ask a model short and long prompts in both orders, and compare all with prompts alone."""
    try:
        build(folder, name)
    except Exception as error:  # of many kinds, of the library and of what it calls
        return Row(name, "not built", f"{type(error).__name__}: {' '.join(str(error).split())}", 0)
    try:
        lm = load(f"transformers:{folder}", dtype="float32")
        assert isinstance(lm, TransformersModel)
        alone = [separate(lm.decoder, *prompts) for prompts in PASSES]
    except (InputError, RuntimeError, ValueError, TypeError) as error:
        return Row(name, "not built", " ".join(str(error).split()).replace(str(folder), name), 0)
    why = unknown_part(lm.decoder.model)
    errors = []
    for passes in (FROM_SHORT, FROM_LONG) if why is None else (PASSES,):
        fresh = replace(lm, packing=PackedSoFar(name, given_up=why is not None))
        for prompts in passes:
            right = alone[PASSES.index(prompts)]
            errors.append(error_of_packing(fresh.hidden_at_ends(*prompts), right))
        if fresh.packing.given_up and why is None:
            why = "packed, its numbers are others"
    how = "packed" if why is None else "separate prompts"
    return Row(name, how, why or "", max(errors))
