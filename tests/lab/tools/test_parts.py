"""The program that times the parts of an answer, on a shipped model."""

import json
import sys
from pathlib import Path

import pytest
import torch

from minise import load
from tools.bench import costs, parts


@pytest.mark.slow
def test_each_part_of_an_answer_is_timed() -> None:
    lm = load("weights/tiny-llama", dtype=torch.float32)
    for ways in (parts.parts(lm), parts.side_by_side(lm), parts.chunks(lm)):
        seconds = parts.medians(ways, rounds=1)
        assert seconds.keys() == ways.keys()
        first = next(iter(ways))
        shown = parts.table("what", seconds, first)
        assert all(name in shown for name in ways)


@pytest.mark.slow
def test_a_recorded_line_is_a_row_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "parts.jsonl"
    monkeypatch.setattr(sys, "argv", ["parts", "--rounds", "1", "--record", str(file)])
    parts.main()
    line = json.loads(file.read_text())
    monkeypatch.setattr(costs, "PARTS", file)
    monkeypatch.setitem(costs.MODELS, "llama", "2M")
    first = ["2M", "float32", costs.cpu_of(line)]
    (row,) = costs.as_parts({}).splitlines()[2:]
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        *(*first, f"{line['load']:.1f}", f"{line['peak_gb']:.1f}"),
        *(f"*{line['question']['all']:.1f}*", f"{line['load_nf4']:.1f}"),
        *(f"*{line['weights']['nf4']:.1f}*", "*1*", line["commit"], "recorded"),
    ]
