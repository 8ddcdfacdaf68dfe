"""The facts that distinguish the families, and the defaults of rotary scaling."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from minise.config import FAMILIES, Config, Family, RopeScaling
from minise.loading.config_json import config_from_dict
from tests.support import tiny


def test_only_qwen2_has_biases_only_qwen3_norms_and_only_llama_no_windows() -> None:
    assert {name for name, family in FAMILIES.items() if family.qkv_bias} == {"qwen2"}
    assert {name for name, family in FAMILIES.items() if family.qk_norm} == {"qwen3"}
    assert {name: family.windowed_layers for name, family in FAMILIES.items()} == {
        "llama": "none",
        "mistral": "all",
        "qwen2": "some",
        "qwen3": "some",
    }
    assert FAMILIES["llama"] == Family(False, None, 2048, None, "none")


def test_a_config_has_the_biases_norms_and_windows_of_its_family() -> None:
    for name, family in FAMILIES.items():
        config = config_from_dict(tiny.ALL_FAMILIES[name])
        assert (config.model_type, config.qkv_bias) == (name, family.qkv_bias)
        assert config.qk_norm == family.qk_norm
        windowed = [window is not None for window in config.sliding_windows]
        assert len(windowed) == config.num_hidden_layers
        expected = {"none": {False}, "all": {True}, "some": {False, True}}
        assert set(windowed) == expected[family.windowed_layers]


def test_rotary_frequencies_are_not_scaled_by_default() -> None:
    scaling = RopeScaling()
    assert (scaling.rope_type, scaling.factor) == ("default", 1.0)


def test_a_config_states_every_fact_and_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="missing"):
        Config("llama")  # type: ignore[call-arg]
    config = config_from_dict(tiny.FAMILIES["llama"])
    for field in fields(config):
        with pytest.raises(FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))
