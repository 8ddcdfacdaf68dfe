"""Each difference of the preset authors-code changes what the method computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minise import (
    AUTHORS_CODE,
    PAPER,
    LanguageModel,
    Question,
    SelfEnsemble,
    branch_logits,
    self_ensemble,
    standard,
)
from minise.grouping import make_groups
from minise.groupings.independent import independent_draws

LETTERS = "ABCDEFGHIJ"


class TestAuthorsCode:
    """The released code, computed by hand from its text."""

    def test_the_preset_computes_what_the_released_code_computes(
        self, lm: LanguageModel, question: Question
    ) -> None:
        preset = AUTHORS_CODE[lm.config.model_type]
        answer = self_ensemble(lm, question, group_size=2, trials=20, preset="authors-code")
        groups = make_groups(5, 2, 20, 0, "", independent_draws).flat
        assert [group.choices for group in answer.groups] == groups
        backend = lm.tokenizer.backend
        labels = [backend.encode(letter).ids[-1] for letter in "AB"]
        by_choice: list[list[torch.Tensor]] = [[] for _ in question.choices]
        for number, group in enumerate(groups):
            text = f"{question.text} \n"
            if lm.config.model_type == "qwen2":
                text = (
                    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                    "<|im_start|>user\n" + text
                )
            text += f"(A) {question.choices[group[0]]} (B) {question.choices[group[1]]}"
            text += " (C) None of the above" * (lm.config.model_type != "qwen2") + " Answer: \n"
            ids = backend.encode(text).ids
            if lm.config.model_type == "mistral" and number == len(groups) - 1:
                ids = ids[:-1]  # the last group is read one token early
            T = len(ids)
            causal = torch.ones(T, T, dtype=torch.bool).tril()
            hidden = lm.decoder(torch.tensor(ids), torch.arange(T), causal)
            p = lm.decoder.logits(hidden[-1])[labels].bfloat16().softmax(0)
            for choice, probability in zip(group, p, strict=True):
                by_choice[choice].append(probability)
        # Every sum and quotient is rounded to bfloat16.
        scores = [float(sum(values, torch.tensor(0)) / len(values)) for values in by_choice]
        assert answer.scores.tolist() == scores
        exact = [float(torch.stack(values).double().mean()) for values in by_choice]
        assert scores != exact
        assert all(group.null is None for group in answer.groups)
        assert preset.null_option == (lm.config.model_type != "qwen2")

    def test_standard_inference_uses_the_released_codes_prompt(
        self, lm: LanguageModel, question: Question
    ) -> None:
        answer = standard(lm, question, preset="authors-code")
        text = question.text + " "
        for letter, choice in zip(LETTERS, question.choices, strict=False):
            text += f"({letter}) {choice} "
        backend = lm.tokenizer.backend
        space = " " if lm.config.model_type == "llama" else ""
        labels = [backend.encode(space + letter).ids[-1] for letter in "ABCDE"]
        logits = branch_logits(lm, [], [backend.encode(text + "Answer:").ids], "separate", labels)
        assert (answer.probabilities - logits[0].softmax(0)).abs().max() <= 1e-12

    @pytest.mark.parametrize(
        "departure",
        [
            {"grouping": independent_draws},
            {"groups_per_question": False},
            {"null_option": False},
            {"null_in_softmax": False},
            {"template": AUTHORS_CODE["llama"].template},
            {"last_group_early": 1},
            {"dtype": "bfloat16"},
        ],
        ids=lambda departure: next(iter(departure)),
    )
    def test_each_departure_can_be_switched_alone_and_changes_the_scores(
        self, lm: LanguageModel, question: Question, departure: dict
    ) -> None:
        switched = self_ensemble(lm, question, 2, 3, preset=replace(PAPER, **departure))
        plain = self_ensemble(lm, question, 2, 3)
        assert (switched.scores - plain.scores).abs().max() > 1e-6

    def test_only_the_last_group_is_read_early(self, lm: LanguageModel, question: Question) -> None:
        early = SelfEnsemble(2, 2, preset=replace(PAPER, last_group_early=2)).plan(lm, question)
        *others, last = SelfEnsemble(2, 2).plan(lm, question).prompts
        assert early.prompts == [*others, replace(last, ids=last.ids[:-2])]
