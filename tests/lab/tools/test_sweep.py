"""The sweep: what it answers of models that are known, and that its page says what it found."""

from __future__ import annotations

import json

import pytest

from tools.sweep.answers import LENGTHS, answer, off
from tools.sweep.page import DOCS, page_of


def test_the_page_is_made_of_what_was_found() -> None:
    found = json.loads((DOCS / "sweep.json").read_text(encoding="utf-8"))
    assert list(found) == ["transformers", "mlx_lm"]
    assert (DOCS / "sweep.md").read_text(encoding="utf-8") == page_of(found)


def test_a_difference_is_a_part_of_the_size_of_the_right_logits() -> None:
    assert off([[3.0, 4.0], [3.0, 1.0]], [[3.0, 4.0], [3.0, 4.0]]) == 0.6
    assert off([[float("nan"), 4.0]], [[3.0, 4.0]]) == float("inf")
    assert answer(0.6) == "0.6"
    assert answer(0.6, one_text=0.0) == "0.6, as one text"
    assert answer(1e-6) == "right"


@pytest.mark.slow
def test_an_attention_is_right_where_a_convolution_leaks() -> None:
    """Positions that start over are borders to a llama, and none to LFM2's short convolution."""
    pytest.importorskip("transformers")
    from tools.sweep import in_transformers

    in_transformers.prepare()
    llama = in_transformers.asked(in_transformers.model_of("llama"))
    assert set(llama.values()) == {"right"}
    lfm2 = in_transformers.asked(in_transformers.model_of("lfm2"))
    assert float(lfm2["positions"]) > 0.5
    assert lfm2["left"] == lfm2["right"] == "right"


@pytest.mark.slow
def test_a_state_behind_the_padding_of_a_batch_is_seen() -> None:
    pytest.importorskip("mlx_lm")
    from tools.sweep import in_mlx

    in_mlx.prepare()
    assert sum(LENGTHS) > in_mlx.SIZES["fields"]["sliding_window"]  # or windows say nothing
    assert set(in_mlx.asked(in_mlx.model_of("llama")).values()) == {"right"}
    mamba = in_mlx.asked(in_mlx.model_of("mamba"))
    assert float(mamba["beside"]) > 0.5
    assert mamba["right"] == mamba["pieces"] == "right"
