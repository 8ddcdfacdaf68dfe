"""Layers in calls of fixed shapes, in place of a decoder's plain layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from minise import Decoder
from minise.exact.layers import (
    FixedLinear,
    FixedMLP,
    FixedRotary,
    is_refined,
    linear,
    refine,
    shapes_of,
)
from minise.exact.probe import Shape
from minise.loading.config_json import config_from_dict
from tests.support.tiny import ALL_FAMILIES, FAMILIES, randomise

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
def test_refined_layers_have_the_same_parameters_and_nearly_the_same_numbers(family: str) -> None:
    decoder = Decoder(config_from_dict(ALL_FAMILIES[family])).to(torch.float64)
    randomise(decoder, seed=1)
    decoder.requires_grad_(False)
    tokens, positions = torch.arange(5, 25), torch.arange(20)
    mask = torch.ones(20, 20, dtype=torch.bool).tril()
    parameters, plain = dict(decoder.named_parameters()), decoder(tokens, positions, mask)
    assert not is_refined(decoder)
    assert refine(decoder) is decoder
    assert is_refined(decoder)
    refined = dict(decoder.named_parameters())
    assert refined.keys() == parameters.keys()
    assert all(refined[name] is parameters[name] for name in parameters)
    kinds = {type(module) for module in decoder.modules()}
    assert {FixedLinear, FixedMLP, FixedRotary} <= kinds
    assert nn.Linear not in kinds
    assert (decoder(tokens, positions, mask) - plain).abs().max() <= 1e-10


def test_each_shape_of_a_decoder_is_listed_once() -> None:
    decoder, threads = Decoder(config_from_dict(FAMILIES["qwen2"])), torch.get_num_threads()
    sizes = [(32, 32, True), (32, 16, True), (32, 32, False), (32, 48, False), (48, 32, False)]
    shapes = [Shape(*size, torch.float32, threads) for size in sizes]
    assert shapes_of(decoder, torch.float32, output=False) == shapes
    vocabulary = Shape(32, decoder.config.vocab_size, False, torch.float32, threads)
    assert shapes_of(decoder, torch.float32) == [*shapes, vocabulary]
