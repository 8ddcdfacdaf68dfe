"""The two ways of running the method, by name: as the paper writes it, and as its released code
does."""

from __future__ import annotations

from minise.errors import InputError, quote
from minise.method import PAPER, Preset
from minise.methods.authors_code import AUTHORS_CODE


class _AuthorsCode(Preset):
    """The released code differs family by family."""

    def of(self, model_type: str) -> Preset:
        if model_type not in AUTHORS_CODE:
            raise InputError(f"preset authors-code has no {model_type} model; use preset paper")
        return AUTHORS_CODE[model_type]


PRESETS = {"paper": PAPER, "authors-code": _AuthorsCode()}


def preset_named(name: str | Preset) -> Preset:
    """The preset: a name in PRESETS, or the object itself. Raises InputError for another name."""
    if not isinstance(name, str):
        return name
    if name not in PRESETS:
        raise InputError(f"preset {quote(name)} is unknown; use one of {', '.join(PRESETS)}")
    return PRESETS[name]
