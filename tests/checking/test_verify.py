"""`verify` passes correct engines in every dtype, refuses what does not fit, changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.checking.influence as influence
import minise.checking.verify as verify_module
import minise.exact.attention as attention
from minise import InputError, LanguageModel, Plan, Question, SelfEnsemble
from minise.checking.verify import verify
from tests.support.planted import PLANTED
from tests.support.tiny import FAMILIES, load_tiny
from tests.support.verified import BIRD, Models, agree, each_dtype, each_model, rounding_noise


class TestCorrectEnginesPass:
    @each_dtype
    @each_model
    def test_dense_and_tree_are_equal_to_separate_bit_for_bit(
        self, model: Models, name: str, dtype: torch.dtype
    ) -> None:
        lm, plan = model(name, dtype)
        report = verify(lm, plan)
        assert report.passed
        assert report.bitwise
        assert report.influence.scrambled.equal
        assert report.influence.runs > 0
        assert report.groups == len(plan.prompts)
        assert report.tokens == sum(len(plan.prefix) + len(b) for b in plan.branches)
        assert report.promised
        assert list(report.engines) == ["dense", "tree", "plain"]
        assert list(report.wide) == [] if dtype == torch.float64 else list(report.engines)
        for engine in ("dense", "tree"):
            difference = report.engines[engine]
            assert difference.layers == [0.0] * (lm.config.num_hidden_layers + 1)
            assert difference.logits == difference.probabilities == difference.changed == 0
        for difference in (report.engines["plain"], *report.wide.values()):
            assert difference.prompts == report.groups
            assert all(map(math.isfinite, difference.layers))
            assert difference.logits < 1
        assert set(report.ablations) == {"without_mask", "without_positions"}
        for difference in report.ablations.values():
            assert max(difference.layers) > 1e-2
            assert difference.logits > 1e-3
            assert difference.probabilities > 1e-5

    @each_dtype
    @each_model
    def test_a_huge_activation_on_the_first_token_hides_nothing(
        self, model: Models, monkeypatch, name: str, dtype: torch.dtype
    ) -> None:
        """Published checkpoints have one. A fault is still found, and rounding still passes."""
        lm, plan = model(name, dtype)
        lm.decoder.model.embed_tokens.weight.data[plan.prefix[0], 5] = 300
        assert verify(lm, plan).passed
        with monkeypatch.context() as planted:
            PLANTED["every group's positions are off by one"](planted)
            assert not agree(verify(lm, plan))
        rounding_noise(monkeypatch)
        report = verify(lm, plan)
        assert report.passed
        assert not report.bitwise

    @each_dtype
    @each_model
    def test_rounding_of_another_device_passes(
        self, model: Models, monkeypatch, name: str, dtype: torch.dtype
    ) -> None:
        rounding_noise(monkeypatch)
        report = verify(*model(name, dtype))
        assert report.passed
        assert not report.bitwise
        assert all(x > 0 for d in report.engines.values() for x in d.layers)

    def test_a_mask_too_large_for_memory_is_refused(self, model: Models, monkeypatch) -> None:
        lm, plan = model("llama", torch.float64)
        checked: list[int] = []
        monkeypatch.setattr(verify_module, "check_mask_fits", checked.append)
        verify(lm, plan)
        assert checked == [plan.tokens("dense")]
        monkeypatch.undo()
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
        with pytest.raises(InputError, match="packed tokens need a mask"):
            verify(lm, plan)

    def test_a_single_group_passes_without_a_test_of_influence(self, model: Models) -> None:
        lm, _ = model("llama", torch.float64)
        report = verify(lm, SelfEnsemble(5, 1).plan(lm, BIRD))
        assert report.groups == 1
        assert report.influence.runs == 0
        assert report.passed


class TestWhatDoesNotPass:
    def test_a_question_on_which_the_ablations_agree_too_shows_nothing(
        self, tmp_path: Path, question: Question
    ) -> None:
        blind = load_tiny(tmp_path, FAMILIES["llama"])
        blind.decoder.model.embed_tokens.weight.fill_(1.0)  # every token is the same
        report = verify(blind, SelfEnsemble(2, 1).plan(blind, question))
        assert report.engines_agree
        assert not report.ablations_differ
        assert not report.passed

    def test_equal_engines_do_not_pass_if_a_group_depends_on_another(
        self, model: Models, monkeypatch
    ) -> None:
        lm, plan = model("llama", torch.float64)
        real = verify_module.influence

        def leaky(*arguments: Any, **named: Any) -> influence.Influence:
            certificate = real(*arguments, **named)
            certificate.scrambled.equal = False
            return certificate

        monkeypatch.setattr(verify_module, "influence", leaky)
        report = verify(lm, plan)
        assert report.bitwise
        assert not report.passed


class TestRefusals:
    """Refusals come before any run of the model."""

    @pytest.fixture
    def idle(self, model: Models, monkeypatch: pytest.MonkeyPatch) -> tuple[LanguageModel, Plan]:
        lm, plan = model("llama", torch.float64)
        monkeypatch.setattr(lm.decoder, "run", None)
        return lm, plan

    def test_a_mask_too_large_for_memory_is_refused(
        self, idle: tuple[LanguageModel, Plan], monkeypatch
    ) -> None:
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
        with pytest.raises(InputError, match="packed tokens need a mask"):
            verify(*idle)

    def test_a_prompt_beyond_the_models_positions_is_refused(
        self, idle: tuple[LanguageModel, Plan]
    ) -> None:
        lm, plan = idle
        longer = replace(plan, prefix=plan.prefix * lm.config.max_position_embeddings)
        with pytest.raises(InputError, match="has positions for 1024"):
            verify(lm, longer)


class TestNothingOfTheModelChanges:
    def state(self, lm: LanguageModel) -> list[Any]:
        modules = list(lm.decoder.modules())
        return [
            "run" in vars(lm.decoder),
            [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules],
            [(p.data_ptr(), p.dtype, p.requires_grad, p.grad) for p in lm.decoder.parameters()],
        ]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_after_a_run_the_model_is_unchanged(self, model: Models, dtype: torch.dtype) -> None:
        lm, plan = model("llama", dtype)
        before = self.state(lm)
        weights = {name: x.clone() for name, x in lm.decoder.state_dict().items()}
        assert verify(lm, plan, gradients=True).passed
        assert self.state(lm) == before
        for name, x in lm.decoder.state_dict().items():
            assert torch.equal(x, weights[name])

    @pytest.mark.parametrize("calls", [1, 5, 9, 13, 20])
    def test_after_a_failure_the_model_is_unchanged(
        self, model: Models, monkeypatch, calls: int
    ) -> None:
        lm, plan = model("llama", torch.bfloat16)
        before, real, left = self.state(lm), attention.Reader.attend, [3 * calls]

        def attend(self: Any, *arguments: Any) -> Tensor:
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("the device is lost")
            return real(self, *arguments)

        monkeypatch.setattr("minise.exact.attention.Reader.attend", attend)
        with pytest.raises(RuntimeError, match="lost"):
            verify(lm, plan, gradients=True)
        assert self.state(lm) == before
