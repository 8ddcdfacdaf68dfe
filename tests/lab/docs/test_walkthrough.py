"""docs/walkthrough.ipynb: its cells run from top to bottom, and print their stored outputs."""

import base64
import importlib.util
import io
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

matplotlib = pytest.importorskip("matplotlib")

pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[3] / "docs/walkthrough.ipynb"
NUMBER = r"\d+\.\d+%"  # another machine may round the last digit otherwise


def code_cells() -> dict[str, dict[str, Any]]:
    cells = json.loads(FILE.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: cell for cell in cells if cell["cell_type"] == "code"}


@pytest.fixture(scope="module")
def ran() -> Iterator[dict[str, Any]]:
    """What the cells of the notebook printed and drew, and the names that they left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FILE.parent)  # as Jupyter runs it
        matplotlib.use("agg")
        patch.setattr("matplotlib.pyplot.show", lambda: None)
        names: dict[str, Any] = {}
        printed = {}
        for name, cell in code_cells().items():
            out = io.StringIO()
            with redirect_stdout(out):
                exec(compile("".join(cell["source"]), FILE.name, "exec"), names)
            printed[name] = out.getvalue()
    yield {"printed": printed, **names}
    names["plt"].close("all")


def test_every_cell_prints_its_stored_output(ran: dict[str, Any]) -> None:
    """To write the outputs anew: jupyter nbconvert --to notebook --execute --inplace."""
    cells = code_cells()
    assert len(cells) == 11
    for name, cell in cells.items():
        printed = ran["printed"][name]
        stored = "".join("".join(output.get("text", ())) for output in cell["outputs"])
        assert re.sub(NUMBER, "%", printed) == re.sub(NUMBER, "%", stored)
        computed, expected = (
            [float(p[:-1]) for p in re.findall(NUMBER, t)] for t in (printed, stored)
        )
        assert computed == pytest.approx(expected, abs=0.2)


def test_the_picture_shows_the_mask_and_the_positions_of_the_layout(ran: dict[str, Any]) -> None:
    above, below = ran["figure"].axes
    end = int(ran["layout"].ends[1]) + 1
    shown = below.images[0].get_array().astype(bool)
    assert (shown == ran["layout"].mask[:end, :end].numpy()).all()
    positions = [int(y) for line in above.lines for y in line.get_ydata()]
    assert positions == ran["layout"].positions[:end].tolist()
    (stored,) = code_cells()["cell-9"]["outputs"]
    assert base64.b64decode(stored["data"]["image/png"]).startswith(b"\x89PNG")


def test_the_page_of_explain_is_shown_in_a_frame(ran: dict[str, Any]) -> None:
    assert code_cells()["page"]["source"][-1] == "page"
    assert ran["page"].question == ran["question"]
    assert ran["page"]._repr_html_().startswith("<iframe srcdoc=")


def test_where_minise_is_missing_the_first_cell_installs_it_from_the_address_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = "".join(code_cells()["install"]["source"])
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: asked.append(command))
    exec(source, {})
    assert asked == []  # it is here
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="write its address into REPOSITORY"):
        exec(source, {})
    exec(source.replace('= ""', '= "https://a.example/minise"'), {})
    assert asked[0][1:] == [
        *("-m", "pip", "install", "-q"),
        *("git+https://a.example/minise", "matplotlib"),
    ]


def test_the_notebook_shows_a_broken_mask() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert "packed is close to separate: True" in text
    assert "and equal, bit for bit: True" in text
    assert "were made on an AMD EPYC" in text
    assert "the same as minise.self_ensemble: True" in text
    assert "(layout.positions, causal_mask(T))" in text
