"""docs/walkthrough.ipynb: its cells run from top to bottom, and print their stored outputs."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "docs/walkthrough.ipynb"
NUMBER = r"\d+\.\d+%"  # another machine may round the last digit otherwise


def test_every_cell_prints_its_stored_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """To write the outputs anew: jupyter nbconvert --to notebook --execute --inplace."""
    monkeypatch.chdir(FILE.parent)  # as Jupyter runs it
    cells = json.loads(FILE.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == 9
    names: dict[str, Any] = {}
    for cell in code:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile("".join(cell["source"]), FILE.name, "exec"), names)
        stored = "".join("".join(output["text"]) for output in cell["outputs"])
        assert re.sub(NUMBER, "%", printed.getvalue()) == re.sub(NUMBER, "%", stored)
        computed, expected = (
            [float(p[:-1]) for p in re.findall(NUMBER, t)] for t in (printed.getvalue(), stored)
        )
        assert computed == pytest.approx(expected, abs=0.2)


def test_the_notebook_shows_a_broken_mask() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert "dense equals separate, bit for bit: True" in text
    assert "were made on an AMD EPYC" in text
    assert "the same as minise.self_ensemble: True" in text
    assert "layout.replace(mask=causal_mask(T))" in text
