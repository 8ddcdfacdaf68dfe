"""Self-Ensemble without the mask, and without positional re-encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from minise import InputError, LanguageModel, Question
from minise import ask as ask_method
from minise.checking.verify import verify
from minise.method import Plan, label_logits
from minise.methods.build import build
from minise.methods.registry import Variant
from minise.names import ENGINES
from tests.support.tiny import FAMILIES, load_tiny

QUESTION = Question(
    "Which is a metal?", ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"], answer=2
)


SIZES = {"group_size": 3, "trials": 4}


@pytest.fixture(scope="module", params=FAMILIES)
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load_tiny(tmp_path_factory.mktemp(request.param), FAMILIES[request.param])


def ask(
    lm: LanguageModel, method: str, question: Question, engine: str = "tree", **settings: Any
) -> torch.Tensor:
    variant = Variant("x", method, settings, engine)
    return ask_method(lm, build(variant), question, 3, variant.engine).probabilities


def plan(
    lm: LanguageModel, method: str, question: Question, seed: int = 3, **settings: Any
) -> Plan:
    new_plan: Plan = build(Variant("x", method, settings)).plan(lm, question, seed)
    return new_plan


class TestTheAblations:
    @pytest.mark.parametrize("method", ["without-mask", "without-positions"])
    def test_they_differ_from_the_packed_run_by_as_much_as_verify_reports(
        self, lm: LanguageModel, method: str
    ) -> None:
        """`minise verify` reports the largest change of a label probability."""
        sizes = {"group_size": 3, "trials": 2}
        whole = plan(lm, "self-ensemble", QUESTION, **sizes)
        report = verify(lm, whole)
        packed = [row.softmax(0) for row in label_logits(lm, whole, "dense")]
        rows = label_logits(lm, plan(lm, method, QUESTION, **sizes))
        largest = max(
            float((row.softmax(0) - p).abs().max()) for row, p in zip(rows, packed, strict=True)
        )
        expected = report.ablations[method.replace("-", "_")].probabilities
        assert largest == pytest.approx(expected, abs=1e-9)
        assert largest > 1e-3

    def test_every_engine_runs_their_packed_layout(self, lm: LanguageModel) -> None:
        for method in ("without-mask", "without-positions"):
            each = [ask(lm, method, QUESTION, engine, **SIZES) for engine in ENGINES]
            assert all(torch.equal(each[0], p) for p in each)

    def test_they_answer_with_a_checkpoint_in_float32(self, tmp_path: Path) -> None:
        """Float32 is the dtype of evaluations."""
        lm = load_tiny(tmp_path, FAMILIES["llama"], dtype=torch.float32)
        for method in ("without-mask", "without-positions"):
            p = ask(lm, method, QUESTION, **SIZES)
            assert float(p.sum()) == pytest.approx(1)

    def test_a_mask_beyond_the_memory_is_refused_before_it_is_built(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
        for method in ("without-mask", "without-positions"):
            with pytest.raises(InputError, match="packed tokens need a mask"):
                plan(lm, method, QUESTION, **SIZES)
