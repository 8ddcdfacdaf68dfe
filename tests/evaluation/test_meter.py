"""The measured seconds and memory of a run."""

from __future__ import annotations

import pytest
import torch

from minise.evaluation.meter import peak_bytes
from tests.support.timed import CPU


def test_the_peak_is_the_memory_a_run_takes() -> None:
    peak, _ = peak_bytes(lambda: torch.ones(50_000_000).sum(), CPU)
    if peak is None:
        pytest.skip("this system does not say")
    assert 190e6 < peak < 260e6
