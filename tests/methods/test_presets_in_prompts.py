"""What the preset authors-code changes in a prompt."""

from __future__ import annotations

import pytest

from minise import AUTHORS_CODE, PAPER, InputError
from minise.grouping import random_partitions
from minise.groupings.independent import independent_draws
from minise.methods.presets import preset_named
from minise.prompt import NULL_OPTION, Template


class TestAuthorsCode:
    """What the released code writes, family by family."""

    def group(self, family: str, choices: list[str]) -> str:
        preset = AUTHORS_CODE[family]
        null = [NULL_OPTION] if preset.null_option else []
        return preset.template.render("Why?", choices + null)

    def test_each_familys_group_text_and_reading_point(self) -> None:
        expected = "Why? \n(A) x (B) y (C) None of the above Answer: \n"
        assert self.group("llama", ["x", "y"]) == expected
        assert self.group("mistral", ["x", "y"]) == expected

    def test_qwen_shows_no_null_option_and_a_chat_template(self) -> None:
        assert self.group("qwen2", ["x", "y"]) == (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nWhy? \n(A) x (B) y Answer: \n"
        )

    @pytest.mark.parametrize("family", AUTHORS_CODE)
    def test_standard_inference_asks_the_data_sets_formatted_question(self, family: str) -> None:
        template = AUTHORS_CODE[family].standard_template
        assert template.render("Why?", ["x", "y"]) == "Why? (A) x (B) y Answer:"
        assert template.bare_labels == (family != "llama")
        assert template.label == (" {label}" if family == "llama" else "{label}")

    @pytest.mark.parametrize("family", AUTHORS_CODE)
    def test_the_null_label_is_left_out_and_every_question_gets_one_set_of_draws(
        self, family: str
    ) -> None:
        preset = AUTHORS_CODE[family]
        assert not preset.null_in_softmax
        assert preset.grouping is independent_draws
        assert not preset.groups_per_question
        assert preset.last_group_early == (family == "mistral")

    def test_the_paper_preset_has_none_of_these_departures(self) -> None:
        assert PAPER.grouping is random_partitions
        assert PAPER.groups_per_question
        assert PAPER.null_option
        assert PAPER.null_in_softmax
        assert PAPER.template == PAPER.standard_template == Template()
        assert PAPER.last_group_early == 0

    def test_a_family_without_released_code_is_refused(self) -> None:
        assert preset_named("paper").of("gemma") == PAPER
        with pytest.raises(InputError, match="has no qwen3 model; use preset paper"):
            preset_named("authors-code").of("qwen3")
