"""`verify` holds the decoder of equal bits to its promise: every bit, and every planted fault."""

import copy
from dataclasses import replace

import pytest
import torch

from minise.commands.options import QUESTION
from minise.lab.equal_bits.decoder import EqualBits
from minise.verify import verify as verify_module
from minise.verify.comparison import Difference, in_float64
from minise.verify.verify import PACKED, verify
from tests.lab.equal_bits.planted import OF_BITS, WINDOWED
from tests.reference.support.tiny import ALL_FAMILIES
from tests.reference.verify.cases import BIRD, Models, each_dtype, fails_by_numbers, group_prompts
from tests.reference.verify.test_verify import FLAT, SHORT, rounding_noise


class TestCorrectRuns:
    @each_dtype
    @pytest.mark.parametrize("name", ["shipped", "llama", "mistral", "qwen2"])
    def test_are_equal_bit_for_bit_with_equal_bits(
        self, model: Models, name: str, dtype: torch.dtype
    ) -> None:
        lm = model(name, dtype, equal_bits=True)
        shipped = name == "shipped"
        prompts = group_prompts(lm, QUESTION if shipped else BIRD, 4 if shipped else 2, 1)
        report = verify(lm, prompts, equal_bits=True)
        assert report.passed, report.failure
        assert report.equal_bits
        assert report.bitwise
        assert report.influence.equal
        for engine in PACKED:  # label logits too: they are the same dot products
            run = report.runs[engine]
            assert not run.absolute.every.any()
            assert run.absolute.states.shape == (lm.config.num_hidden_layers + 1,)
            assert run.probabilities == 0

    @pytest.mark.parametrize("name", ["shipped", "mistral"])
    def test_of_another_device_that_rounds_otherwise_break_the_promise(
        self, model: Models, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        lm = model(name, torch.bfloat16, equal_bits=True)
        prompts = group_prompts(lm, BIRD, 4 if name == "shipped" else 2, 1)
        rounding_noise(monkeypatch)
        report = verify(lm, prompts, equal_bits=True)
        assert not report.bitwise
        assert "equal bits are promised" in str(report.failure)


class TestAFaultFails:
    @pytest.mark.parametrize("fault", OF_BITS)
    def test_by_its_numbers_alone(
        self, model: Models, monkeypatch: pytest.MonkeyPatch, fault: str
    ) -> None:
        """Without the check of influence, and without that of bits."""
        name = "mistral" if fault in WINDOWED else "llama"
        lm = model(name, torch.bfloat16, equal_bits=True)
        monkeypatch.setattr(verify_module, "influence", lambda *given: Difference())
        OF_BITS[fault](monkeypatch)
        report = verify(lm, SHORT)
        fails_by_numbers(report)

    def test_also_a_bit_by_which_a_group_depends_on_another(self, model: Models) -> None:
        report = verify(model("llama", equal_bits=True), SHORT, equal_bits=True)
        moved = Difference(equal=False)
        moved.relative.labels = torch.tensor(0.0)
        assert "depends on" in str(replace(report, influence=moved).failure)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_widened_model_has_equal_bits_too(model: Models, family: str) -> None:
    lm = model(family, torch.bfloat16, equal_bits=True)
    assert isinstance(lm.decoder, EqualBits)
    whole = copy.deepcopy(lm.decoder).double()
    with in_float64(lm.decoder):
        states = lm.decoder(FLAT.tokens, FLAT.positions, FLAT.mask)
    assert torch.equal(states, whole(FLAT.tokens, FLAT.positions, FLAT.mask))
