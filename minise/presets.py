"""The two ways of running the method: as the paper writes it, and as its released code does.

Each departure of the released code is one field, so that `dataclasses.replace` switches it alone
and its effect can be measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from minise.errors import InputError
from minise.prompt import DEFAULT_TEMPLATE, Template


@dataclass(frozen=True)
class Preset:
    """All that group size, number of trials and seed leave open. The defaults are the paper's."""

    grouping: str = "random"
    """"random": partitions of the choices (Section 3.2); "balanced": a design of such partitions.
    "independent": one draw a trial."""
    groups_per_question: bool = True
    """Draw other groups for each question; False: every question gets the same index sets."""
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


PAPER = Preset()

# The question ends in " \n", a group runs on one line, and its logits are read after the newline
# that closes it; labels are looked up bare ("A", not " A").
_LINE = Template("{question} \n", "({label}) {choice} ", "Answer: \n", "{label}", bare_labels=True)
# Standard inference: the data set's formatted question and " Answer:".
_FORMATTED = Template("{question} ", "({label}) {choice} ", "Answer:", "{label}", bare_labels=True)
_CHAT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"

AUTHORS_CODE = {
    "llama": Preset(
        grouping="independent",
        groups_per_question=False,
        null_in_softmax=False,
        template=_LINE,
        # The one script that looks " A" up; after "Answer:" that is also how it continues.
        standard_template=Template("{question} ", "({label}) {choice} ", "Answer:"),
    ),
    "mistral": Preset(
        grouping="independent",
        groups_per_question=False,
        null_in_softmax=False,
        template=_LINE,
        standard_template=_FORMATTED,
        # Its tokenizer splits " \n" in two and the offset for the last group counts one.
        last_group_early=1,
    ),
    "qwen2": Preset(
        grouping="independent",
        groups_per_question=False,
        null_option=False,
        null_in_softmax=False,
        template=Template(
            _CHAT + "{question} \n", _LINE.choice, _LINE.cue, _LINE.label, bare_labels=True
        ),
        standard_template=_FORMATTED,
    ),
}

PRESETS = ("paper", "authors-code")


def get_preset(name: str, model_type: str) -> Preset:
    """The preset `name` for a family; the released code differs family by family."""
    if name == "paper":
        return PAPER
    if name == "authors-code":
        return AUTHORS_CODE[model_type]
    raise InputError(f'preset "{name}" is unknown; use one of {", ".join(PRESETS)}')
