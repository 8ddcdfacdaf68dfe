"""Published packing bugs: `minise check` names each, passes its fix, and docs/zoo.md is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from minise import check, load
from minise.checking.mistakes import meant_mask
from minise.checking.packing import SOURCES, read
from minise.checking.packing_formats import FORMATS
from tests.claims.zoo.bugs import BUGS, Bug, Row
from tests.support.commands import run

PAGE = (Path(__file__).parents[3] / "docs" / "zoo.md").read_text(encoding="utf-8")
TINY = "weights/tiny-llama"


def by_command(capsys: pytest.CaptureFixture[str], path: Path, row: Row) -> tuple[int, Row]:
    path.write_text(json.dumps(row))
    status, out, err = run(capsys, "check", path, "--json")
    assert err == ""
    return status, json.loads(out)


@pytest.mark.parametrize("name", BUGS)
def test_a_published_bug_is_named_and_its_fix_passes(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bug = BUGS[name]
    status, report = by_command(capsys, tmp_path / "wrong.json", bug.wrong)
    assert [one["name"] for one in report["findings"]] == list(bug.names)
    assert status == 1
    status, report = by_command(capsys, tmp_path / "fixed.json", bug.fixed)
    assert (status, report["findings"]) == (0, [])


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.by_logits])
def test_the_logits_of_a_tiny_checkpoint_name_a_published_bug_too(name: str) -> None:
    """Those that its own wrong mask and positions give; the mask is not shown to the check."""
    bug, lm = BUGS[name], load(TINY, dtype=torch.float64)
    row = dict(bug.wrong)
    if form := row.pop("format", None):
        row = FORMATS[form](row)
    p = read(row)
    assert p.mask is not None
    assert p.positions is not None
    seen = {key: row[key] for key in row if key not in (*SOURCES, "mask_is")}
    with torch.inference_mode():
        hidden = lm.decoder(p.meant.tokens, p.positions, p.mask | torch.diag(~p.real))
        logits = lm.decoder.logits(hidden)
        right = meant_mask(p, None) | torch.diag(~p.real)
        mended = lm.decoder.logits(lm.decoder(p.meant.tokens, p.meant.positions, right))
    numbers = [one for one in check(lm=lm, logits=logits, **seen).findings if one.what == "logits"]
    assert [one.name for one in numbers] == ["; ".join(bug.names)]
    assert "logits" not in {one.what for one in check(lm=lm, logits=mended, **seen).findings}


def stories() -> dict[str, str]:
    """The page's sections, by the thread that each links first."""
    sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    return {re.findall(r"\]\((https://github\.com/[^)]+)\)", text)[0]: text for text in sections}


@pytest.mark.parametrize("name", BUGS)
def test_the_page_tells_a_bug_with_the_picture_that_is_printed(name: str) -> None:
    bug: Bug = BUGS[name]
    story = stories()[bug.link]
    report = check(**bug.wrong)
    for finding in report.findings:
        assert finding.words in story
    if report.picture and "half" not in name:
        assert report.picture in story


def test_the_page_tells_of_no_bug_that_is_not_rebuilt() -> None:
    assert set(stories()) == {bug.link for bug in BUGS.values()}
    assert len(stories()) >= 20
    assert "packed sequences leak" in PAGE.split("\n\n")[0] + PAGE.split("\n\n")[1]
