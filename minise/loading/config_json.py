"""Read a config.json. A key is read, or known to be without effect on the numbers, or refused.

A fact that the file leaves out takes its family's default (`config.FAMILIES`). That of rms_norm_eps
is 1e-6 for all of them, as in transformers; a family added here may have another (Phi-3 has 1e-5).
"""

import re
from typing import Any

from minise.config import FAMILIES, Config, Family, RopeScaling
from minise.errors import InputError, quote

FULL = "full_attention"  # kinds of layers
SLIDING = "sliding_attention"
# Keys that would change the numbers, with the values that are implemented.
ONLY: dict[str, tuple[object, ...]] = {
    "attention_bias": (None, False),
    "hidden_act": (None, "silu", "swish"),
    "is_causal": (True,),
    "is_encoder_decoder": (None, False),
    "mlp_bias": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "pruned_heads": (None, {}),
    "rope_interleaved": (None, False),
    "use_mrope": (None, False),
}
# Keys that change no number of a pass: where the file comes from, training, other tasks, how a
# call is computed and what it returns, and how text is generated.
WITHOUT_EFFECT = """
    architectures dtype is_llama_config name_or_path tokenizer_class torch_dtype
    transformers.js_config transformers_version
    gradient_checkpointing initializer_range model_max_length neftune_noise_alpha pretraining_tp
    finetuning_task id2label label2id num_labels problem_type task_specific_params
    add_cross_attention attn_implementation chunk_size_feed_forward cross_attention_hidden_size
    is_decoder output_attentions output_hidden_states prefix return_dict tf_legacy_loss
    tie_encoder_decoder torchscript use_bfloat16 use_cache
    bad_words_ids begin_suppress_tokens cache_implementation diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty
    max_length max_new_tokens min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_scores remove_invalid_values repetition_penalty
    return_dict_in_generate suppress_tokens temperature top_k top_p typical_p
"""
# A library's own notes, ids of special tokens, and what is dropped in training.
ALSO_WITHOUT = re.compile("_.*|unsloth_.*|.*_token_id|.*dropout.*|.*_pdrop")
MOST_LAYERS = 500  # to build more than any model has would take minutes
MOST_WHOLE = 10**8
MOST_NUMBER = 1e12


def read_config(raw: Any, where: str = "config.json") -> Config:
    """Check and convert the content of a config.json. Raises InputError that begins with `where`
    and names the field and its value."""
    if not isinstance(raw, dict):
        raise InputError(f"{where}: holds {type(raw).__name__}, not a JSON object; fetch it again")
    facts = Facts(raw, where)
    model_type = facts.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise facts.error("model_type", f"be one of {', '.join(FAMILIES)}, or use transformers:ID")
    if facts.get("quantization_config"):
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
    windows = _windows(facts, family, layers)
    tied = facts.flag("tie_word_embeddings")
    norm_eps = facts.number("rms_norm_eps", 1e-6, least=1e-15)
    facts.check_rest()
    return Config(
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=positions,
        qkv_bias=family.qkv_bias,
        sliding_windows=windows,
        tie_word_embeddings=tied,
        qk_norm=family.qk_norm,
    )


class Facts:
    """The fields of a JSON object, and which of them were read. A null counts as missing. Whole
    numbers are from 1 on, others from 0.001 to 1e12: beyond, rotary angles overflow or are the same
    for every token."""

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where
        self.read = set(WITHOUT_EFFECT.split())
        for name, values in ONLY.items():
            if name in raw:
                self.one_of(name, values)

    def error(self, name: str, need: str) -> InputError:
        value = quote(self.raw[name]) if name in self.raw else "missing"
        return InputError(f"{self.where}: {name} is {value}; it must {need}")

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        value = self.raw.get(name)
        return default if value is None else value

    def one_of(self, name: str, values: tuple[object, ...]) -> Any:
        value = self.get(name)
        for allowed in values:
            if type(value) is type(allowed) and value == allowed:
                return value
        known = ", ".join(quote(allowed) for allowed in values if allowed is not None)
        raise self.error(name, f"be one of {known}")

    def flag(self, name: str) -> bool:
        return bool(self.one_of(name, (None, False, True)))

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

    def check_rest(self) -> None:
        """Refuse a key that nothing has read: a library may read it, and get other numbers."""
        for name in self.raw:
            if name not in self.read and not ALSO_WITHOUT.fullmatch(name):
                what = f"the key {quote(name)} is not read here and may change the numbers"
                how = "take it out if it does not, or use transformers:ID"
                raise InputError(f"{self.where}: {what}; {how}")


