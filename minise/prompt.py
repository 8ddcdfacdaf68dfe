"""A question and a group's choices become a prompt (Section 3.2, step 2, Eq. 1), then token ids.

A prompt may list a null option, "None of the above" (the appendix on normalization). Next to read:
engines.py, which runs the prompts.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minise.checks import check_label_ids, check_labels
from minise.layout import shared_length
from minise.question import Question
from minise.tokenizer import Tokenizer

LABELS = string.ascii_uppercase
NULL_OPTION = "None of the above"
SAME_END = 4  # prompts with so many equal last tokens go on with the same label tokens


@dataclass(frozen=True)
class Template:
    """How a prompt is written: the question, a line per choice, and the answer cue, which a label
    follows.

    >>> print(Template().render("How many?", ["one", "two"]))
    How many?
    (A) one
    (B) two
    Answer:
    """

    question: str = "{question}\n"
    choice: str = "({label}) {choice}\n"
    cue: str = "Answer:"
    label: str = " {label}"

    def adapt(self, lm: Any, question: Question, size: int, null: bool) -> Template:
        """The template for this model, question and group: methods/templates.py has others."""
        return self

    def prefix(self, question: str) -> str:
        """The text that all prompts of a question share."""
        return self.question.format(question=question)

    def render(self, question: str, choices: Sequence[str]) -> str:
        """The prompt for these choices, labelled A, B, ... in the order given."""
        lines = [
            self.choice.format(label=label, choice=choice)
            for label, choice in zip(LABELS, choices, strict=False)
        ]
        return self.prefix(question) + "".join(lines) + self.cue

    def label_ids(self, tokenizer: Tokenizer, text: str, ids: list[int], count: int) -> list[int]:
        """The ids of the first `count` labels, as they follow the prompt `text`, whose ids are
        `ids`.

        The id of " A" after a prompt is the one token by which ids(prompt + " A") extends
        ids(prompt). Encoding the label alone can give another: Mistral's tokenizer makes two tokens
        of " A" alone and one of it after "Answer:".
        """
        labels = [self.label.format(label=label) for label in LABELS[:count]]
        extended = tokenizer.encode([text + label for label in labels])
        check_label_ids(tokenizer, text, ids, labels, extended)
        return [longer[-1] for longer in extended]


DEFAULT_TEMPLATE = Template()


@dataclass(frozen=True)
class Prompt:
    """The prompt of one group. `ids` are its token ids after the prefix that all prompts of the
    question share. `label_ids` are the token ids of its labels, in their order; None: the logits of
    the whole vocabulary are read (methods/cloze.py)."""

    text: str
    ids: list[int]
    label_ids: list[int] | None


def write_prompts(
    tokenizer: Tokenizer, template: Template, question: str, choice_lists: Sequence[Sequence[str]]
) -> tuple[list[int], list[Prompt]]:
    """The shared prefix as ids, and one prompt per list of choices.

    Each whole text is encoded, as in a separate run of that prompt, and then cut. The prefix is the
    longest common beginning of all prompts' ids and the question's. If a tokenizer merges the end
    of the question and the text after it into one token, the prefix is shorter by that token.

    Raises InputError for more choices than labels, and where a label is not exactly one token, or
    two labels are the same token.
    """
    longest = max(map(len, choice_lists))
    check_labels(longest, LABELS)
    texts = [template.render(question, choices) for choices in choice_lists]
    question_ids, *whole_ids = tokenizer.encode([template.prefix(question), *texts])
    shared = shared_length([question_ids, *whole_ids])
    # A label's token depends on the last few tokens before it, so it is looked up once for an end.
    by_end: dict[tuple[int, ...], list[int]] = {}
    prompts = []
    for text, ids, choices in zip(texts, whole_ids, choice_lists, strict=True):
        end = tuple(ids[-SAME_END:])
        if end not in by_end:
            by_end[end] = template.label_ids(tokenizer, text, ids, longest)
        prompts.append(Prompt(text, ids[shared:], by_end[end][: len(choices)]))
    return whole_ids[0][:shared], prompts
