"""Read a checkpoint's config.json. Anything that minise does not implement is refused.

A fact that the file leaves out takes its family's default (`config.FAMILIES`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minise.config import FAMILIES, Config, Family, RopeScaling
from minise.errors import InputError, one_line, quote

# Larger than in any model. Without limits, a model that a damaged file describes takes minutes to
# build.
MOST = {
    "vocab_size": 10**7,
    "hidden_size": 10**6,
    "intermediate_size": 10**7,
    "num_hidden_layers": 500,
    "num_attention_heads": 10**4,
    "head_dim": 10**4,
}
# Outside this range the angles overflow, or are the same for every token.
ROTARY = (1e-3, 1e12)


def read_config(path: Path, source: str | None = None) -> Config:
    """Read a config.json. Raises InputError that names the file and the field. `source`: as in
    `config_from_dict`."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; a checkpoint folder needs one") from None
    except (OSError, ValueError, RecursionError) as error:
        why = one_line(error)
        raise InputError(f"{path}: not readable as JSON ({why}); fetch it again") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: holds {type(raw).__name__}, expected a JSON object")
    return config_from_dict(raw, str(path), source)


def config_from_dict(
    raw: dict[str, Any], where: str = "config", source: str | None = None
) -> Config:
    """Check and convert the fields of a config.json. Error messages begin with `where`. `source`:
    the folder or hub id; for an unknown family the message says how to run it otherwise.

    Raises InputError that names the field and its value.

    >>> config_from_dict({"model_type": "llama", "vocab_size": 10, "hidden_size": 8,
    ...     "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}).head_dim
    4
    """
    read = _Reader(raw, where)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        need = f"is implemented only as one of {', '.join(FAMILIES)}"
        raise read.error("model_type", need)
    family = FAMILIES[model_type]
    read.refuse_what_is_not_implemented()

    layers = read.integer("num_hidden_layers")
    heads = read.integer("num_attention_heads")
    hidden = read.integer("hidden_size")
    # An explicit null means one key/value head for each query head, whatever the family.
    kv_default = None if "num_key_value_heads" in raw else family.num_key_value_heads
    kv_heads = read.integer("num_key_value_heads", kv_default or heads)
    if heads % kv_heads:
        raise read.error("num_key_value_heads", f"must divide num_attention_heads {heads}")
    if read.value("head_dim", family.head_dim) is None and hidden % heads:
        raise read.error("hidden_size", f"must be a multiple of num_attention_heads {heads}")
    head_dim = read.integer("head_dim", family.head_dim or hidden // heads)
    if head_dim % 2:
        raise read.error("head_dim", "must be even: rotary embedding turns pairs")
    rope_theta, rope_scaling = read.rope()
    return Config(
        model_type=model_type,
        vocab_size=read.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.integer("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=read.number("rms_norm_eps", 1e-6, 1e-15, 1.0),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position_embeddings=read.integer(
            "max_position_embeddings", family.max_position_embeddings
        ),
        qkv_bias=family.qkv_bias,
        sliding_windows=read.sliding_windows(family, layers),
        tie_word_embeddings=read.boolean("tie_word_embeddings", False),
        qk_norm=family.qk_norm,
    )


class _Reader:
    """Typed access to the raw fields. Every error names file, field and value."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw, self.where = raw, where

    def error(self, name: str, need: str) -> InputError:
        value = quote(self.raw[name]) if name in self.raw else "missing"
        return InputError(f"{self.where}: {name} is {value}; it {need}")

    def value(self, name: str, default: Any) -> Any:
        """The field's value. A null counts as missing."""
        value = self.raw.get(name)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        value, most = self.value(name, default), MOST.get(name, 2**31 - 1)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
            raise self.error(name, f"must be a whole number from 1 to {most:,}")
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self.value(name, default)
        if not _is_number(value, least, most):
            raise self.error(name, f"must be a number from {least:g} to {most:g}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def refuse_what_is_not_implemented(self) -> None:
        """Refuse the facts that would change the numbers if they were ignored."""
        if self.raw.get("hidden_act", "silu") not in ("silu", "swish"):
            raise self.error("hidden_act", 'must be "silu", the one activation implemented')
        quantization = self.raw.get("quantization_config")
        if quantization is not None and not _is_4_bit_bitsandbytes(quantization):
            need = "must be absent or that of bitsandbytes in 4 bits; load the original weights"
            raise self.error("quantization_config", need)
        if self.raw.get("partial_rotary_factor", 1.0) != 1.0:
            raise self.error("partial_rotary_factor", "must be 1 or absent: whole heads turn")
        for name in ("attention_bias", "mlp_bias"):
            if self.raw.get(name):
                raise self.error(name, "must be false or absent: not part of these families")

    def rope(self) -> tuple[float, RopeScaling]:
        """The base and the scaling of the rotary frequencies.

        Older files have `rope_scaling` beside `rope_theta`, newer ones have all in
        `rope_parameters`. Both are read; if a file has both, they must agree.
        """
        old, new = self._rope_facts("rope_scaling"), self._rope_facts("rope_parameters")
        if new and any(new.get(key) != value for key, value in old.items()):
            raise self.error("rope_scaling", "must not contradict rope_parameters")
        name, rope = ("rope_parameters", new) if new else ("rope_scaling", old)

        def number(key: str, default: float | None = None, whole: bool = False) -> float:
            value: Any = default if rope.get(key) is None else rope[key]
            if not _is_number(value, *ROTARY) or (whole and value % 1):
                need, (least, most) = "whole number" if whole else "number", ROTARY
                raise self.error(name, f"must have as {key} a {need} from {least:g} to {most:g}")
            return float(value)

        theta = number("rope_theta", self.number("rope_theta", 10000.0, *ROTARY))
        kind = rope.get("rope_type")
        if kind in (None, "default"):
            if "factor" in rope:
                raise self.error(name, "must have a rope_type that says how factor is used")
            return theta, RopeScaling()
        if kind == "linear":
            return theta, RopeScaling("linear", number("factor"))
        if kind == "llama3":
            scaling = RopeScaling(
                "llama3",
                number("factor"),
                number("low_freq_factor"),
                number("high_freq_factor"),
                int(number("original_max_position_embeddings", whole=True)),
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise self.error(name, "must have high_freq_factor above low_freq_factor")
            return theta, scaling
        raise self.error(name, "must have rope_type default, linear or llama3")

    def _rope_facts(self, name: str) -> dict[str, Any]:
        """One of the two objects of `rope`, empty if it is absent."""
        facts = self.raw.get(name) or {}
        if not isinstance(facts, dict) or any(isinstance(v, dict | list) for v in facts.values()):
            raise self.error(name, "must be one flat object for all layers, or null")
        if facts.get("partial_rotary_factor", 1.0) != 1.0:
            raise self.error(name, "must turn whole heads: no partial_rotary_factor")
        # "type" is the older name of "rope_type".
        return {"rope_type" if key == "type" else key: value for key, value in facts.items()}

    def sliding_windows(self, family: Family, layers: int) -> tuple[int | None, ...]:
        """The window of each layer, or None.

        For a family with windows in "some" layers: none unless `use_sliding_window` is true; then
        in the layers that `layer_types` names, or else from layer `max_window_layers` on.
        """
        window = self.raw.get("sliding_window", family.sliding_window)
        if family.windowed_layers == "none" or window is None:
            return (None,) * layers
        window = self.integer("sliding_window", window)
        if family.windowed_layers == "all":
            return (window,) * layers
        if not self.boolean("use_sliding_window", False):
            return (None,) * layers
        kinds = self.raw.get("layer_types")
        if kinds is not None:
            types = ("full_attention", "sliding_attention")
            if not isinstance(kinds, list) or len(kinds) != layers:
                raise self.error("layer_types", f"must name a type for each of {layers} layers")
            if any(kind not in types for kind in kinds):
                raise self.error("layer_types", f"must hold only {types}")
            return tuple(window if kind == "sliding_attention" else None for kind in kinds)
        full = self.value("max_window_layers", 28)
        if not isinstance(full, int) or isinstance(full, bool) or full < 0:
            raise self.error("max_window_layers", "must be a whole number, 0 or more")
        return tuple(window if layer >= full else None for layer in range(layers))


def _is_4_bit_bitsandbytes(facts: Any) -> bool:
    """Whether a quantization_config is that of a checkpoint which bitsandbytes stored in 4 bits."""
    if not isinstance(facts, dict):
        return False
    method = facts.get("quant_method", "bitsandbytes")
    return method == "bitsandbytes" and facts.get("load_in_4bit") is True


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
