"""What would not fit in memory is refused before it is made."""

import pytest

from minise import InputError, LocalModel, Question, self_ensemble
from minise.memory import check_mask_fits


def test_a_mask_may_take_half_of_the_free_memory_but_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A byte for each cell, and as much again for its chunks."""
    monkeypatch.setattr("minise.memory.free_bytes", lambda: 2 * 30**2)
    check_mask_fits(30)
    monkeypatch.setattr("minise.memory.free_bytes", lambda: 2 * 30**2 - 1)
    with pytest.raises(InputError, match="30 packed tokens"):
        check_mask_fits(30)
    monkeypatch.setattr("minise.memory.free_bytes", lambda: None)  # the system does not tell
    check_mask_fits(10**9)


def test_a_mask_beyond_the_memory_names_an_engine_that_fits(
    qwen: LocalModel, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minise.memory.free_bytes", lambda: 10_000)
    for engine in ("tree", "packed"):
        with pytest.raises(InputError, match="engine separate"):
            self_ensemble(qwen, question, engine=engine)
    assert self_ensemble(qwen, question, trials=1, engine="separate")
