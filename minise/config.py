"""The facts of a checkpoint, read from its config.json. What is not implemented is refused.

The three families are one architecture; they differ in the facts below. Field names are the
checkpoint's own. Where a published config.json leaves a fact out, its family's default applies.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError


@dataclass(frozen=True)
class Family:
    """What a model_type means where its config.json says nothing."""

    qkv_bias: bool
    num_key_value_heads: int | None  # None: as many as query heads
    max_position_embeddings: int
    sliding_window: int | None


FAMILIES = {
    "llama": Family(False, None, 2048, None),
    "mistral": Family(False, 8, 131072, 4096),
    "qwen2": Family(True, 32, 32768, 4096),
}


@dataclass(frozen=True)
class RopeScaling:
    """How the rotary frequencies are stretched: "default" (not at all), "linear" or "llama3"."""

    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class Config:
    """A decoder's shape and constants. `sliding_windows` holds, per layer, the window in
    positions (a token at position i sees j with i - j < window), or None for no window."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling
    max_position_embeddings: int
    qkv_bias: bool
    sliding_windows: tuple[int | None, ...]
    tie_word_embeddings: bool

    @classmethod
    def from_file(cls, path: Path) -> Config:
        """Read a config.json. Raises InputError naming the file and the field."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{path}: no such file; a checkpoint folder needs one") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: not readable as JSON ({error}); fetch it again") from None
        if not isinstance(raw, dict):
            raise InputError(f"{path}: holds {type(raw).__name__}, expected a JSON object")
        return cls.from_dict(raw, where=str(path))

    @classmethod
    def from_dict(cls, raw: dict[str, Any], where: str = "config") -> Config:
        """Check and convert the fields of a config.json; `where` begins every error message.

        >>> Config.from_dict({"model_type": "llama", "vocab_size": 10, "hidden_size": 8,
        ...     "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}).head_dim
        4
        """
        read = _Reader(raw, where)
        model_type = raw.get("model_type")
        if not isinstance(model_type, str) or model_type not in FAMILIES:
            raise read.error("model_type", f"is implemented only as one of {', '.join(FAMILIES)}")
        family = FAMILIES[model_type]
        read.refuse_what_is_not_implemented()

        layers = read.integer("num_hidden_layers")
        heads = read.integer("num_attention_heads")
        hidden = read.integer("hidden_size")
        absent = "num_key_value_heads" not in raw  # null means one for each query head
        kv_heads = read.integer(
            "num_key_value_heads", (family.num_key_value_heads if absent else None) or heads
        )
        if heads % kv_heads:
            raise read.error("num_key_value_heads", f"must divide num_attention_heads {heads}")
        if raw.get("head_dim") is None and hidden % heads:
            raise read.error("hidden_size", f"must be a multiple of num_attention_heads {heads}")
        head_dim = read.integer("head_dim", hidden // heads)
        if head_dim % 2:
            raise read.error("head_dim", "must be even: rotary embedding turns pairs")
        rope_theta, rope_scaling = read.rope()
        return cls(
            model_type=model_type,
            vocab_size=read.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=read.integer("intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            max_position_embeddings=read.integer(
                "max_position_embeddings", family.max_position_embeddings
            ),
            qkv_bias=family.qkv_bias,
            sliding_windows=read.sliding_windows(model_type, family, layers),
            tie_word_embeddings=read.boolean("tie_word_embeddings", False),
        )


class _Reader:
    """Typed access to the raw fields; every complaint names file, field and value."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw, self.where = raw, where

    def error(self, name: str, need: str) -> InputError:
        given = json.dumps(self.raw[name]) if name in self.raw else "missing"
        return InputError(f"{self.where}: {name} is {given}; it {need}")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise self.error(name, "must be a whole number above 0")
        return value

    def number(self, name: str, default: float) -> float:
        return _positive(self.raw.get(name), default, lambda need: self.error(name, need))

    def boolean(self, name: str, default: bool) -> bool:
        value = self.raw.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def refuse_what_is_not_implemented(self) -> None:
        """Facts that would change the numbers if they were passed over in silence."""
        if self.raw.get("hidden_act", "silu") not in ("silu", "swish"):
            raise self.error("hidden_act", 'must be "silu", the one activation implemented')
        if self.raw.get("quantization_config") is not None:
            raise self.error("quantization_config", "must be absent: no quantized weights")
        if self.raw.get("partial_rotary_factor", 1.0) != 1.0:
            raise self.error("partial_rotary_factor", "must be 1 or absent: whole heads turn")
        for name in ("attention_bias", "mlp_bias"):
            if self.raw.get(name):
                raise self.error(name, "must be false or absent: not part of these families")

    def rope(self) -> tuple[float, RopeScaling]:
        """Both spellings: `rope_scaling` beside `rope_theta`, or all in `rope_parameters`."""
        old, new = (self.raw.get(name) or {} for name in ("rope_scaling", "rope_parameters"))
        for name, facts in (("rope_scaling", old), ("rope_parameters", new)):
            if not isinstance(facts, dict) or any(isinstance(v, dict) for v in facts.values()):
                raise self.error(name, "must be one flat object for all layers, or null")
            if facts.get("partial_rotary_factor", 1.0) != 1.0:
                raise self.error(name, "must turn whole heads: no partial_rotary_factor")
        old = {("rope_type" if key == "type" else key): value for key, value in old.items()}
        if new and any(new.get(key) != value for key, value in old.items()):
            raise self.error("rope_scaling", "must not contradict rope_parameters")
        name, rope = ("rope_parameters", new) if new else ("rope_scaling", old)

        def number(key: str, default: float | None) -> float:
            return _positive(
                rope.get(key), default, lambda need: self.error(name, f"has a {key} that {need}")
            )

        theta = number("rope_theta", self.number("rope_theta", 10000.0))
        kind = rope.get("rope_type", rope.get("type"))
        if kind in (None, "default"):
            if "factor" in rope:
                raise self.error(name, "must say by rope_type how its factor is meant")
            return theta, RopeScaling()
        if kind == "linear":
            return theta, RopeScaling("linear", number("factor", None))
        if kind == "llama3":
            scaling = RopeScaling(
                "llama3",
                number("factor", None),
                number("low_freq_factor", None),
                number("high_freq_factor", None),
                int(number("original_max_position_embeddings", None)),
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise self.error(name, "must have high_freq_factor above low_freq_factor")
            return theta, scaling
        raise self.error(name, "must have rope_type default, linear or llama3")

    def sliding_windows(
        self, model_type: str, family: Family, layers: int
    ) -> tuple[int | None, ...]:
        """LLaMA has none; Mistral one for all layers; Qwen2 only if `use_sliding_window`, and
        then from layer `max_window_layers` on (or where `layer_types` says so)."""
        window = self.raw.get("sliding_window", family.sliding_window)
        if model_type == "llama" or window is None:
            return (None,) * layers
        window = self.integer("sliding_window", window)
        if model_type == "mistral":
            return (window,) * layers
        if not self.boolean("use_sliding_window", False):
            return (None,) * layers
        kinds = self.raw.get("layer_types")
        if kinds is not None:
            known = ("full_attention", "sliding_attention")
            if not isinstance(kinds, list) or len(kinds) != layers:
                raise self.error("layer_types", f"must name a type for each of {layers} layers")
            if any(kind not in known for kind in kinds):
                raise self.error("layer_types", f"must hold only {known}")
            return tuple(window if kind == "sliding_attention" else None for kind in kinds)
        full = self.raw.get("max_window_layers")
        full = 28 if full is None else full
        if not isinstance(full, int) or isinstance(full, bool) or full < 0:
            raise self.error("max_window_layers", "must be a whole number, 0 or more")
        return tuple(window if layer >= full else None for layer in range(layers))


def _positive(value: Any, default: float | None, error: Any) -> float:
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
        raise error("must be a number above 0")
    return float(value)
