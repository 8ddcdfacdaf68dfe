"""The program that times the parts of an answer, on a shipped model."""

import pytest
import torch

from minise import load
from tools import parts


@pytest.mark.slow
def test_each_part_of_an_answer_is_timed() -> None:
    lm = load("weights/tiny-llama", dtype=torch.float32)
    for ways in (parts.parts(lm), parts.side_by_side(lm), parts.chunks(lm)):
        seconds = parts.medians(ways, rounds=1)
        assert seconds.keys() == ways.keys()
        first = next(iter(ways))
        shown = parts.table("what", seconds, first)
        assert all(name in shown for name in ways)