def _rope(facts: Facts) -> tuple[float, RopeScaling]:
    """The base and the scaling of the rotary frequencies. Older files have `rope_scaling` beside
    `rope_theta`, newer ones have all in `rope_parameters`; if a file has both, they must agree."""
    default_theta = facts.number("rope_theta", 10000.0)
    meanings = []
    for name in ("rope_parameters", "rope_scaling"):
        rope = facts.get(name) or {}
        if not isinstance(rope, dict) or any(isinstance(x, dict | list) for x in rope.values()):
            raise facts.error(name, "be one flat object for all layers, or null")
        if rope:
            meanings.append(_rope_of(Facts(rope, f"{facts.where}: {name}"), default_theta))
    if not meanings:
        meanings.append((default_theta, RopeScaling()))
    if meanings[0] != meanings[-1]:
        raise facts.error("rope_scaling", "not contradict rope_parameters")
    theta, scaling = meanings[0]
    outside = facts.get("original_max_position_embeddings")
    inside = scaling.original_max_position_embeddings
    if scaling.rope_type == "llama3" and outside not in (None, inside):
        need = f"be that of the rotary scaling, {inside}"
        raise facts.error("original_max_position_embeddings", need)
    return theta, scaling


def _rope_of(rope: Facts, default_theta: float) -> tuple[float, RopeScaling]:
    theta = rope.number("rope_theta", default_theta)
    older = rope.get("type")  # the older name
    kind = rope.get("rope_type", older)
    if older not in (None, kind):
        raise rope.error("type", f"be the rope_type, {quote(kind)}")
    if kind == "linear":
        scaling = RopeScaling("linear", rope.number("factor"))
    elif kind == "llama3":
        scaling = RopeScaling(
            rope_type="llama3",
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position_embeddings=rope.whole("original_max_position_embeddings"),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise rope.error("high_freq_factor", "be above low_freq_factor")
    elif kind in (None, "default"):
        scaling = RopeScaling()
    else:
        name = "rope_type" if older is None else "type"
        raise rope.error(name, "be one of default, linear, llama3")
    rope.check_rest()
    return theta, scaling


def _windows(facts: Facts, family: Family, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, or None. Where "some" layers have one and `use_sliding_window` is
    true, it is those of `layer_types`, or those from `max_window_layers` on."""
    use = facts.flag("use_sliding_window")
    first = facts.whole("max_window_layers", 28, least=0)
    window = family.sliding_window
    if "sliding_window" in facts.raw:  # a null is no window
        is_null = facts.get("sliding_window") is None
        window = None if is_null else facts.whole("sliding_window")
    if window is not None and family.windowed_layers == "none":
        raise facts.error("sliding_window", "be null: models of this type have none")
    if not use and family.windowed_layers == "some":
        window = None

    kinds = [FULL] * layers
    if window is not None:
        first_windowed = 0 if family.windowed_layers == "all" else first
        kinds = [SLIDING if layer >= first_windowed else FULL for layer in range(layers)]
    given = facts.get("layer_types", kinds)
    is_list = isinstance(given, list) and len(given) == layers
    if not is_list or not all(kind in (FULL, SLIDING) for kind in given):
        raise facts.error("layer_types", f"name {FULL} or {SLIDING} for each of {layers} layers")
    is_free = window is not None and family.windowed_layers == "some"
    if given != kinds and not is_free:
        raise facts.error("layer_types", f"name {kinds[0]} for each layer, as sliding_window says")
    return tuple(window if kind == SLIDING else None for kind in given)
