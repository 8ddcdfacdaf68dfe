"""The facts of a checkpoint."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from minise.config import FAMILIES, Config
from tests.support.tiny import ALL_FAMILIES, read_config


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_has_the_facts_of_its_family_and_cannot_be_changed(name: str) -> None:
    config, family = read_config(ALL_FAMILIES[name]), FAMILIES[name]
    assert (config.model_type, config.qkv_bias) == (name, family.qkv_bias)
    assert config.qk_norm == family.qk_norm
    windowed = {window is not None for window in config.sliding_windows}
    expected = {"none": {False}, "all": {True}, "some": {False, True}}
    assert windowed == expected[family.windowed_layers]
    for field in fields(Config):
        with pytest.raises(FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))
