"""`verify` compares a decoder of another library by its logits alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minise import LocalModel
from minise.lab.serving.transformers import ConfigFacts, TransformersDecoder
from minise.verify.verify import ABLATIONS, LATER, PACKED, verify
from tests.reference.verify.cases import SHORT

transformers = pytest.importorskip("transformers")


class TestAnotherLibrary:
    """A decoder that is not ours is compared by its logits alone."""

    def report(self, kind: str, **settings: Any) -> Any:
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300}
        config = transformers.AutoConfig.for_model(kind, **{**sizes, **settings})
        made = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
        draw = torch.Generator().manual_seed(1)
        for one in made.parameters():
            one.data = torch.randn(one.shape, generator=draw) * 0.2 + (one.data == 1)
        facts = ConfigFacts(kind, 300, 512)
        nothing: Any = None
        return verify(LocalModel(kind, facts, TransformersDecoder(made), nothing), SHORT)

    @pytest.mark.parametrize("kind", ["llama", "gpt_neox", "phi3"])
    def test_passes_if_it_reads_mask_and_positions(self, kind: str) -> None:
        report = self.report(kind, pad_token_id=0)
        assert report.passed, report.failure
        assert (report.wide, report.influence.pairs) == ({}, 6)
        assert 0 < report.tolerance < 1e-4  # of what rounding makes one position later
        assert list(report.runs) == [*PACKED, *ABLATIONS, LATER]
        assert not report.runs["tree"].absolute.states.dim()
        for name in PACKED:
            assert report.runs[name].most < 1e-4 * report.runs["without-mask"].most

    def test_fails_if_it_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoder = TransformersDecoder
        real = decoder.__call__

        def deaf(self: Any, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Any) -> Tensor:
            return real(self, tokens, torch.arange(len(tokens)), mask, rows)

        monkeypatch.setattr(decoder, "__call__", deaf)
        report = self.report("llama")
        assert "not the numbers of the separate runs" in str(report.failure)
