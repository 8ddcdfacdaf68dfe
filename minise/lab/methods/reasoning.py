"""Reason first, then answer: chain of thought, and reasoning models.

The model writes its reasoning after the question and all its choices. Then a cue follows, and the
probabilities of the labels are read after it. So each question has a distribution, and no answer
has to be found in a text. The paper compares with such methods (Section 5.4) but states no prompt,
budget or sampling: docs/paper.md says what is done here and why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from minise.errors import Unsuited
from minise.lab.data.asked import Asked
from minise.lab.data.kinds import check, whole_from
from minise.lab.methods.noted import NotedAnswer
from minise.lab.methods.writes_first import Start, WritesFirst, Written
from minise.lab.writing.chat import chat_template, user_turn
from minise.lab.writing.generation import generate
from minise.method import GroupPlan, Standard, mean_over_groups
from minise.prompts import LabelLogits, LanguageModel, Prompts
from minise.question import Question
from minise.template import Template

STEPS = "Let's think step by step."  # Kojima et al. 2022, zero-shot
OPEN = "<think>\n"  # of DeepSeek-R1 and its distills
CLOSE = "</think>"
LETTER = "Answer with the letter of the right choice."


@dataclass(frozen=True)
class PlanAfterText:
    """A plan, and what the model wrote before it was made."""

    plan: GroupPlan
    written: Written


@dataclass(frozen=True)
class ChainOfThought(WritesFirst):
    """Zero-shot chain of thought: "Let's think step by step.", then greedy text of at most
    `max_new_tokens`, then the cue.

    The prompt is written with the checkpoint's chat template, if it has one. If not, a blank line
    ends the text, because after it a base model makes up another question. The answer's notes have
    the text, its number of tokens, and whether it was cut.
    """

    name: ClassVar[str] = "cot"
    temperature: ClassVar[float] = 0.0  # greedy
    top_p: ClassVar[float] = 1.0
    max_new_tokens: int = 256

    def __post_init__(self) -> None:
        check("max_new_tokens", self.max_new_tokens, whole_from(1))

    def start(self, lm: LanguageModel, asked: Asked) -> Start:
        """After which text the model reasons, and for how long. Raises Unsuited if its positions
        leave no room to reason."""
        text = self.opened(lm, asked.question)
        _, without = self.read(lm, asked.question, self.closed(text))
        room = lm.limits.positions - without.longest
        if room < 1:
            what = f"a prompt of {without.longest} tokens leaves no room to reason"
            raise Unsuited(f"{lm.name}: {what}")
        return Start(text, min(self.max_new_tokens, room), asked.seed)

    def write(self, lm: LanguageModel, starts: Sequence[Start]) -> list[Written]:
        """What the model writes after each. Raises Unsuited for a model that names no stop token,
        or that runs elsewhere."""
        distinct = list(dict.fromkeys(starts))  # equal ones are written once
        generated = generate(
            lm,
            [start.text for start in distinct],
            [start.max_new_tokens for start in distinct],
            self.temperature,
            self.top_p,
            [start.seed for start in distinct],
            stop_texts=() if chat_template(lm) else ("\n\n",),
        )
        written = {}
        for start, generation in zip(distinct, generated, strict=True):
            written[start] = Written(generation.text, len(generation.tokens), generation.finished)
        return [written[start] for start in starts]

    def prompts_after(
        self, lm: LanguageModel, asked: Asked, written: Written
    ) -> tuple[PlanAfterText, Prompts]:
        text = self.closed(self.opened(lm, asked.question) + written.text)
        plan, prompts = self.read(lm, asked.question, text)
        return PlanAfterText(plan, written), prompts

    def answer(self, plan: PlanAfterText, logits: Sequence[LabelLogits]) -> NotedAnswer:
        written = plan.written
        notes = {
            "reasoning": written.text,
            "new_tokens": written.new_tokens,
            "cut": not written.finished,
        }
        return NotedAnswer(**vars(mean_over_groups(plan.plan, logits)), notes=notes)

    def opened(self, lm: LanguageModel, question: Question) -> str:
        """The text after which the model reasons."""
        if chat_template(lm):
            return user_turn(lm, Template(cue=STEPS).render(question.text, question.choices))
        return f"{Template().render(question.text, question.choices)} {STEPS}"

    def closed(self, text: str) -> str:
        """The text with its reasoning ended, ready for the cue."""
        return text.rstrip()

    def read(self, lm: LanguageModel, question: Question, text: str) -> tuple[GroupPlan, Prompts]:
        """The prompt that reads the answer after `text`: the cue alone."""
        return Standard(Template(choice="")).prompts(lm, replace(question, text=text))


@dataclass(frozen=True)
class Reasoning(ChainOfThought):
    """A reasoning model, used as DeepSeek-R1's distills are: no system prompt, "<think>" written
    for it if its chat template does not, temperature 0.6 and top-p 0.95, and the answer read after
    "</think>". If the budget ends before, "</think>" is written for the model.

    A reasoning model is one whose chat template contains "</think>".
    """

    name: ClassVar[str] = "reasoning"
    temperature: ClassVar[float] = 0.6
    top_p: ClassVar[float] = 0.95
    max_new_tokens: int = 2048

    def opened(self, lm: LanguageModel, question: Question) -> str:
        if CLOSE not in (chat_template(lm) or ""):
            what = f"is no reasoning model, its chat template knows no {CLOSE}"
            raise Unsuited(f"{lm.name}: {what}; use cot")
        text = user_turn(lm, Template(cue=LETTER).render(question.text, question.choices))
        return text if text.endswith(OPEN) else text + OPEN

    def closed(self, text: str) -> str:
        thoughts, found, _ = text.rpartition(CLOSE)
        if not found:
            thoughts = f"{text.rstrip()}\n"
        return f"{thoughts}{CLOSE}\n"
