"""A model that takes texts, and has no token ids for us: another evaluation program asks it.

A method makes its prompts with a tokenizer. Here a whole text is one token, and a label after it is
another. So each prompt keeps its text, and a label is known by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from minise.lm import LabelLogits, Limits, Prompts
from minise.template import DEFAULT_TEMPLATE, LABELS
from minise.tokenizer import Tokenizer

NO_LIMITS = Limits(positions=2**31, vocabulary=2**31)


class WholeTexts(Tokenizer):
    """Ids 0 ... 25 are the labels A ... Z. The next are texts, in the order in which they come."""

    def __init__(self) -> None:
        self.name = "texts"
        self.id_of_text: dict[str, int] = {}

    def encode(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        return [self.encode_one(text) for text in texts]

    def encode_one(self, text: str) -> list[int]:
        for label_id, label in enumerate(LABELS):
            written = DEFAULT_TEMPLATE.label.format(label=label)
            if text.endswith(DEFAULT_TEMPLATE.cue + written):
                return [self.text_id(text.removesuffix(written)), label_id]
        return [self.text_id(text)]

    def text_id(self, text: str) -> int:
        return self.id_of_text.setdefault(text, len(LABELS) + len(self.id_of_text))

    @property
    def unknown_id(self) -> int | None:
        return None


@dataclass(frozen=True, eq=False)
class TextModel:
    """The `LanguageModel` for which a method makes prompts with texts. It is not asked here."""

    name: str = "texts"
    family: str = ""
    engine: str = "separate"
    tokenizer: Tokenizer = field(default_factory=WholeTexts, repr=False)
    limits: Limits = NO_LIMITS

    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        raise NotImplementedError("the program that runs the model asks it")


def labels_of(prompts: Prompts) -> list[str]:
    """The labels of each prompt of a TextModel as one text each: "ABCDE", the null option last."""
    texts = []
    for ids in prompts.label_ids:
        texts.append("".join(LABELS[label_id] for label_id in ids))
    return texts
