"""Read a config.json. What would change the numbers and is not implemented is refused.

A fact that the file leaves out takes its family's default (`config.FAMILIES`).
"""

from typing import Any

from minise.config import FAMILIES, Config, Family, RopeScaling
from minise.errors import InputError, quote

FULL, SLIDING = "full_attention", "sliding_attention"
# The values that are implemented; None: absent or null.
ONLY: dict[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu", "swish"),
    "rope_type": (None, "default", "linear", "llama3"),
    "partial_rotary_factor": (None, 1.0),
    **dict.fromkeys(("attention_bias", "mlp_bias"), (None, False)),
    **dict.fromkeys(("tie_word_embeddings", "use_sliding_window"), (None, False, True)),
}
MOST = {"num_hidden_layers": 500}  # to build more than any model has would take minutes
SIZES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
SIZES += ["num_attention_heads"]


def read_config(raw: Any, where: str = "config.json") -> Config:
    """Check and convert the content of a config.json. Raises InputError that begins with `where`
    and names the field and its value."""
    if not isinstance(raw, dict):
        raise InputError(f"{where}: holds {type(raw).__name__}, not a JSON object; fetch it again")
    facts, model_type = _Facts(raw, where), raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise facts.error("model_type", f"be one of {', '.join(FAMILIES)}, or use transformers:ID")
    if raw.get("quantization_config"):
        raise facts.error(
            "quantization_config", "be absent; take the original weights, or use transformers:ID"
        )
    family, sizes = FAMILIES[model_type], {name: facts.whole(name) for name in SIZES}
    heads = sizes["num_attention_heads"]
    # An explicit null means one key/value head for each query head, whatever the family.
    kv_default = None if "num_key_value_heads" in raw else family.num_key_value_heads
    kv_heads = facts.whole("num_key_value_heads", kv_default or heads)
    head_dim = facts.whole("head_dim", family.head_dim or sizes["hidden_size"] // heads)
    if heads % kv_heads:
        raise facts.error("num_key_value_heads", f"divide num_attention_heads {heads}")
    if head_dim % 2:
        raise facts.error("head_dim", "be even: rotary embedding turns pairs")
    theta, scaling = _rope(facts)
    positions = facts.whole("max_position_embeddings", family.max_position_embeddings)
    return Config(
        model_type=model_type,
        **sizes,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=facts.number("rms_norm_eps", 1e-6, least=1e-15),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=positions,
        qkv_bias=family.qkv_bias,
        sliding_windows=_windows(facts, family, sizes["num_hidden_layers"]),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings")),
        qk_norm=family.qk_norm,
    )


class _Facts:
    """The fields of a JSON object. A null counts as missing. Whole numbers are from 1 on, others
    from 0.001 to 1e12: beyond, rotary angles overflow or are the same for every token."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw, self.where = raw, where
        for name, values in ONLY.items():
            if raw.get(name) not in values:
                known = ", ".join(quote(value) for value in values if value is not None)
                raise self.error(name, f"be one of {known}")

    def error(self, name: str, need: str) -> InputError:
        value = quote(self.raw[name]) if name in self.raw else "missing"
        return InputError(f"{self.where}: {name} is {value}; it must {need}")

    def whole(self, name: str, default: int | None = None, least: int = 1) -> int:
        return int(self._number(name, default, least, MOST.get(name, 10**8), (int,)))

    def number(self, name: str, default: float | None = None, least: float = 1e-3) -> float:
        return float(self._number(name, default, least, 1e12, (int, float)))

    def _number(self, name: str, default: Any, least: Any, most: Any, kinds: Any) -> Any:
        value = default if self.raw.get(name) is None else self.raw[name]
        if type(value) not in kinds or not least <= value <= most:
            raise self.error(name, f"be of type {kinds[-1].__name__}, from {least} to {most:,}")
        return value


def _rope(facts: _Facts) -> tuple[float, RopeScaling]:
    """The base and the scaling of the rotary frequencies. Older files have `rope_scaling` beside
    `rope_theta`, newer ones have all in `rope_parameters`; if a file has both, they must agree."""
    both = []
    for name in ("rope_scaling", "rope_parameters"):
        rope = facts.raw.get(name) or {}
        if not isinstance(rope, dict) or any(isinstance(x, dict | list) for x in rope.values()):
            raise facts.error(name, "be one flat object for all layers, or null")
        # "type" is the older name of "rope_type".
        rope = {key if key != "type" else "rope_type": value for key, value in rope.items()}
        both.append(_Facts(rope, f"{facts.where}: {name}"))
    old, new = both
    if new.raw and not old.raw.items() <= new.raw.items():
        raise facts.error("rope_scaling", "not contradict rope_parameters")
    read = new if new.raw else old
    theta = read.number("rope_theta", facts.number("rope_theta", 10000.0))
    kind = read.raw.get("rope_type") or "default"
    if kind == "default":
        if "factor" in read.raw:
            raise read.error("rope_type", "say how the factor is used")
        return theta, RopeScaling()
    factor = read.number("factor")
    if kind == "linear":
        return theta, RopeScaling("linear", factor)
    low, high = read.number("low_freq_factor"), read.number("high_freq_factor")
    if high <= low:
        raise read.error("high_freq_factor", "be above low_freq_factor")
    original = read.whole("original_max_position_embeddings")
    return theta, RopeScaling("llama3", factor, low, high, original)


def _windows(facts: _Facts, family: Family, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, or None. Where "some" layers have one and `use_sliding_window` is
    true, it is those of `layer_types`, or those from `max_window_layers` on."""
    kinds = [SLIDING if family.windowed_layers == "all" else FULL] * layers
    if family.windowed_layers == "some" and facts.raw.get("use_sliding_window"):
        first = facts.whole("max_window_layers", 28, least=0)
        kinds = [SLIDING if layer >= first else FULL for layer in range(layers)]
        kinds = facts.raw.get("layer_types") or kinds
    if not isinstance(kinds, list) or [x in (FULL, SLIDING) for x in kinds] != [True] * layers:
        raise facts.error("layer_types", f"name {FULL} or {SLIDING} for each of {layers} layers")
    if SLIDING not in kinds or facts.raw.get("sliding_window", family.sliding_window) is None:
        return (None,) * layers
    window = facts.whole("sliding_window", family.sliding_window)
    return tuple(window if kind == SLIDING else None for kind in kinds)
