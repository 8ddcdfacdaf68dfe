"""docs/demo.html is what `minise explain --output docs/demo.html` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minise
from minise.commands.options import QUESTION
from minise.explaining.page import explain
from minise.loading import DEFAULT_MODEL

ROOT = Path(__file__).parents[2]
MACHINE = {"machine", "equality", "bitwise"}  # keys whose values may differ on another machine


def test_the_demo_is_what_the_command_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markup, styles and scripts byte for byte; numbers up to the rounding of another machine."""
    monkeypatch.chdir(ROOT)
    demo = (ROOT / "docs" / "demo.html").read_text(encoding="utf-8")
    assert len(demo.encode()) <= 1_500_000
    page = explain(minise.load(DEFAULT_MODEL), QUESTION)
    before, data, after = parts(demo)
    new_before, new_data, new_after = parts(page.html)
    machine, new_machine = data["machine"], page.data["machine"]
    assert after == new_after
    assert before.replace(machine, "") == new_before.replace(new_machine, "")
    assert data.keys() == new_data.keys()
    for key in data.keys() - MACHINE:
        assert_close(data[key], new_data[key], key)
    for key in ("equality", "bitwise"):
        assert data[key].keys() == new_data[key].keys()


def parts(page: str) -> tuple[str, dict[str, Any], str]:
    """The markup and styles, the data, and the scripts of a page."""
    before, _, rest = page.partition('id="data">')
    data, _, after = rest.partition("</script>")
    return before, json.loads(data), after


def assert_close(stored: Any, computed: Any, path: str) -> None:
    """Equal up to the last digits of numbers. Of compressed arrays, the shapes are equal."""
    if isinstance(stored, dict):
        assert stored.keys() == computed.keys(), path
        names = ("dtype", "shape") if "deflated" in stored else stored
        for name in names:
            assert_close(stored[name], computed[name], f"{path}.{name}")
    elif isinstance(stored, list):
        assert len(stored) == len(computed), path
        for number, pair in enumerate(zip(stored, computed, strict=True)):
            assert_close(*pair, f"{path}[{number}]")
    elif isinstance(stored, float) or isinstance(computed, float):
        assert np.isclose(stored, computed, rtol=0, atol=2e-3), path
    else:
        assert stored == computed, path
