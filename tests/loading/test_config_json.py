"""The facts of a config.json: read as published, or refused by file, field and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minise import InputError
from minise.config import RopeScaling
from minise.loading.config_json import config_from_dict, read_config
from tests.support.shapes import PUBLISHED
from tests.support.tiny import ALL_FAMILIES, FAMILIES, LLAMA3, SIZES

# Per checkpoint: head size, key/value heads, rotary scaling, window of every layer, positions.
LLAMA3_BY_8, LLAMA3_BY_32 = (RopeScaling("llama3", by, 1.0, 4.0, 8192) for by in (8.0, 32.0))
FACTS = {
    "meta-llama/Meta-Llama-3-8B": (128, 8, RopeScaling(), None, 8192),
    "meta-llama/Llama-3.2-1B": (64, 8, LLAMA3_BY_32, None, 131072),
    "meta-llama/Llama-3.2-3B": (128, 8, LLAMA3_BY_32, None, 131072),
    "mistralai/Mistral-7B-v0.1": (128, 8, RopeScaling(), 4096, 32768),
    "Qwen/Qwen2-7B": (128, 4, RopeScaling(), None, 131072),
    "Qwen/Qwen2.5-1.5B": (128, 2, RopeScaling(), None, 32768),
    "Qwen/Qwen2.5-3B": (128, 2, RopeScaling(), None, 32768),
    "Qwen/Qwen2.5-7B": (128, 4, RopeScaling(), None, 32768),
    "Qwen/Qwen2.5-14B": (128, 8, RopeScaling(), None, 32768),
    "Qwen/Qwen3-0.6B": (128, 8, RopeScaling(), None, 40960),
    "Qwen/Qwen3-8B": (128, 8, RopeScaling(), None, 40960),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": (128, 8, LLAMA3_BY_8, None, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": (128, 4, RopeScaling(), None, 131072),
}


def tiny(family: str, **changes: Any) -> dict[str, Any]:
    return {**ALL_FAMILIES[family], **changes}


def sizes(model_type: str, **more: Any) -> dict[str, Any]:
    """Only the fields that a config must have."""
    optional = ("num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "hidden_act")
    raw = {name: value for name, value in SIZES.items() if name not in optional}
    return {**raw, "model_type": model_type, **more}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_checkpoints_are_read_as_they_are(name: str) -> None:
    raw, (head_dim, kv_heads, scaling, window, positions) = PUBLISHED[name], FACTS[name]
    config = config_from_dict(raw)
    assert (config.head_dim, config.num_key_value_heads) == (head_dim, kv_heads)
    assert config.rope_scaling == scaling
    assert config.sliding_windows == (window,) * raw["num_hidden_layers"]
    assert config.max_position_embeddings == positions
    assert config.qkv_bias == (raw["model_type"] == "qwen2")
    straight = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "rope_theta")
    for field in (*straight, "num_hidden_layers", "rms_norm_eps", "tie_word_embeddings"):
        assert getattr(config, field) == raw[field]


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
    config = config_from_dict(sizes(family, num_attention_heads=32, hidden_size=64))
    assert (config.num_key_value_heads, config.head_dim) == (kv_heads, head_dim)
    assert config.sliding_windows == (window,) * 3
    assert config.max_position_embeddings == positions
    assert (config.rms_norm_eps, config.rope_theta) == (1e-6, 10000.0)
    assert config.rope_scaling == RopeScaling()
    assert config.tie_word_embeddings is False


def test_the_defaults_of_scaling_are_no_factor_and_llama_3s_constants() -> None:
    assert RopeScaling() == RopeScaling("default", 1.0)
    assert RopeScaling("llama3", 32.0) == LLAMA3_BY_32


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(sizes("gemma2")))
    known = (
        f'{path}: model_type is "gemma2"; it is implemented only as one of llama, mistral, qwen2'
    )
    with pytest.raises(InputError) as refused:
        read_config(path, "me/gemma")
    assert str(refused.value).startswith(known)
    path.write_text(json.dumps(sizes("gemma2") | {"model_type": None}))
    with pytest.raises(InputError) as refused:
        read_config(path, "me/gemma")
    assert "transformers" not in str(refused.value)  # it needs a family, too


def test_null_is_read_as_absent() -> None:
    names = ("head_dim", "rope_scaling", "rope_parameters", "rope_theta", "tie_word_embeddings")
    more = ("rms_norm_eps", "max_position_embeddings", "quantization_config", "attention_bias")
    nulls = dict.fromkeys((*names, *more, "num_key_value_heads"))
    assert config_from_dict(sizes("llama", **nulls)) == config_from_dict(sizes("llama"))


LINEAR = {"factor": 4.0}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"rope_type": "default"}, RopeScaling()),
        ({"rope_type": "linear", **LINEAR}, RopeScaling("linear", 4.0)),
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
        {"rope_parameters": {"rope_theta": 500.0, **scaling}, "rope_scaling": scaling},
        {"rope_parameters": {"rope_theta": 500.0, **scaling}, "rope_scaling": older},
        {"rope_parameters": {"rope_theta": 500.0, **older}, "rope_scaling": scaling},
        {"rope_parameters": {"rope_theta": 500.0, **older}},
        {"rope_parameters": scaling, "rope_theta": 500.0},
    ]
    configs = [config_from_dict(sizes("llama", **spelling)) for spelling in spellings]
    assert (configs[0].rope_theta, configs[0].rope_scaling) == (500.0, expected)
    assert all(config == configs[0] for config in configs)


@pytest.mark.parametrize(
    ("family", "facts", "windows"),
    [
        ("llama", {"sliding_window": 5}, (None,) * 3),
        ("mistral", {}, (4096,) * 3),
        ("mistral", {"sliding_window": None}, (None,) * 3),
        ("mistral", {"sliding_window": 5}, (5,) * 3),
        ("qwen2", {"sliding_window": 5}, (None,) * 3),
        (
            "qwen3",
            {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
            (None, 5, 5),
        ),
        ("qwen3", {"sliding_window": 5}, (None,) * 3),
        (
            "llama",  # it has no windows, whatever the file says
            {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 0},
            (None,) * 3,
        ),
        ("qwen2", {"sliding_window": 5, "use_sliding_window": False}, (None,) * 3),
        ("qwen2", {"sliding_window": None, "use_sliding_window": True}, (None,) * 3),
        ("qwen2", {"use_sliding_window": True}, (None,) * 3),  # 28 layers of three are full
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, (4096,) * 3),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 0}, (4096,) * 3),
        (
            "qwen2",
            {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
            (None, 5, 5),
        ),
        (
            "qwen2",
            {
                "sliding_window": 5,
                "use_sliding_window": True,
                "max_window_layers": 0,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            (5, None, 5),
        ),
    ],
)
def test_each_layer_has_its_own_window(
    family: str, facts: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    config = config_from_dict(sizes(family, num_key_value_heads=2, **facts))
    assert config.sliding_windows == windows


BEYOND = [0, -1, 2.5, "4", True, [4]]
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 5}


@pytest.mark.parametrize(
    ("family", "facts", "reason"),
    [
        ("llama", {"model_type": "gemma"}, 'model_type is "gemma"'),
        ("llama", {"model_type": None}, "model_type is null"),
        ("llama", {"model_type": ["llama"]}, 'model_type is ["llama"]'),
        ("llama", {"vocab_size": 10**20}, "vocab_size is 1000"),
        # More than any model has: building it would take minutes.
        ("llama", {"vocab_size": 10**12}, "vocab_size is 1000"),
        ("llama", {"num_hidden_layers": 2**31 - 1}, "num_hidden_layers is 2147483647"),
        ("llama", {"num_hidden_layers": 501}, "a whole number from 1 to 500"),
        ("llama", {"head_dim": 2**30}, "head_dim is 1073741824"),
        ("llama", {"hidden_size": 4 * 10**6}, "hidden_size is 4000000"),
        ("llama", {"intermediate_size": 10**8}, "intermediate_size is 100000000"),
        ("llama", {"num_attention_heads": 10**5, "hidden_size": 10**5}, "num_attention_heads is 1"),
        ("llama", {"max_position_embeddings": 2**31}, "max_position_embeddings is 2147483648"),
        ("llama", {"hidden_act": "gelu"}, 'hidden_act is "gelu"'),
        ("llama", {"attention_bias": True}, "attention_bias is true"),
        ("llama", {"mlp_bias": True}, "mlp_bias is true"),
        ("llama", {"quantization_config": {"bits": 4}}, 'quantization_config is {"bits": 4}'),
        ("llama", {"tie_word_embeddings": "yes"}, 'tie_word_embeddings is "yes"'),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        # Head counts and sizes that do not divide.
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ("llama", {"num_key_value_heads": 8}, "num_key_value_heads is 8"),
        ("llama", {"hidden_size": 30}, "hidden_size is 30"),
        ("llama", {"head_dim": 7}, "head_dim is 7"),
        ("llama", {"hidden_size": 20}, "head_dim is missing"),  # 20 / 4 is odd
        # Rotary embedding.
        ("llama", {"rope_theta": 0}, "rope_theta is 0"),
        ("llama", {"rope_theta": "1e4"}, 'rope_theta is "1e4"'),
        ("llama", {"rope_theta": 1e29}, "rope_theta is 1e+29"),
        ("llama", {"rope_theta": 1e-38}, "rope_theta is 1e-38"),
        (
            "llama",
            {"rope_scaling": {**LLAMA3, "factor": 1e29}},
            "factor a number from 0.001 to 1e+12",
        ),
        *[
            (
                "llama",
                {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": value}},
                "original_max_position_embeddings a whole number",
            )
            for value in (0.5, 64.5, 1e308, True, "64")
        ],
        (
            "llama",
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
            "rope_scaling is",
        ),
        ("llama", {"rope_scaling": {"rope_type": "yarn", **LINEAR}}, '"rope_type": "yarn"'),
        ("llama", {"rope_scaling": {"type": "dynamic", **LINEAR}}, '"type": "dynamic"'),
        ("llama", {"rope_scaling": {"type": "linear"}}, 'rope_scaling is {"type": "linear"}'),
        ("llama", {"rope_scaling": {**LLAMA3, "factor": -8}}, "rope_scaling is {"),
        ("llama", {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "rope_scaling is {"),
        ("llama", {"rope_scaling": {**LLAMA3, "low_freq_factor": None}}, "low_freq_factor"),
        ("llama", {"rope_scaling": "linear"}, 'rope_scaling is "linear"'),
        ("llama", {"rope_parameters": {**LLAMA3, "factor": 2.0}}, "rope_scaling is {"),
        ("llama", {"rope_parameters": {"full_attention": LLAMA3}}, "rope_parameters is {"),
        (
            "llama",
            {"rope_scaling": None, "rope_parameters": {"partial_rotary_factor": 0.5}},
            'rope_parameters is {"partial_rotary_factor": 0.5}',
        ),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"rope_scaling": {**LLAMA3, "x": [1]}}, "must be one flat object"),
        ("llama", {"rope_scaling": {"factor": 4.0}}, 'rope_scaling is {"factor": 4.0}'),
        ("llama", {"rope_parameters": {"rope_theta": 5.0}}, "rope_scaling is {"),
        ("llama", {"rope_scaling": 3, "rope_parameters": LLAMA3}, "rope_scaling is 3"),
        # Windows.
        ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
        ("mistral", {"sliding_window": "all"}, 'sliding_window is "all"'),
        ("qwen2", {"use_sliding_window": 1}, "use_sliding_window is 1"),
        ("qwen2", {**QWEN_WINDOW, "max_window_layers": -1}, "max_window_layers is -1"),
        ("qwen3", {**QWEN_WINDOW, "max_window_layers": -1}, "max_window_layers is -1"),
        ("qwen3", {**QWEN_WINDOW, "layer_types": ["chunked"] * 3}, 'layer_types is ["chunked"'),
        ("qwen3", {"attention_bias": True}, "attention_bias is true"),
        ("qwen3", {"head_dim": 7}, "head_dim is 7"),
        ("qwen2", {**QWEN_WINDOW, "layer_types": ["full_attention"]}, "layer_types is ["),
        ("qwen2", {**QWEN_WINDOW, "layer_types": ["chunked"] * 3}, 'layer_types is ["chunked"'),
        ("qwen2", {**QWEN_WINDOW, "layer_types": [[1]] * 3}, "layer_types is [[1]"),
        # Numbers.
        *[("llama", {"vocab_size": value}, "vocab_size is ") for value in BEYOND],
        *[("llama", {"num_hidden_layers": value}, "num_hidden_layers is ") for value in BEYOND],
        *[("llama", {"max_position_embeddings": v}, "max_position_embeddings is ") for v in BEYOND],
        *[
            ("llama", {"rms_norm_eps": v}, "rms_norm_eps is ")
            for v in (-1e-6, 0, "x", True, 1e29, 1e-40)
        ],
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is NaN"),
        ("llama", {"rope_theta": float("inf")}, "rope_theta is Infinity"),
    ],
)
def test_unsupported_or_impossible_values_are_refused_by_field_and_value(
    family: str, facts: dict[str, Any], reason: str
) -> None:
    message = refusal(config_from_dict, tiny(family, **facts), where="some/config.json")
    assert message.startswith("some/config.json: ")
    assert reason in message
    assert " must " in message or "; it is implemented" in message


@pytest.mark.parametrize("name", [name for name in sizes("llama") if name != "model_type"])
def test_a_missing_size_is_named(name: str) -> None:
    raw = sizes("llama")
    del raw[name]
    assert refusal(config_from_dict, raw).startswith(f"config: {name} is missing; it must")


def test_null_key_value_heads_are_as_many_as_query_heads() -> None:
    for family in ALL_FAMILIES:
        config = config_from_dict(sizes(family, num_key_value_heads=None))
        assert config.num_key_value_heads == config.num_attention_heads


def test_a_missing_model_type_is_named() -> None:
    assert "model_type is missing" in refusal(config_from_dict, {})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not readable as JSON"),
        (b'{"model_type": "llama",\n', "not readable as JSON"),
        (b'{"model_type": "\xff"}', "not readable as JSON"),
        (b"[1, 2]", "holds list, expected a JSON object"),
        (b"[" * 100_000, "not readable as JSON"),
        (b"null", "holds NoneType, expected a JSON object"),
        (b'{"model_type": "gpt2"}', 'model_type is "gpt2"'),
        (None, "no such file"),
    ],
)
def test_a_file_without_a_config_is_named(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    message = refusal(read_config, path)
    assert message.startswith(f"{path}: ")
    assert reason in message


def test_the_largest_numbers_are_read() -> None:
    most = {"vocab_size": 10**7, "num_hidden_layers": 500, "intermediate_size": 10**7}
    config = config_from_dict(tiny("llama", **most, head_dim=10**4, hidden_size=10**6))
    assert (config.vocab_size, config.num_hidden_layers) == (10**7, 500)
    assert (config.head_dim, config.hidden_size) == (10**4, 10**6)
    for eps, theta in ((1e-15, 1e-3), (1.0, 1e12)):
        config = config_from_dict(tiny("llama", rms_norm_eps=eps, rope_theta=theta))
        assert (config.rms_norm_eps, config.rope_theta) == (eps, theta)


@pytest.mark.parametrize("value", ["x" * 1_000_000, ["y"] * 100_000, {"z": 10**4000}])
def test_a_message_quotes_the_beginning_of_a_value(value: Any) -> None:
    message = refusal(config_from_dict, tiny("llama", model_type=value))
    assert "..." in message
    assert len(message) < 200


def test_control_characters_in_a_value_are_escaped() -> None:
    assert "\\u001b[31m" in refusal(config_from_dict, tiny("llama", model_type="\x1b[31m"))


def test_a_file_and_its_object_give_the_same_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FAMILIES["qwen2"]))
    assert read_config(path) == config_from_dict(FAMILIES["qwen2"])


def refusal(parse: Any, *arguments: Any, **options: Any) -> str:
    """The one line of the refusal."""
    with pytest.raises(InputError) as caught:
        parse(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
