"""A question and a list of choices become text, then token ids."""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import perm
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.tokenizer import Tokenizer

LABELS = string.ascii_uppercase
NULL_OPTION = "None of the above"


@dataclass(frozen=True)
class Question:
    """A K-choice question. `answer` is the index of the right choice, if known.

    `id` seeds the grouping; without one it is a hash of text and choices. Raises InputError for
    fewer than two choices, empty text or an answer that is no choice.
    """

    text: str
    choices: Sequence[str]
    id: str = ""
    answer: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence):
            raise InputError(f"choices are {type(self.choices).__name__}; give a list of texts")
        # Frozen, so set through object: a caller's list must not be shared.
        object.__setattr__(self, "choices", tuple(self.choices))
        numbered = [(f"choice {number}", text) for number, text in enumerate(self.choices, 1)]
        for name, text in [("question", self.text), *numbered]:
            if not isinstance(text, str):
                raise InputError(f"the {name} is {json.dumps(text, default=str)}; it must be text")
            if not text.strip():
                raise InputError(f"the {name} is empty; write its text")
        if len(self.choices) < 2:
            raise InputError(
                f'the question "{self.text}" has {len(self.choices) or "no"} '
                f"choice{'s' * (not self.choices)}; give at least two"
            )
        if self.answer is not None and (
            isinstance(self.answer, bool)
            or not isinstance(self.answer, int)
            or not 0 <= self.answer < len(self.choices)
        ):
            raise InputError(
                f"answer {self.answer!r} is no choice; "
                f"give an index from 0 to {len(self.choices) - 1}"
            )
        if not isinstance(self.id, str):
            raise InputError(f"the question's id is {self.id!r}; it must be text")
        if not self.id:
            object.__setattr__(self, "id", self.content_hash)

    @property
    def content_hash(self) -> str:
        """The hash of text and choices, in their order."""
        content = json.dumps([self.text, self.choices])
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @classmethod
    def from_file(cls, path: Path) -> Question:
        """Read {"question": text, "choices": [text, ...]}, optionally with "id" and "answer"."""
        try:
            raw: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path}: not readable as JSON ({error})") from None
        form = '{"question": "...", "choices": ["...", "..."]}'
        if not isinstance(raw, dict):
            raise InputError(f"{path}: holds no JSON object; write {form}")
        if unknown := sorted(set(raw) - {"question", "choices", "id", "answer"}):
            raise InputError(f'{path}: unknown field "{unknown[0]}"; write {form}')
        for name in ("question", "choices"):
            if name not in raw:
                raise InputError(f'{path}: field "{name}" is missing; write {form}')
        try:
            return cls(raw["question"], raw["choices"], raw.get("id", ""), raw.get("answer"))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


@dataclass(frozen=True)
class Template:
    """How a prompt is written: question, a line per choice, the answer cue; then a label follows.

    The default is chosen so that no tokenizer in use merges across the end of the question:

    >>> print(Template().render("How many?", ["one", "two"]))
    How many?
    (A) one
    (B) two
    Answer:

    `bare_labels`: look a label's id up by encoding the label alone, as the released code does,
    instead of as it continues the prompt.
    """

    question: str = "{question}\n"
    choice: str = "({label}) {choice}\n"
    cue: str = "Answer:"
    label: str = " {label}"
    bare_labels: bool = False

    def opening(self, question: str) -> str:
        """The text that all prompts of a question share."""
        return self.question.format(question=question)

    def render(self, question: str, choices: Sequence[str]) -> str:
        """The prompt for these choices, labelled A, B, ... in the order given.

        Raises InputError for more choices than labels.
        """
        if len(choices) > len(LABELS):
            raise InputError(
                f"{len(choices)} choices in one prompt, but only {len(LABELS)} labels (A-Z); "
                "use smaller groups"
            )
        lines = [
            self.choice.format(label=label, choice=choice)
            for label, choice in zip(LABELS, choices, strict=False)
        ]
        return self.opening(question) + "".join(lines) + self.cue


DEFAULT_TEMPLATE = Template()


@dataclass(frozen=True)
class Prompts:
    """The prompts of one question as token ids: each is `prefix + branch`.

    `label_ids` gives, per prompt, the id of the label token of each of its choices.
    """

    prefix: list[int]
    branches: list[list[int]]
    label_ids: list[list[int]]


def write_prompts(
    tokenizer: Tokenizer, template: Template, question: str, choice_lists: Sequence[Sequence[str]]
) -> Prompts:
    """One prompt per list of choices, as ids.

    The ids are those of the whole text, as a run of that prompt alone would see them; the prefix is
    what they really share of the question. Should a tokenizer merge a token across the question's
    end, the prefix is shorter by that token and nothing else changes.

    Raises InputError where a label is not exactly one token, or two labels are the same one.
    """
    texts = [template.render(question, choices) for choices in choice_lists]
    labels = [
        [template.label.format(label=label) for label in LABELS[: len(choices)]]
        for choices in choice_lists
    ]
    opening, *prompts = tokenizer.encode([template.opening(question), *texts])
    columns = zip(opening, *prompts, strict=False)
    shared = sum(1 for _ in takewhile(lambda ids: len(set(ids)) == 1, columns))
    find = tokenizer.bare_label_ids if template.bare_labels else tokenizer.label_ids
    return Prompts(prompts[0][:shared], [p[shared:] for p in prompts], find(texts, labels))


def estimate_exact_tokens(
    tokenizer: Tokenizer,
    template: Template,
    question: Question,
    sizes: Sequence[tuple[int, int]],
    null_option: bool,
) -> int:
    """About how many tokens the prompts of all ordered groups of `sizes` have, common prefixes
    merged; without writing them, since there may be millions.

    In the tree of choices K! / (K - j)! choices stand at depth j, those below one parent share
    their label, and every whole group has an end of its own, the null option and the cue.
    """
    opening, K = template.opening(question.text), len(question.choices)
    lines = [template.choice.format(label="A", choice=choice) for choice in question.choices]
    label = template.choice.format(label="A", choice="").rstrip()
    null = template.choice.format(label="A", choice=NULL_OPTION) if null_option else ""
    texts = ["", label, *lines, null + template.cue]
    trunk, *ends = map(len, tokenizer.encode([opening + text for text in texts]))
    shared, *each, end = (length - trunk for length in ends)
    own, whole = sum(each) / K - shared, {size for size, _ in sizes}
    return trunk + round(
        sum(
            perm(K, depth - 1) * shared + perm(K, depth) * (own + end * (depth in whole))
            for depth in range(1, max(whole) + 1)
        )
    )
