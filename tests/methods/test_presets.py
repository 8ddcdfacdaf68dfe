"""The presets, by the names that the command line knows without torch."""

from __future__ import annotations

from minise.methods.presets import PRESETS
from minise.methods.registry import PRESET_NAMES


def test_the_command_line_offers_every_preset() -> None:
    assert tuple(PRESETS) == PRESET_NAMES
