"""The training of the shipped checkpoints (tools/train_miniature.py)."""

import random
import re
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from minise.lab.data.miniature import held_out, load_facts
from tools import train_miniature


def choices_in(text: str) -> list[str]:
    listed = re.findall(r"^\([A-Z]\) (.+)$", text, re.MULTILINE)
    return [choice for choice in listed if choice != "None of the above"]


def test_no_set_of_choices_that_is_held_out_is_shown_in_any_order() -> None:
    facts = load_facts()
    texts = [train_miniature.multiple_choice(facts, random.Random(i))[0] for i in range(2000)]
    for text in texts:
        assert not held_out(text.partition("\n")[0], choices_in(text))


def test_a_training_gives_the_same_weights_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"QUESTIONS": 4, "STATEMENTS": 4, "OPEN_QUESTIONS": 4}.items():
        monkeypatch.setattr(train_miniature, name, value)
    for name in "ab":
        monkeypatch.setattr(sys, "argv", f"x {tmp_path / name} --family qwen2 --steps 2".split())
        train_miniature.main()
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(tensor.equal(other[name]) for name, tensor in one.items())
