"""A question and lists of choices become texts, then token ids."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from minise.errors import InputError, Unsuited, quote
from minise.tokenizer import Tokenizer

LABELS = string.ascii_uppercase
NULL_OPTION = "None of the above"

# Prompts whose last tokens, this many, are equal continue with the same label tokens.
_SAME_END = 4


@dataclass(frozen=True)
class Template:
    """How a prompt is written: question, a line per choice, the answer cue; then a label follows.

    The default is chosen so that no tokenizer in use merges across the end of the question:

    >>> print(Template().render("How many?", ["one", "two"]))
    How many?
    (A) one
    (B) two
    Answer:

    `bare_labels`: look up a label's id by encoding the label alone, as the released code does,
    instead of as it continues the prompt.
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

    The ids are those of each whole text, as a separate run of that prompt would see them. The
    prefix is what the prompts really share of the question: should a tokenizer merge a token across
    the question's end, it is shorter by that token and nothing else changes.

    Raises InputError where a label is not exactly one token, or two labels are the same token.
    """
    texts = [template.render(question, choices) for choices in choice_lists]
    start, *whole = tokenizer.encode([template.prefix(question), *texts])
    shared = shared_length([start, *whole])
    # What a label becomes depends on the end of the prompt. So of the prompts that end in the same
    # tokens, one is looked up: the one with the most labels.
    ends = [tuple(ids[-_SAME_END:]) for ids in whole]
    most: dict[tuple[int, ...], int] = {}
    for i, end in enumerate(ends):
        if end not in most or len(choice_lists[i]) > len(choice_lists[most[end]]):
            most[end] = i
    labels = {
        end: _label_ids(tokenizer, template, texts[i], whole[i], len(choice_lists[i]))
        for end, i in most.items()
    }
    prompts = [
        Prompt(text, ids[shared:], labels[end][: len(choices)])
        for text, ids, end, choices in zip(texts, whole, ends, choice_lists, strict=True)
    ]
    return whole[0][:shared], prompts


def shared_length(sequences: Sequence[Sequence[int]]) -> int:
    """How many ids all of the sequences begin with."""
    columns = zip(*sequences, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _label_ids(
    tokenizer: Tokenizer, template: Template, text: str, ids: list[int], count: int
) -> list[int]:
    """The ids of the first `count` labels, as they continue the prompt `text` with these `ids`.

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
    found = [longer[-1] if longer else -1 for longer in extended]
    if len(set(found)) < len(found) or -1 in found:
        raise InputError(
            f"{tokenizer.name}: labels {quote(labels)} are not distinct tokens "
            f"(ids {quote(found)}); use a tokenizer or template in which they are"
        )
    return found
