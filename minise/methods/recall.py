"""Recall: the model writes the answer itself, and does not see the choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from minise.engines import LanguageModel, check_length
from minise.errors import InputError
from minise.grouping import Groups
from minise.method import PAPER, Answer, Group, Method, OnText, Plan, Preset
from minise.methods.cloze import open_prompt
from minise.methods.reasoning import TextPlan
from minise.prompt import Prompt
from minise.question import Question
from minise.writing.chat import stop_tokens
from minise.writing.generation import generate


@dataclass(frozen=True)
class Recall(Method):
    """Greedy text after the question and the cue, up to a line end, a stop token or
    `max_new_tokens`; then the choice that is equal to it (`recalled`).

    It shows what a model knows without a list to read and a label to bind. It gives no
    distribution: the recalled choice has probability 1. Where the text is none of the choices, all
    have 1/K, and the prediction is the first, which is right by chance. So accuracy means something
    here, NLL and calibration do not.
    """

    name: ClassVar[str] = "recall"
    max_new_tokens: int = 32
    preset: Preset = PAPER

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        """The prompt before the model writes. Raises Unsuited for a model that names no stop
        token."""
        check_length(lm, question)
        text = open_prompt(self.standard_template(lm), question.text)
        order = tuple(range(len(question.choices)))
        ids = lm.tokenizer.encode([text])[0]
        return Plan(question, Groups(((order,),)), [], [Prompt(text, ids, stop_tokens(lm))])

    def write(
        self, lm: LanguageModel, plan: Plan, seed: int = 0, on_text: OnText | None = None
    ) -> TextPlan:
        (prompt,) = plan.prompts
        room = lm.config.max_position_embeddings - len(prompt.ids)
        if room < 1:
            raise InputError(
                f"the prompt has {len(prompt.ids)} tokens, which leaves none to answer"
            )
        budget = min(self.max_new_tokens, room)
        (written,) = generate(lm, [prompt.ids], budget, stop_texts=("\n",), on_text=on_text)
        with_text = Prompt(
            prompt.text + written.text, prompt.ids + written.tokens, prompt.label_ids
        )
        return TextPlan(
            plan.question,
            plan.groups,
            plan.prefix,
            [with_text],
            text=written.text,
            new_tokens=len(written.tokens),
        )

    def answer(self, plan: Plan, logits: Sequence[Tensor]) -> Answer:
        assert isinstance(plan, TextPlan)  # it is the plan that `write` returned
        K = len(plan.question.choices)
        choice = recalled(plan.text, plan.question.choices)
        p = torch.full((K,), 1 / K, dtype=torch.float64)
        if choice is not None:
            p = torch.zeros(K, dtype=torch.float64)
            p[choice] = 1.0
        return Answer(p, p, choice or 0, (Group(plan.groups.flat[0], p, None),))

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """For the sample: the text, its length, and the choice that it is (None: none of them)."""
        assert isinstance(plan, TextPlan)
        return {
            "written": plan.text,
            "new_tokens": plan.new_tokens,
            "recalled": recalled(plan.text, plan.question.choices),
        }


def recalled(text: str, choices: Sequence[str]) -> int | None:
    """The index of the choice that a text is, apart from case, spaces around it and a full stop at
    the end; None where it is none of them.

    >>> recalled(" New Delhi.", ["Ottawa", "New Delhi"]), recalled(" Delhi", ["New Delhi"])
    (1, None)
    """

    def plain(written: str) -> str:
        return written.strip().rstrip(".").casefold()

    return next((i for i, choice in enumerate(choices) if plain(choice) == plain(text)), None)
