"""What the authors' released code does differently, family by family (docs/paper.md)."""

from __future__ import annotations

from minise.groupings.independent import independent_draws
from minise.method import Preset
from minise.prompt import Template

# The question ends in " \n", a group runs on one line, and its logits are read after the newline
# that closes it. Labels are looked up bare ("A", not " A").
_LINE = Template("{question} \n", "({label}) {choice} ", "Answer: \n", "{label}", bare_labels=True)
# Standard inference: the data set's formatted question and " Answer:".
_FORMATTED = Template("{question} ", "({label}) {choice} ", "Answer:", "{label}", bare_labels=True)
_CHAT = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"

AUTHORS_CODE = {
    "llama": Preset(
        grouping=independent_draws,
        groups_per_question=False,
        null_in_softmax=False,
        template=_LINE,
        # Only this script looks up " A", which is also how a prompt continues after "Answer:".
        standard_template=Template("{question} ", "({label}) {choice} ", "Answer:"),
        dtype="bfloat16",
    ),
    "mistral": Preset(
        grouping=independent_draws,
        groups_per_question=False,
        null_in_softmax=False,
        template=_LINE,
        standard_template=_FORMATTED,
        # Its tokenizer makes two tokens of " \n", but the code's offset for the last group counts
        # one.
        last_group_early=1,
        dtype="bfloat16",
    ),
    "qwen2": Preset(
        grouping=independent_draws,
        groups_per_question=False,
        null_option=False,
        null_in_softmax=False,
        template=Template(
            _CHAT + "{question} \n", _LINE.choice, _LINE.cue, _LINE.label, bare_labels=True
        ),
        standard_template=_FORMATTED,
        dtype="bfloat16",
    ),
}
