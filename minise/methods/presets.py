"""The two presets by name: the method as the paper describes it, and as its released code runs."""

from __future__ import annotations

from minise.errors import InputError, quote
from minise.method import PAPER, Preset
from minise.methods.authors_code import AUTHORS_CODE


class _AuthorsCode(Preset):
    """The released code: another preset for each family of models."""

    def of(self, model_type: str) -> Preset:
        if model_type not in AUTHORS_CODE:
            raise InputError(f"preset authors-code has no {model_type} model; use preset paper")
        return AUTHORS_CODE[model_type]


PRESETS = {"paper": PAPER, "authors-code": _AuthorsCode()}


def preset_named(name: str | Preset) -> Preset:
    """The preset for a name in PRESETS; a preset is returned as it is. Raises InputError for
    another name."""
    if not isinstance(name, str):
        return name
    if name not in PRESETS:
        raise InputError(f"preset {quote(name)} is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]
