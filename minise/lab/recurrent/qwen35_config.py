"""A Qwen3.5's config.json and the names of its tensors, as the library writes them for text alone
and as the hub has them, where the text model lies inside one that sees images, too.

What is left after the keys of this family is a Qwen3's, and read as one: every key is read, or
known to be without effect on the numbers, or refused.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from minise.config import Config
from minise.errors import InputError
from minise.loading.config_json import FULL, Facts, read_config

TEXT = "qwen3_5_text"
LINEAR = "linear_attention"
# What transformers takes where a file leaves it out.
DEFAULTS = {"head_dim": 256, "num_key_value_heads": 4, "max_position_embeddings": 32768}
# Without effect on the numbers of text: heads that guess further tokens, which are not run; in what
# dtype a server keeps its states; that there is a part for images.
WITHOUT_EFFECT = ["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"]
PARTIAL = "rope_parameters.partial_rotary_factor"


@dataclass(frozen=True)
class HybridConfig(Config):
    """The facts of a Qwen3, and those of the layers with a state."""

    layer_types: tuple[str, ...]  # of each layer: "linear_attention" or "full_attention"
    rotary_dim: int  # so many first numbers of an attention head are rotated
    linear_conv_kernel_dim: int  # taps of the short convolution
    linear_num_key_heads: int  # divides linear_num_value_heads
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int


def read_hybrid_config(raw: Any, where: str = "config.json") -> HybridConfig:
    """The facts of a config.json, of text alone or of a model with a `text_config`. Raises
    InputError for what is missing, impossible or not implemented."""
    text = text_part(raw, where)
    rope = dict(text.get("rope_parameters") or {})
    # The three axes of a position (time, height, width) are one number where there are no images.
    for key in ("mrope_section", "mrope_interleaved"):
        rope.pop(key, None)
    outer = text.pop("partial_rotary_factor", None)
    share = Facts({PARTIAL: rope.pop("partial_rotary_factor", outer)}, where)
    part = share.number(PARTIAL, 0.25)
    text["rope_parameters"] = rope
    own = Facts({key: text.pop(key) for key in [*text] if is_own(key)}, where)
    own.one_of("attn_output_gate", (None, True))
    own.one_of("output_gate_type", (None, "swish", "silu"))
    plain = read_config({**DEFAULTS, **text, "model_type": "qwen3"}, where)
    if any(plain.sliding_windows):
        raise InputError(f"{where}: this family has no windows; take use_sliding_window out")
    rotary_dim = int(plain.head_dim * part)
    if rotary_dim < 2 or rotary_dim % 2 or part > 1:
        raise share.error(PARTIAL, "make an even part of head_dim")
    key_heads = own.whole("linear_num_key_heads", 16)
    value_heads = own.whole("linear_num_value_heads", 32)
    if value_heads % key_heads:
        raise own.error("linear_num_value_heads", f"be a multiple of {key_heads}, the key heads")
    facts = {field.name: getattr(plain, field.name) for field in fields(plain)}
    facts["model_type"] = TEXT
    return HybridConfig(
        **facts,
        layer_types=layer_types(own, plain.num_hidden_layers),
        rotary_dim=rotary_dim,
        linear_conv_kernel_dim=own.whole("linear_conv_kernel_dim", 4, least=2, most=64),
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=own.whole("linear_key_head_dim", 128),
        linear_value_head_dim=own.whole("linear_value_head_dim", 128),
    )


def text_part(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The keys of the text model, without those that change nothing."""
    text = raw
    if "text_config" in raw:
        text = raw["text_config"]
        if not isinstance(text, dict) or text.get("model_type") != TEXT:
            raise Facts(raw, where).error("text_config", f"be one of type {TEXT}")
        outer = raw.get("tie_word_embeddings")
        if outer is not None and outer != text.get("tie_word_embeddings", outer):
            need = "be that of text_config"
            raise Facts(raw, where).error("tie_word_embeddings", need)
        text = {"tie_word_embeddings": outer, **text}
    if raw.get("quantization_config"):
        text = {**text, "quantization_config": raw["quantization_config"]}
    return {key: value for key, value in text.items() if key not in WITHOUT_EFFECT}


def is_own(key: str) -> bool:
    """Whether a key is not one of a Qwen3."""
    return key.startswith("linear_") or key in (
        *("attn_output_gate", "output_gate_type", "layer_types", "full_attention_interval"),
    )


def layer_types(own: Facts, layers: int) -> tuple[str, ...]:
    """The kind of each layer: those of the file, or every fourth is full attention."""
    interval = own.whole("full_attention_interval", 4)
    kinds = [FULL if number % interval == 0 else LINEAR for number in range(1, layers + 1)]
    given = own.get("layer_types", kinds)
    is_list = isinstance(given, list) and len(given) == layers
    if not is_list or not all(kind in (FULL, LINEAR) for kind in given):
        raise own.error("layer_types", f"name {FULL} or {LINEAR} for each of {layers} layers")
    return tuple(given)


def text_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the text model by their own names. Those of images, and of heads that guess
    further tokens, are left."""
    found = {}
    for name, tensor in state.items():
        if not name.startswith(("model.visual.", "mtp.")):
            found[name.replace("model.language_model.", "model.", 1)] = tensor
    return found
