"""The program for a GPU, with a CPU in its place."""

from pathlib import Path

import pytest

from tools import card


@pytest.mark.slow
def test_the_written_model_has_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUESTIONS_AT_ONCE", "ROUNDS"):
        monkeypatch.setattr(card, name, 1)
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 999}
    monkeypatch.setattr(card, "SHAPE", card.SHAPE | small)
    card.write_model(tmp_path / "model", "cpu")
    found = card.rate(str(tmp_path / "model"), "cpu", "float32")
    assert found.keys() == card.GOALS.keys()
    assert all(one["a second"] > 0 and one["tokens"] > 300 for one in found.values())
