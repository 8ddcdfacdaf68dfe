"""The reports of docs/reports/ and docs/leak.md: their code runs, and says the number printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
REPORTS = sorted((DOCS / "reports").glob("*.md"))


def code_of(page: Path) -> str:
    found = re.search(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", REPORTS, ids=[page.stem for page in REPORTS])
def test_a_report_shows_what_it_says(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the version that it names; a later one may have mended it."""
    project = "mlx_lm" if page.stem.startswith("mlx") else "transformers"
    library = pytest.importorskip(project)
    code = code_of(page)
    named = re.search(r"(?:transformers|mlx-lm) ([\d.]+\d)", page.read_text("utf-8"))
    assert named
    if library.__version__ != named[1]:
        pytest.skip(f"it is of {named[1]}, and {library.__version__} is installed")
    exec(compile(code, page.name, "exec"), {"__name__": "report"})
    said = float(re.search(r"# ([\d.]+\d)", code)[1])  # type: ignore[index]
    shown = float(capsys.readouterr().out.split()[-1])
    assert shown == pytest.approx(said, abs=0.02)


def test_there_are_at_most_five_reports_of_a_page_each() -> None:
    assert 0 < len(REPORTS) <= 5
    for page in REPORTS:
        assert len(page.read_text("utf-8").splitlines()) <= 60
        assert "**What is right**" in page.read_text("utf-8")


def test_the_page_on_leaks_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    page = DOCS / "leak.md"
    exec(compile(code_of(page), page.name, "exec"), {"__name__": "leak"})
    shown = capsys.readouterr().out.strip()
    assert shown.startswith("guard: 1 of 1 calls compared (logits of 2 documents")
    assert shown in page.read_text("utf-8")
