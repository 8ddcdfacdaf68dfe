"""A question and a group's choices become a prompt (Section 3.2, step 2, Eq. 1), then token ids.

A prompt may list a null option, "None of the above" (the appendix on normalization). All prompts of
a question are one `Prompts` (prompts.py): the prefix that they share, the rest of each, and the ids
of each one's labels. In definition.py: `write_prompt`, and the
trunk and the labels in `ask`. Next to read: method.py.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from minise.errors import InputError, QuestionUnsuited, quote
from minise.grouping import Groups
from minise.layout import shared_length
from minise.prompts import LanguageModel, Prompts
from minise.question import Question
from minise.tokenizer import Tokenizer

LABELS = string.ascii_uppercase
NULL_OPTION = "None of the above"
OTHER = "use another tokenizer or template"


@dataclass(frozen=True)
class Template:
    """How a prompt is written: the question, a line per choice, and the answer cue, which a label
    follows. null: the text of the null option, in the question's language.

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
    null: str = NULL_OPTION

    def prompts(
        self, lm: LanguageModel, question: Question, groups: Groups, null_option: bool
    ) -> Prompts:
        """A prompt for each group, with the null option as its last choice or without. A template
        that depends on the model or the question has another one here."""
        choice_lists = []
        for group in groups.flat:
            texts = [question.choices[i] for i in group]
            if null_option:
                texts.append(self.null)
            choice_lists.append(texts)
        return write_prompts(lm.tokenizer, self, question.text, choice_lists)

    def prefix(self, question: str) -> str:
        """The text that all prompts of a question share."""
        return self.question.format(question=question)

    def render(self, question: str, choices: Sequence[str]) -> str:
        """The prompt for these choices, labelled A, B, ... in the order given."""
        text = self.prefix(question)
        for label, choice in zip(LABELS, choices, strict=False):
            text += self.choice.format(label=label, choice=choice)
        return text + self.cue

    def label_ids(self, tokenizer: Tokenizer, text: str, ids: list[int], count: int) -> list[int]:
        """The ids of the first `count` labels, as they follow the prompt `text`, whose ids are
        `ids`: (count,).

        The id of " A" after a prompt is the one token by which ids(prompt + " A") extends
        ids(prompt). Encoding the label alone can give another: Mistral's tokenizer makes two tokens
        of " A" alone and one of it after "Answer:". Raises InputError where a label is not exactly
        one token, or two labels are the same token.
        """
        labels = [self.label.format(label=label) for label in LABELS[:count]]
        extended = tokenizer.encode([text + label for label in labels])
        for label, longer in zip(labels, extended, strict=True):
            is_one_more = longer[:-1] == ids and len(longer) > 0
            if not is_one_more or longer[-1] == tokenizer.unknown_id:
                problem = f"label {label!r} after {text[-20:]!r} is not one token"
                raise InputError(f"{tokenizer.name}: {problem}; {OTHER}")
        label_ids = [longer[-1] for longer in extended]
        if len(set(label_ids)) < len(label_ids):
            problem = f"labels {quote(labels)} are not distinct tokens (ids {quote(label_ids)})"
            raise InputError(f"{tokenizer.name}: {problem}; {OTHER}")
        return label_ids


DEFAULT_TEMPLATE = Template()


def write_prompts(
    tokenizer: Tokenizer, template: Template, question: str, choice_lists: Sequence[Sequence[str]]
) -> Prompts:
    """A prompt for each list of choices.

    Each whole text is encoded, as in a separate run of that prompt, and then cut. The prefix is the
    longest common beginning of all prompts' ids and the question's, so it is never longer than the
    question. If a tokenizer merges the end of the question and the text after it into one token,
    the prefix is shorter by that token.

    Raises QuestionUnsuited for more choices than labels, and InputError as `Template.label_ids`
    does.
    """
    longest = max(len(choices) for choices in choice_lists)
    if longest > len(LABELS):
        have = f"only {len(LABELS)} labels ({LABELS[0]}-{LABELS[-1]})"
        remedy = f"ask by self-ensemble, in groups of at most {len(LABELS) - 1}"
        raise QuestionUnsuited(f"{longest} choices in one prompt, but {have}; {remedy}")
    texts = [template.render(question, choices) for choices in choice_lists]
    question_ids, *whole_ids = tokenizer.encode([template.prefix(question), *texts])
    shared = shared_length([question_ids, *whole_ids])
    branches = []
    label_ids = []
    for text, ids, choices in zip(texts, whole_ids, choice_lists, strict=True):
        branches.append(ids[shared:])
        label_ids.append(template.label_ids(tokenizer, text, ids, len(choices)))
    return Prompts(question_ids[:shared], branches, label_ids)
