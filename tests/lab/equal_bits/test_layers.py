"""Layers in calls of fixed shapes, in place of a decoder's plain layers."""

from pathlib import Path

import pytest
import torch
from torch import nn

from minise import InputError
from minise.lab.equal_bits.decoder import EqualBits
from minise.lab.equal_bits.layers import FixedLinear, FixedMLP, linear
from minise.lab.equal_bits.probe import Shape
from minise.lab.proof.bits import shapes_of
from tests.reference.support.tiny import ALL_FAMILIES, FAMILIES, make_decoder

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_slice_of_a_tensor_has_the_same_bits(dtype: torch.dtype) -> None:
    """At an odd address, with gaps between the rows, or transposed: of one row and of many."""
    draw = torch.Generator().manual_seed(0)
    for width in (20, 41, 64):
        weight = torch.randn(24, width, generator=draw).to(dtype)
        x = torch.randn(40, width, generator=draw).to(dtype)
        expected = linear(x, weight)
        wide = torch.empty(40, width + 3, dtype=dtype)
        wide[:, 1 : width + 1] = x
        assert torch.equal(linear(wide[:, 1 : width + 1], weight), expected)
        assert torch.equal(linear(x.T.contiguous().T, weight), expected)
        for start in (1, 3, 6):
            assert torch.equal(linear(x[start:], weight), expected[start:])
            assert torch.equal(linear(x[start], weight), expected[start])


def test_a_change_of_threads_after_loading_is_measured(cache: Path, measured: list[Shape]) -> None:
    before, weight = torch.get_num_threads(), torch.randn(24, 32)
    try:
        for threads in (1, 2, 1, 2):
            torch.set_num_threads(threads)
            linear(torch.randn(3, 32), weight)
    finally:
        torch.set_num_threads(before)
    assert [shape.threads for shape in measured] == [1, 2]


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_it_is_a_decoder_over_the_same_parameters_with_nearly_the_same_numbers(family: str) -> None:
    decoder = make_decoder(ALL_FAMILIES[family])
    tokens, positions = torch.arange(5, 25), torch.arange(20)
    mask = torch.ones(20, 20, dtype=torch.bool).tril()
    plain, shown = decoder(tokens, positions, mask), str(decoder)
    equal = EqualBits(decoder)
    assert str(decoder) == shown
    assert "Fixed" not in shown
    assert torch.equal(decoder(tokens, positions, mask), plain)
    assert {id(x) for x in equal.parameters()} == {id(x) for x in decoder.parameters()}
    addresses = {x.data_ptr() for x in decoder.parameters()}
    assert {x.data_ptr() for x in equal.parameters()} == addresses
    assert (equal(tokens, positions, mask) - plain).abs().max() <= 1e-10
    kinds = [type(module) for module in equal.modules()]
    assert {FixedLinear, FixedMLP} <= set(kinds)
    inside = [module.layer for module in equal.modules() if isinstance(module, FixedLinear)]
    assert kinds.count(nn.Linear) == len(inside) + (decoder.lm_head is not None)


def test_an_mlp_of_many_tokens_has_the_bits_of_one() -> None:
    """Of any shape."""
    mlp = EqualBits(make_decoder(FAMILIES["llama"])).model.layers[0].mlp
    x = torch.randn(1025, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = mlp(x)
    assert whole.shape == (1025, 32)
    assert torch.equal(whole[-1:], mlp(x[-1:]))
    assert torch.equal(whole[:400], mlp(x[:400]))
    assert torch.equal(mlp(x[None, :1024].view(2, 512, 32)).view(1024, 32), whole[:1024])


def test_each_shape_of_a_decoder_is_listed_once() -> None:
    decoder, threads = make_decoder(FAMILIES["qwen2"], torch.float32), torch.get_num_threads()
    sizes = [(32, 32, True), (32, 16, True), (32, 32, False), (32, 48, False), (48, 32, False)]
    sizes.append((32, decoder.config.vocab_size, False))
    assert shapes_of(decoder) == [Shape(*size, torch.float32, threads) for size in sizes]


def test_it_is_refused_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of a GPU's kernels."""
    decoder = make_decoder(FAMILIES["llama"])
    monkeypatch.setattr(type(decoder), "device", torch.device("cuda"))
    with pytest.raises(InputError, match="--equal-bits"):
        EqualBits(decoder)
