"""A question and a group's choices become a prompt (Section 3.2, step 2, Eq. 1), then token ids.

A prompt may list a null option, "None of the above" (the appendix on normalization). Next to read:
engines.py, which runs the prompts.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from weakref import WeakKeyDictionary

from minise.errors import InputError, Unsuited, quote
from minise.tokenizer import Tokenizer

LABELS = string.ascii_uppercase
NULL_OPTION = "None of the above"

# Prompts whose last tokens, this many, are equal are taken to continue with the same label tokens.
_SAME_END = 4
# What was looked up for a tokenizer: label ids by the label's form and the last tokens before it.
_looked_up = WeakKeyDictionary[Tokenizer, dict[tuple[str, bool, tuple[int, ...]], list[int]]]()


@dataclass(frozen=True)
class Template:
    """How a prompt is written: the question, a line per choice, and the answer cue, which a label
    follows.

    With the default, none of the usual tokenizers merges tokens across the end of the question:

    >>> print(Template().render("How many?", ["one", "two"]))
    How many?
    (A) one
    (B) two
    Answer:

    `bare_labels`: encode a label alone to find its id, as the code released by the paper's authors
    does, instead of as it follows the prompt.
    """

    question: str = "{question}\n"
    choice: str = "({label}) {choice}\n"
    cue: str = "Answer:"
    label: str = " {label}"
    bare_labels: bool = False

    def prefix(self, question: str) -> str:
        """The text that all prompts of a question share."""
        return self.question.format(question=question)

    def render(self, question: str, choices: Sequence[str]) -> str:
        """The prompt for these choices, labelled A, B, ... in the order given.

        Raises InputError for more choices than labels.
        """
        check_labels(len(choices))
        lines = [
            self.choice.format(label=label, choice=choice)
            for label, choice in zip(LABELS, choices, strict=False)
        ]
        return self.prefix(question) + "".join(lines) + self.cue


DEFAULT_TEMPLATE = Template()


def check_labels(count: int) -> None:
    """Raise Unsuited, an InputError, for more choices in one prompt than labels."""
    if count > len(LABELS):
        raise Unsuited(
            f"{count} choices in one prompt, but only {len(LABELS)} labels (A-Z); "
            "use smaller groups"
        )


@dataclass(frozen=True)
class Prompt:
    """The prompt of one group. `ids` are its token ids after the prefix that all prompts of the
    question share. `label_ids` are the token ids of the labels of its choices, in their order."""

    text: str
    ids: list[int]
    label_ids: list[int]


def write_prompts(
    tokenizer: Tokenizer, template: Template, question: str, choice_lists: Sequence[Sequence[str]]
) -> tuple[list[int], list[Prompt]]:
    """The shared prefix as ids, and one prompt per list of choices.

    Each whole text is encoded, as in a separate run of that prompt, and then cut. The prefix is the
    longest beginning that all prompts share with the question encoded alone. If a tokenizer merges
    the end of the question and the text after it into one token, the prefix is shorter by that
    token, and nothing else changes.

    Raises InputError where a label is not exactly one token, or two labels are the same token.
    """
    texts = [template.render(question, choices) for choices in choice_lists]
    question_ids, *whole_ids = tokenizer.encode([template.prefix(question), *texts])
    shared = shared_length([question_ids, *whole_ids])
    label_ids: list[list[int]] = []
    by_end = _looked_up.setdefault(tokenizer, {})
    # The tokens of a label depend on the end of the prompt. So of all prompts with the same last
    # tokens, also of other questions, only the first is looked up, and one with more labels again.
    for text, ids, choices in zip(texts, whole_ids, choice_lists, strict=True):
        end = template.label, template.bare_labels, tuple(ids[-_SAME_END:])
        if len(by_end.get(end, [])) < len(choices):
            by_end[end] = _label_ids(tokenizer, template, text, ids, len(choices))
        label_ids.append(by_end[end][: len(choices)])
    prompts = [
        Prompt(text, ids[shared:], of_prompt)
        for text, ids, of_prompt in zip(texts, whole_ids, label_ids, strict=True)
    ]
    return whole_ids[0][:shared], prompts


def shared_length(sequences: Sequence[Sequence[int]]) -> int:
    """How many ids at the beginning are the same in all sequences."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _label_ids(
    tokenizer: Tokenizer, template: Template, text: str, ids: list[int], count: int
) -> list[int]:
    """The ids of the first `count` labels, as they follow the prompt `text`, whose ids are `ids`.

    The id of " A" after a prompt is the one token by which ids(prompt + " A") extends ids(prompt).
    Encoding the label alone can give another: Mistral's tokenizer makes two tokens of " A" alone
    and one of it after "Answer:". The released code takes the last id of the label encoded alone,
    which may name a token that never follows the prompt.
    """
    labels = [template.label.format(label=label) for label in LABELS[:count]]
    extended = tokenizer.encode(
        [label if template.bare_labels else text + label for label in labels]
    )
    for label, longer in zip(labels, extended, strict=True):
        one_more = longer and longer[:-1] == ids and longer[-1] != tokenizer.unknown_id
        if not (template.bare_labels or one_more):
            pieces = [tokenizer.backend.id_to_token(token) for token in longer[-3:]]
            raise InputError(
                f"{tokenizer.name}: label {label!r} after {text[-20:]!r} is not one token "
                f"(the text ends in {quote(pieces)}); use a tokenizer or template in which it is"
            )
    label_ids = [longer[-1] if longer else -1 for longer in extended]
    if len(set(label_ids)) < len(label_ids) or -1 in label_ids:
        raise InputError(
            f"{tokenizer.name}: labels {quote(labels)} are not distinct tokens "
            f"(ids {quote(label_ids)}); use a tokenizer or template in which they are"
        )
    return label_ids
