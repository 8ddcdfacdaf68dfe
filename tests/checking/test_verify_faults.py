"""`verify` finds every planted fault of the engines, in every dtype."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.checking.influence as influence
import minise.checking.verify as verify_module
from minise import InputError, LanguageModel
from minise.checking.traces import Apart
from minise.checking.verify import verify
from tests.support.faults import FAULTS
from tests.support.planted import PLANTED, WINDOWED, everywhere
from tests.support.verified import SHORT, Models, agree, each_dtype


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A fault of tests/support/faults.py in this process."""
    module_name, path, make = FAULTS[name]
    owner: Any = importlib.import_module(module_name)
    *parts, last = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    real = vars(owner)[last]
    if parts:
        monkeypatch.setattr(owner, last, make(real))
    else:
        everywhere(monkeypatch, real, make(real))


class TestAFaultFails:
    @each_dtype
    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            ("shipped", "positions not re-encoded"),
            ("llama", "positions not re-encoded"),
            ("shipped", "no block mask"),
            ("llama", "no block mask"),
            ("shipped", "the paper's misprinted index_j"),
            ("llama", "the paper's misprinted index_j"),
            ("llama", "a flat layout that merges"),
            ("mistral", "windows by index"),
            ("mistral", "a tree that forgets windows"),
            ("shipped", "a tree that reads what comes after"),
            ("llama", "a tree that reads what comes after"),
        ],
    )
    def test_each_fault_of_the_suite_fails(
        self, model: Models, monkeypatch, name: str, fault: str, dtype: torch.dtype
    ) -> None:
        lm, plan = model(name, dtype)
        plant(monkeypatch, fault)
        report = verify(lm, plan)
        assert not report.passed
        assert not agree(report)

    @each_dtype
    @pytest.mark.parametrize("fault", PLANTED)
    def test_a_small_fault_of_one_engine_or_of_all_fails(
        self, model: Models, monkeypatch, fault: str, dtype: torch.dtype
    ) -> None:
        """Without the check of influence, and also on a device that promises no equal bits."""
        lm, _ = model("mistral" if fault in WINDOWED else "llama", dtype)
        unchecked = influence.Influence(0, Apart())
        monkeypatch.setattr(verify_module, "influence", lambda *arguments, **named: unchecked)
        PLANTED[fault](monkeypatch)
        report = verify(lm, SHORT)
        assert not report.passed
        elsewhere = replace(report, promised=False)
        assert not (elsewhere.engines_agree and elsewhere.engines_agree_in_float64)

    @each_dtype
    @pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
    def test_without_a_fault_the_same_prompts_pass(
        self, model: Models, name: str, dtype: torch.dtype
    ) -> None:
        assert verify(model(name, dtype)[0], SHORT).passed

    @each_dtype
    def test_a_nan_in_the_weights_is_refused(self, model: Models, dtype: torch.dtype) -> None:
        lm, plan = model("llama", dtype)
        lm.decoder.model.layers[1].mlp.down_proj.weight.data[0, 0] = math.nan
        with pytest.raises(InputError, match="overflow"):
            verify(lm, plan)

    @each_dtype
    @pytest.mark.parametrize("tolerance", [None, 1e30])
    def test_a_nan_in_one_row_of_an_engine_fails(
        self, model: Models, monkeypatch, dtype: torch.dtype, tolerance: float | None
    ) -> None:
        lm, plan = model("llama", dtype)
        real, done = LanguageModel.logits, []

        def with_a_nan(self: LanguageModel, ends: Tensor, columns: Tensor | None = None) -> Tensor:
            logits = real(self, ends, columns).clone()
            if columns is None and not done:  # the first engine's
                logits[1, 7] = math.nan
                done.append(logits)
            return logits

        monkeypatch.setattr(LanguageModel, "logits", with_a_nan)
        assert not verify(lm, plan, tolerance).passed
        assert done
