"""Rotary embedding: a turn of split-half pairs by position times frequency, in enough precision."""

import cmath
import math

import pytest
import torch

from minise import Config
from minise.rope import cos_sin, inverse_frequencies, rotate
from tests.reference.support.tiny import SIZES, read_config

CPU = torch.device("cpu")


def config(**changes) -> Config:
    return read_config({**SIZES, "model_type": "llama", "rope_theta": 500.0, **changes})


def test_each_pair_i_and_i_plus_half_turns_as_a_complex_number() -> None:
    c = config()
    h = c.head_dim
    x = torch.randn(5, h, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 7, 100, 4000])
    turned = rotate(x, *cos_sin(c, positions, torch.float64))
    for row, position in enumerate(positions.tolist()):
        for i in range(h // 2):
            angle = position * 500.0 ** (-2 * i / h)
            pair = complex(x[row, i], x[row, i + h // 2]) * cmath.exp(1j * angle)
            assert abs(complex(turned[row, i], turned[row, i + h // 2]) - pair) < 1e-11


def test_llama3_scaling_keeps_fast_pairs_slows_slow_ones_and_blends_between() -> None:
    """The numbers of Llama-3.2-1B, pair by pair, in the form of its published code."""
    rope = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    c = config(head_dim=64, rope_theta=500000.0, rope_scaling=rope)
    kinds = []
    for i, frequency in enumerate(inverse_frequencies(c, torch.float64, CPU).tolist()):
        plain = 500000.0 ** (-2 * i / 64)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4.0:
            kinds.append("kept")
            expected = plain
        elif wavelength > 8192 / 1.0:
            kinds.append("slowed")
            expected = plain / 32.0
        else:
            kinds.append("blended")
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            expected = (1 - smooth) * plain / 32.0 + smooth * plain
        assert frequency == pytest.approx(expected, rel=1e-12)
    assert [kinds.count(kind) for kind in ("kept", "blended", "slowed")] == [15, 3, 14]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_angles_are_float32_even_in_a_half_precision_model(dtype: torch.dtype) -> None:
    cos, sin = cos_sin(config(), torch.tensor([256, 257]), dtype)
    assert cos.dtype == sin.dtype == torch.float32
    assert rotate(torch.ones(2, cos.shape[-1], dtype=dtype), cos, sin).dtype == dtype
    # bfloat16 holds 256 and 258 but not 257: angles made in it would give both the same turn.
    assert abs(float(cos[0, 0] - cos[1, 0])) > 0.1
    assert float(cos[1, 0]) == pytest.approx(math.cos(257), abs=1e-4)


def test_everything_stays_float64_in_a_float64_model() -> None:
    cos, _ = cos_sin(config(), torch.tensor([977]), torch.float64)
    assert cos.dtype == torch.float64
    assert float(cos[0, 1]) == pytest.approx(math.cos(977 * 500.0 ** (-2 / 8)), abs=1e-12)
