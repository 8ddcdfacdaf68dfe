"""Reason first, then answer: chain of thought, and reasoning models.

The model writes its reasoning after the question and all its choices. Then a cue follows, and the
probabilities of the labels are read after it. So each question has a distribution, and no answer
has to be found in a text. The paper compares with such methods (Section 5.4) but states no prompt,
budget or sampling: docs/paper.md says what is done here and why.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from minise.engines import LanguageModel
from minise.errors import Unsuited
from minise.method import Method, Plan, Standard
from minise.prompt import Template
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

    The prompt is written with the checkpoint's chat template, if it has one. If not, a blank line
    ends the text, because after it a base model makes up another question. The plan's notes have
    the text, its number of tokens, and whether it was cut.
    """

    name: ClassVar[str] = "cot"
    sampling: ClassVar[tuple[float, float]] = (0.0, 1.0)  # temperature, top-p: greedy
    max_new_tokens: int = 256

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
            stop_texts=() if chat_template(lm) else ("\n\n",),
        )
        notes = {
            "reasoning": written.text,
            "new_tokens": len(written.tokens),
            "cut": not written.finished,
        }
        return replace(self.read(lm, question, self.close(start + written.text)), notes=notes)

    def start(self, lm: LanguageModel, question: Question) -> str:
        """The text after which the model reasons."""
        if chat_template(lm):
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

    A reasoning model is one whose chat template contains "</think>".
    """

    name: ClassVar[str] = "reasoning"
    sampling: ClassVar[tuple[float, float]] = (0.6, 0.95)
    max_new_tokens: int = 2048

    def start(self, lm: LanguageModel, question: Question) -> str:
        if CLOSE not in (chat_template(lm) or ""):
            what = f"is no reasoning model, its chat template knows no {CLOSE}"
            raise Unsuited(f"{lm.name}: {what}; use cot")
        text = user_turn(lm, Template(cue=LETTER).render(question.text, question.choices))
        return text if text.endswith(OPEN) else text + OPEN

    def close(self, text: str) -> str:
        thoughts, closed, _ = text.rpartition(CLOSE)
        return f"{thoughts if closed else text.rstrip() + chr(10)}{CLOSE}\n"
