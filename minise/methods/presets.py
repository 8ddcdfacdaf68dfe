"""The two ways of running the method: as the paper writes it, and as its released code does.

Each departure of the released code is one field, so that `dataclasses.replace` switches it alone
and its effect can be measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minise.errors import InputError
from minise.grouping import Grouping
from minise.names import PRESETS
from minise.prompt import DEFAULT_TEMPLATE, Template


@dataclass(frozen=True)
class Preset:
    """Everything that group size, number of trials and seed leave open. The defaults are the
    paper's."""

    grouping: str | Grouping = "random"
    """A name in GROUPINGS, or a function like those."""
    groups_per_question: bool = True
    """Draw other groups for each question. False: every question gets the same index sets."""
    null_option: bool = True
    """Write "None of the above" as each group's last choice (appendix on normalization)."""
    null_in_softmax: bool = True
    """Count its label in the group's softmax, where it is written."""
    template: Template = DEFAULT_TEMPLATE
    """How a group's prompt is written."""
    standard_template: Template = DEFAULT_TEMPLATE
    """How the prompt of standard inference, with all K choices, is written."""
    last_group_early: int = 0
    """Read the last group this many tokens before its end."""
    dtype: str = "float64"
    """In which dtype each group's softmax and the mean over the groups are taken."""


PAPER = Preset()


def resolve(
    preset: str | Preset,
    model_type: str,
    grouping: str | Grouping | None = None,
    null_option: bool | None = None,
) -> Preset:
    """A preset, by its name for a family if need be, with the given fields replaced.

    The released code differs family by family. Raises InputError for an unknown name.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise InputError(f'preset "{preset}" is unknown; use one of {", ".join(PRESETS)}')
        # Imported here, because that module is written in terms of this one.
        from minise.methods.authors_code import AUTHORS_CODE

        if preset == "authors-code" and model_type not in AUTHORS_CODE:
            raise InputError(f"preset authors-code has no {model_type} model; use preset paper")
        preset = PAPER if preset == "paper" else AUTHORS_CODE[model_type]
    changes = {"grouping": grouping, "null_option": null_option}
    return replace(preset, **{k: v for k, v in changes.items() if v is not None})  # type: ignore[arg-type]
