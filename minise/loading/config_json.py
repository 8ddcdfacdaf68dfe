"""Read a config.json. What would change the numbers and is not implemented is refused.

A fact that the file leaves out takes its family's default (`config.FAMILIES`).
"""

from typing import Any

from minise.config import FAMILIES, Config, Family, RopeScaling
from minise.errors import InputError, quote

FULL = "full_attention"  # kinds of layers
SLIDING = "sliding_attention"
# The values that are implemented; None: absent or null.
ONLY: dict[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu", "swish"),
    "rope_type": (None, "default", "linear", "llama3"),
    "partial_rotary_factor": (None, 1.0),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "tie_word_embeddings": (None, False, True),
    "use_sliding_window": (None, False, True),
}
MOST_LAYERS = 500  # to build more than any model has would take minutes
MOST_WHOLE = 10**8
MOST_NUMBER = 1e12


def read_config(raw: Any, where: str = "config.json") -> Config:
    """Check and convert the content of a config.json. Raises InputError that begins with `where`
    and names the field and its value."""
    if not isinstance(raw, dict):
        raise InputError(f"{where}: holds {type(raw).__name__}, not a JSON object; fetch it again")
    facts = _Facts(raw, where)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise facts.error("model_type", f"be one of {', '.join(FAMILIES)}, or use transformers:ID")
    if raw.get("quantization_config"):
        raise facts.error(
            "quantization_config", "be absent; take the original weights, or use transformers:ID"
        )
    family = FAMILIES[model_type]
    vocab_size = facts.whole("vocab_size")
    hidden_size = facts.whole("hidden_size")
    intermediate_size = facts.whole("intermediate_size")
    layers = facts.whole("num_hidden_layers", most=MOST_LAYERS)
    heads = facts.whole("num_attention_heads")
    # An explicit null means one key/value head for each query head, whatever the family.
    kv_default = None if "num_key_value_heads" in raw else family.num_key_value_heads
    kv_heads = facts.whole("num_key_value_heads", kv_default or heads)
    head_dim = facts.whole("head_dim", family.head_dim or hidden_size // heads)
    if heads % kv_heads:
        raise facts.error("num_key_value_heads", f"divide num_attention_heads {heads}")
    if head_dim % 2:
        raise facts.error("head_dim", "be even: rotary embedding turns pairs")
    theta, scaling = _rope(facts)
    positions = facts.whole("max_position_embeddings", family.max_position_embeddings)
    return Config(
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=facts.number("rms_norm_eps", 1e-6, least=1e-15),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=positions,
        qkv_bias=family.qkv_bias,
        sliding_windows=_windows(facts, family, layers),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings")),
        qk_norm=family.qk_norm,
    )


class _Facts:
    """The fields of a JSON object. A null counts as missing. Whole numbers are from 1 on, others
    from 0.001 to 1e12: beyond, rotary angles overflow or are the same for every token."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where
        for name, values in ONLY.items():
            if raw.get(name) not in values:
                known = ", ".join(quote(value) for value in values if value is not None)
                raise self.error(name, f"be one of {known}")

    def error(self, name: str, need: str) -> InputError:
        value = quote(self.raw[name]) if name in self.raw else "missing"
        return InputError(f"{self.where}: {name} is {value}; it must {need}")

    def get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        return default if value is None else value

    def whole(
        self, name: str, default: int | None = None, least: int = 1, most: int = MOST_WHOLE
    ) -> int:
        value = self.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(name, f"be of type int, from {least} to {most:,}")
        return value

    def number(self, name: str, default: float | None = None, least: float = 1e-3) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not least <= value <= MOST_NUMBER:
            raise self.error(name, f"be of type float, from {least} to {MOST_NUMBER:,}")
        return float(value)


def _rope(facts: _Facts) -> tuple[float, RopeScaling]:
    """The base and the scaling of the rotary frequencies. Older files have `rope_scaling` beside
    `rope_theta`, newer ones have all in `rope_parameters`; if a file has both, they must agree."""
    old = _rope_facts(facts, "rope_scaling")
    new = _rope_facts(facts, "rope_parameters")
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
    low = read.number("low_freq_factor")
    high = read.number("high_freq_factor")
    if high <= low:
        raise read.error("high_freq_factor", "be above low_freq_factor")
    original = read.whole("original_max_position_embeddings")
    return theta, RopeScaling("llama3", factor, low, high, original)


def _rope_facts(facts: _Facts, name: str) -> _Facts:
    rope = facts.raw.get(name) or {}
    if not isinstance(rope, dict) or any(isinstance(x, dict | list) for x in rope.values()):
        raise facts.error(name, "be one flat object for all layers, or null")
    renamed = {}
    for key, value in rope.items():
        # "type" is the older name of "rope_type".
        renamed["rope_type" if key == "type" else key] = value
    return _Facts(renamed, f"{facts.where}: {name}")


def _windows(facts: _Facts, family: Family, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, or None. Where "some" layers have one and `use_sliding_window` is
    true, it is those of `layer_types`, or those from `max_window_layers` on."""
    kinds = [SLIDING if family.windowed_layers == "all" else FULL] * layers
    if family.windowed_layers == "some" and facts.raw.get("use_sliding_window"):
        first = facts.whole("max_window_layers", 28, least=0)
        kinds = [SLIDING if layer >= first else FULL for layer in range(layers)]
        kinds = facts.raw.get("layer_types") or kinds
    is_list = isinstance(kinds, list) and len(kinds) == layers
    if not is_list or not all(kind in (FULL, SLIDING) for kind in kinds):
        raise facts.error("layer_types", f"name {FULL} or {SLIDING} for each of {layers} layers")
    if SLIDING not in kinds or facts.raw.get("sliding_window", family.sliding_window) is None:
        return (None,) * layers
    window = facts.whole("sliding_window", family.sliding_window)
    return tuple(window if kind == SLIDING else None for kind in kinds)
