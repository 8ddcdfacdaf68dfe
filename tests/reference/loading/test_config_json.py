"""The facts of a config.json: read as published, or refused by file, field and value."""

import json
from pathlib import Path
from typing import Any

import pytest

from minise import InputError
from minise.config import RopeScaling
from minise.loading.config_json import read_config
from tests.reference.support.tiny import ALL_FAMILIES, LLAMA3, SIZES

LLAMA3_BY_8, LLAMA3_BY_32 = (RopeScaling("llama3", by, 1.0, 4.0, 8192) for by in (8.0, 32.0))


FILE = Path(__file__).parents[1] / "support" / "published.json"
RAW: dict[str, dict[str, Any]] = json.loads(FILE.read_text())
NEWER = "DeepSeek-R1-Distill-Llama-8B, newer spelling"
RAW[NEWER] = dict(RAW["DeepSeek-R1-Distill-Llama-8B"])
RAW[NEWER]["rope_parameters"] = {**RAW[NEWER].pop("rope_scaling"), "rope_theta": 500000.0}
RAW[NEWER].pop("rope_theta")
# Head size, theta, scaling, window of every layer, positions.
PUBLISHED: dict[str, tuple[Any, ...]] = {
    "Meta-Llama-3-8B": (128, 500000.0, RopeScaling(), None, 8192),
    "Llama-3.2-1B": (64, 500000.0, LLAMA3_BY_32, None, 131072),
    "DeepSeek-R1-Distill-Llama-8B": (128, 500000.0, LLAMA3_BY_8, None, 131072),
    NEWER: (128, 500000.0, LLAMA3_BY_8, None, 131072),
    "SmolLM2-135M": (64, 100000.0, RopeScaling(), None, 8192),
    "Mistral-7B-v0.1": (128, 10000.0, RopeScaling(), 4096, 32768),
    "Qwen2.5-7B": (128, 1000000.0, RopeScaling(), None, 131072),
    "Qwen3-0.6B": (128, 1000000.0, RopeScaling(), None, 40960),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_are_read_as_they_are(name: str) -> None:
    raw = RAW[name]
    head_dim, theta, scaling, window, positions = PUBLISHED[name]
    config = read_config(raw)
    assert (config.head_dim, config.rope_theta, config.rope_scaling) == (head_dim, theta, scaling)
    assert config.sliding_windows == (window,) * raw["num_hidden_layers"]
    assert config.max_position_embeddings == positions
    assert config.qkv_bias == (raw["model_type"] == "qwen2")
    assert config.qk_norm == (raw["model_type"] == "qwen3")
    assert config.tie_word_embeddings is raw["tie_word_embeddings"]
    for field in raw.keys() & {"vocab_size", "hidden_size", "intermediate_size", "model_type"}:
        assert getattr(config, field) == raw[field]


def sizes(model_type: str, **more: Any) -> dict[str, Any]:
    """Only the fields that a config must have."""
    optional = ("num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "hidden_act")
    raw = {name: value for name, value in SIZES.items() if name not in optional}
    return {**raw, "model_type": model_type, **more}


@pytest.mark.parametrize(
    ("family", "kv_heads", "head_dim", "window", "positions"),
    [
        ("llama", 32, 2, None, 2048),
        ("mistral", 8, 2, 4096, 131072),
        ("qwen2", 32, 2, None, 32768),
        ("qwen3", 32, 128, None, 32768),
    ],
)
def test_absent_fields_have_the_defaults_of_the_family(
    family: str, kv_heads: int, head_dim: int, window: int | None, positions: int
) -> None:
    config = read_config(sizes(family, num_attention_heads=32, hidden_size=64))
    assert (config.num_key_value_heads, config.head_dim) == (kv_heads, head_dim)
    assert config.sliding_windows == (window,) * 3
    assert config.max_position_embeddings == positions
    assert (config.rms_norm_eps, config.rope_theta) == (1e-6, 10000.0)
    assert config.rope_scaling == RopeScaling()
    assert config.tie_word_embeddings is False


def test_null_is_read_as_absent_but_for_the_heads() -> None:
    names = ("head_dim", "rope_scaling", "rope_parameters", "rope_theta", "tie_word_embeddings")
    names += ("rms_norm_eps", "max_position_embeddings", "quantization_config", "attention_bias")
    assert read_config(sizes("llama", **dict.fromkeys(names))) == read_config(sizes("llama"))
    for family in ALL_FAMILIES:  # as many as query heads
        config = read_config(sizes(family, num_key_value_heads=None))
        assert config.num_key_value_heads == config.num_attention_heads


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "default"}, RopeScaling()),
        ({"rope_type": "linear", "factor": 4}, RopeScaling("linear", 4.0)),
        (LLAMA3, RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
    ],
    ids=["default", "linear", "llama3"],
)
def test_every_form_of_the_rotary_facts_is_read_alike(
    scaling: dict[str, Any], expected: RopeScaling
) -> None:
    older = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
    spellings: list[dict[str, Any]] = [
        {"rope_theta": 500.0, "rope_scaling": scaling},
        {"rope_theta": 500.0, "rope_scaling": older},
        {"rope_theta": 500.0, "rope_scaling": {**older, **scaling}},
        {"rope_parameters": {"rope_theta": 500.0, **scaling}},
        {"rope_parameters": scaling, "rope_scaling": older, "rope_theta": 500.0},
        {"rope_parameters": older, "rope_scaling": {"rope_theta": 500.0, **scaling}}
        | {"rope_theta": 500.0},
        {"rope_parameters": scaling, "rope_theta": 500.0},
    ]
    configs = [read_config(sizes("llama", **spelling)) for spelling in spellings]
    assert (configs[0].rope_theta, configs[0].rope_scaling) == (500.0, expected)
    assert all(config == configs[0] for config in configs)


