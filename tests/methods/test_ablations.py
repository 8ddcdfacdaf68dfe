"""Self-Ensemble without the mask, and without positional re-encoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minise import InputError, LanguageModel
from minise.checking.verify import verify
from minise.method import label_logits
from minise.names import ENGINES
from tests.support.methods import QUESTION, SIZES, ask, plan
from tests.support.tiny import FAMILIES, load_tiny


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
