"""The probability of a text, by hand."""

from __future__ import annotations

import pytest
import torch

from minise.methods.text_reads import Read, text_log_p


def test_a_text_is_the_product_of_its_tokens_and_of_the_ways_to_end_it() -> None:
    """Texts of tokens (1, 2) and (3). p(1) = .2, then p(2) = .5; p(3) = .3. The first ends by
    token 0 or 3 with .1 + .2."""
    rows = [[0.1, 0.2, 0.4, 0.3], [0.1, 0.2, 0.5, 0.2]]
    logits = [torch.tensor(row, dtype=torch.float64).log() + 5 for row in rows]
    reads = [Read(1, (0, 1), (1, 2)), Read(0, (0,), (3,)), Read(1, (0, 1), (1, 2), (1, (0, 3)))]
    assert text_log_p(logits, reads).exp().tolist() == pytest.approx([0.1, 0.3, 0.03])