ON = {"use_sliding_window": True}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("family", "facts", "windows"),
    [
        ("llama", {"sliding_window": None, **ON, "max_window_layers": 0}, (None,) * 3),
        ("llama", {"layer_types": ["full_attention"] * 3}, (None,) * 3),
        ("mistral", {}, (4096,) * 3),
        ("mistral", {"sliding_window": None}, (None,) * 3),
        ("mistral", {"sliding_window": 5}, (5,) * 3),
        ("mistral", {"sliding_window": 5, "layer_types": ["sliding_attention"] * 3}, (5,) * 3),
        ("qwen2", {"sliding_window": 5}, (None,) * 3),
        ("qwen2", {"sliding_window": None, **ON, "max_window_layers": 0}, (None,) * 3),
        ("qwen2", ON, (None,) * 3),  # 28 layers of three are full
        ("qwen3", {**ON, "max_window_layers": 0}, (4096,) * 3),
        ("qwen3", {"sliding_window": 5, **ON, "max_window_layers": 1}, (None, 5, 5)),
        ("qwen2", {"sliding_window": 5, **ON, "layer_types": KINDS}, (5, None, 5)),
        ("qwen2", {"sliding_window": 5, "layer_types": ["full_attention"] * 3}, (None,) * 3),
    ],
)
def test_each_layer_has_its_own_window(
    family: str, facts: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert read_config(sizes(family, num_key_value_heads=2, **facts)).sliding_windows == windows


BEYOND = [0, -1, 2.5, "4", True, [4], 10**20, float("nan"), float("inf")]
REFUSED: list[tuple[dict[str, Any], str]] = [
    *[({"vocab_size": value}, "vocab_size is ") for value in BEYOND],
    *[({"num_hidden_layers": value}, "num_hidden_layers is ") for value in (*BEYOND, 501)],
    *[({"max_position_embeddings": value}, "max_position_embeddings is ") for value in BEYOND],
    *[({"rms_norm_eps": value}, "rms_norm_eps is ") for value in (-1e-6, 0, "x", True, 1e-40)],
    *[({"rope_theta": value}, "rope_theta is ") for value in (0, "1e4", 1e29, 1e-38, float("inf"))],
    ({"model_type": None}, "model_type is null"),
    ({"model_type": ["llama"]}, 'model_type is ["llama"]'),
    ({"model_type": "gemma2"}, "transformers:ID"),
    ({"model_type": "\x1b[31m" + "x" * 10**6}, "\\u001b[31mxxx"),
    ({"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
    ({"attention_bias": True}, "attention_bias is true"),
    ({"mlp_bias": True}, "mlp_bias is true"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ({"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes"'),
    ({"is_causal": False}, "is_causal is false; it must be one of true"),
    ({"is_causal": None}, "is_causal is null"),
    ({"use_mrope": True}, "use_mrope is true"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
    ({"attention_bias": 0}, "attention_bias is 0"),
    # What is not known, whatever it holds.
    *[
        ({name: value}, f'the key "{name}" is not read')
        for name in ("per_layer_config", "attention_chunk_size", "logit_scale", "rope_type", "x")
        for value in (None, {}, 1)
    ],
    ({"rope_scaling": {**LLAMA3, "beta_fast": 32}}, 'rope_scaling: the key "beta_fast" is not'),
    ({"quantization_config": "nf4"}, "quantization_config is "),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
    ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
    ({"quantization_config": {"load_in_4bit": True}}, "or use transformers:ID"),
    # Heads and sizes that do not divide.
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
    ({"num_key_value_heads": 8}, "num_key_value_heads is 8"),
    ({"head_dim": 7}, "head_dim is 7"),
    ({"hidden_size": 20}, "head_dim is missing"),  # 20 / 4 is odd
    # Rotary embedding.
    *[
        ({"rope_scaling": {**LLAMA3, name: value}}, f"{name} is ")
        for name in ("factor", "low_freq_factor", "original_max_position_embeddings")
        for value in (None, -8, "64", 1e308, True)
    ],
    ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor is 1.0"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 'rope_type is "yarn"'),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 'type is "dynamic"'),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "rope_scaling is {"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"factor": 4.0}}, 'rope_scaling: the key "factor" is not read'),
    ({"rope_scaling": {"type": "llama3", **LLAMA3, "rope_type": "linear"}}, 'type is "llama3"'),
    ({"rope_scaling": {"type": "linear", **LLAMA3}}, 'type is "linear"'),
    ({"rope_scaling": "linear"}, 'rope_scaling is "linear"'),
    ({"rope_parameters": {"full_attention": LLAMA3}}, "rope_parameters is {"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ({"rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "factor": 2.0}}, "rope_scaling is {"),
    ({"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 5.0}}, "rope_scaling is {"),
    ({"rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "rope_theta": 5.0}}, "rope_scaling is"),
    *[
        ({"rope_scaling": LLAMA3, "original_max_position_embeddings": value}, f"{value}; it must")
        for value in (4096, 63, 0)
    ],
    # Windows.
    ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
    ({"model_type": "mistral", "sliding_window": "all"}, 'sliding_window is "all"'),
    ({"model_type": "mistral", "layer_types": KINDS}, "layer_types is ["),
    ({"layer_types": KINDS}, "layer_types is ["),
    ({"sliding_window": 5}, "sliding_window is 5"),
    ({"model_type": "qwen2", "sliding_window": "all"}, 'sliding_window is "all"'),
    ({"model_type": "qwen2", "sliding_window": 5, "layer_types": KINDS}, "layer_types is ["),
    ({"model_type": "qwen2", "use_sliding_window": "no"}, 'use_sliding_window is "no"'),
    *[
        ({"model_type": "qwen3", **ON, **facts}, named)
        for facts, named in [
            ({"max_window_layers": -1}, "max_window_layers is -1"),
            ({"layer_types": ["full_attention"]}, "layer_types is ["),
            ({"layer_types": ["chunked"] * 3}, 'layer_types is ["chunked"'),
            ({"layer_types": [[1]] * 3}, "layer_types is [[1]"),
        ]
    ],
]


@pytest.mark.parametrize(("facts", "named"), REFUSED)
def test_what_is_impossible_or_not_implemented_is_refused_by_field_and_value(
    facts: dict[str, Any], named: str
) -> None:
    message = refusal({**sizes("llama", num_key_value_heads=2), **facts})
    assert message.startswith("some/config.json: ")
    assert named in message
    assert len(message) < 250


@pytest.mark.parametrize("name", sizes("llama"))
def test_a_missing_size_is_named(name: str) -> None:
    raw = sizes("llama")
    del raw[name]
    assert f"{name} is missing" in refusal(raw)


def refusal(raw: Any) -> str:
    """The one line of the refusal."""
    with pytest.raises(InputError) as caught:
        read_config(raw, "some/config.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)
