"""Reason first, then answer: chain of thought, and reasoning models.

The model writes its reasoning after the question and all its choices. Then a cue follows, and the
probabilities of the labels are read after it. So each question has a distribution, and no answer
has to be found in a text; the choice that the text names is noted too (`named_choice`). The paper
compares with such methods (Section 5.4) but states no prompt, budget or sampling: docs/paper.md
says what is done here and why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from minise.engines import LanguageModel
from minise.errors import Unsuited
from minise.method import Method, Plan, Standard
from minise.prompt import LABELS, Template
from minise.question import Question
from minise.writing.chat import chat_template, user_turn
from minise.writing.generation import generate

STEPS = "Let's think step by step."  # Kojima et al. 2022, zero-shot
OPEN, CLOSE = "<think>\n", "</think>"  # of DeepSeek-R1 and its distills
LETTER = "Answer with the letter of the right choice."


@dataclass(frozen=True)
class ChainOfThought(Method):
    """Zero-shot chain of thought: "Let's think step by step.", then greedy text of at most
    `max_new_tokens`, then the cue.

    `chat`: whether to write the prompt with the checkpoint's chat template; None: if it has one.
    Without a chat template a blank line ends the text, because after it a base model makes up
    another question. The plan's notes have the text, its number of tokens, whether it was cut, and
    the choice that it names.
    """

    name: ClassVar[str] = "cot"
    sampling: ClassVar[tuple[float, float]] = (0.0, 1.0)  # temperature, top-p: greedy
    max_new_tokens: int = 256
    chat: bool | None = None

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """Let the model reason, and put what it wrote into the prompt. Raises Unsuited for a model
        that names no stop token, or whose positions leave no room to reason."""
        start = self.start(lm, question)
        without = self.read(lm, question, self.close(start))
        longest = len(without.prefix) + len(without.branches[0])
        room = lm.config.max_position_embeddings - longest
        if room < 1:
            raise Unsuited(f"{lm.name}: a prompt of {longest} tokens leaves no room to reason")
        (written,) = generate(
            lm,
            [start],
            min(self.max_new_tokens, room),
            *self.sampling,
            seed=seed,
            stop_texts=() if self.is_chat(lm) else ("\n\n",),
        )
        notes = {
            "reasoning": written.text,
            "new_tokens": len(written.tokens),
            "cut": not written.finished,
            "said": named_choice(written.text, len(question.choices)),
        }
        return replace(self.read(lm, question, self.close(start + written.text)), notes=notes)

    def is_chat(self, lm: LanguageModel) -> bool:
        """Whether the prompt is written with the checkpoint's chat template."""
        return chat_template(lm) is not None if self.chat is None else self.chat

    def start(self, lm: LanguageModel, question: Question) -> str:
        """The text after which the model reasons."""
        if self.is_chat(lm):
            return user_turn(lm, Template(cue=STEPS).render(question.text, question.choices))
        return f"{Template().render(question.text, question.choices)} {STEPS}"

    def close(self, text: str) -> str:
        """The text with its reasoning ended, ready for the cue."""
        return text.rstrip()

    def read(self, lm: LanguageModel, question: Question, text: str) -> Plan:
        """The prompt that reads the answer after `text`: the cue alone."""
        plan = Standard(Template(choice="")).plan(lm, replace(question, text=text))
        return replace(plan, question=question)


@dataclass(frozen=True)
class Reasoning(ChainOfThought):
    """A reasoning model, used as DeepSeek-R1's distills are: no system prompt, "<think>" written
    for it if its chat template does not, temperature 0.6 and top-p 0.95, and the answer read after
    "</think>". If the budget ends before, "</think>" is written for the model.

    A reasoning model is one whose chat template contains "</think>". With `chat` True or False any
    model can be asked, with its template or without.
    """

    name: ClassVar[str] = "reasoning"
    sampling: ClassVar[tuple[float, float]] = (0.6, 0.95)
    max_new_tokens: int = 2048

    def is_chat(self, lm: LanguageModel) -> bool:
        if self.chat is None and CLOSE not in (chat_template(lm) or ""):
            raise Unsuited(
                f"{lm.name}: is no reasoning model, its chat template knows no {CLOSE}; to ask it "
                "all the same write reasoning(chat=true), or chat=false for a plain prompt"
            )
        return self.chat is not False

    def start(self, lm: LanguageModel, question: Question) -> str:
        if self.is_chat(lm):
            text = user_turn(lm, Template(cue=LETTER).render(question.text, question.choices))
        else:
            text = Template(cue=f"{LETTER}\n").render(question.text, question.choices)
        return text if text.endswith(OPEN) else text + OPEN

    def close(self, text: str) -> str:
        thoughts, closed, _ = text.rpartition(CLOSE)
        return f"{thoughts if closed else text.rstrip() + chr(10)}{CLOSE}\n"


def named_choice(text: str, num_choices: int) -> int | None:
    """The index of the choice that a text names last, after its last "</think>" if it has one; None
    where it names none. A choice is named as "(B)", "answer is B", "Answer: B", "\\boxed{B}", or by
    a text that is "B" alone.

    >>> named_choice("(A) is wet. So the answer is B.", 3), named_choice("I do not know.", 3)
    (1, None)
    """
    after = text.rpartition(CLOSE)[2]
    form = r"\(([A-Z])\)|(?i:answer)(?i:\s+is)?[\s:*]*([A-Z])\b|\\boxed\{\(?([A-Z])|^\W*([A-Z])\W*$"
    letters = ["".join(groups) for groups in re.findall(form, after)]
    choices = [LABELS.index(letter) for letter in letters if letter in LABELS[:num_choices]]
    return choices[-1] if choices else None
