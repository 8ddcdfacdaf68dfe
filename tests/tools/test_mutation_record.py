"""The record of the mutants: its figures fit together, and a reason that was written stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.test_mutate import CODE, LOOSE, TIGHT, mutate
from tools.mutation_record import RECORD, digest, main, noticed, read, write

ROOT = Path(__file__).parents[2]
ENTRIES = read(str(ROOT / RECORD))


@pytest.mark.parametrize("file", ENTRIES)
def test_the_figures_of_a_file_fit_together(file: str) -> None:
    """Not that they are fresh: the table marks a file that has changed since."""
    entry = ENTRIES[file]
    assert noticed(entry) + len(entry["survivors"]) == entry["tried"] <= entry["mutants"]
    assert set(entry) == {
        *("file", "sha256", "mutants", "tried", "killed", "timed_out", "seed", "survivors")
    }
    for each in entry["survivors"]:
        assert set(each) == {"line", "column", "code", "change", "reason"}


def test_the_record_has_one_line_for_each_file_in_their_order() -> None:
    """So that two branches which record different files can be merged."""
    files = [json.loads(line)["file"] for line in (ROOT / RECORD).read_text().splitlines()]
    assert files == sorted(set(files))
    assert all((ROOT / file).is_file() for file in files)


def entry(file: str, *survivors: tuple[int, str, str]) -> dict[str, Any]:
    living = [
        {"line": line, "column": 4, "code": code, "change": change}
        for line, code, change in survivors
    ]
    counts = {"mutants": 9, "tried": 8, "killed": 8 - len(living), "timed_out": 0, "seed": 0}
    return {"file": file, "sha256": "0", **counts, "survivors": living}


def test_a_reason_stays_with_its_mutant_also_on_another_line(tmp_path: Path) -> None:
    record = str(tmp_path / "record")
    write(record, entry("a.py", (3, "x = a < b", "a < b  ->  a <= b"), (4, "y = 1", "1  ->  2")))
    text = Path(record).read_text()
    assert text.count('"reason": ""') == 2
    Path(record).write_text(text.replace('"reason": ""', '"reason": "they are never equal"', 1))
    write(record, entry("b.py"))
    write(record, entry("a.py", (7, "x = a < b", "a < b  ->  a <= b"), (8, "y = 1", "1  ->  0")))
    first, second = read(record)["a.py"]["survivors"]
    assert (first["line"], first["reason"]) == (7, "they are never equal")
    assert second["reason"] == ""
    assert list(read(record)) == ["a.py", "b.py"]


def test_the_table_shows_what_lives_without_a_reason_and_what_has_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("a.py", "b.py"):
        Path(file).write_text("")
        write("record", {**entry(file, (3, "x = 1", "1  ->  2")), "sha256": digest(file)})
    Path("b.py").write_text("x = 1")
    assert main(["--record", "record"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["file", "mutants", "tried", "noticed", "with", "a", "reason", "without"]
    assert lines[1:] == [
        ["a.py", "9", "8", "7", "0", "1"],
        ["b.py", "9", "8", "7", "0", "1", "changed", "since"],
        ["2", "files", "18", "16", "14", "0", "2"],
    ]
    assert main(["--record", "record", "--survivors"]) == 0
    assert "a.py:3  1  ->  2\n    NO REASON\n" in capsys.readouterr().out


def test_the_survivors_alone_are_tried_again(tmp_path: Path) -> None:
    """Two mutants survive; with a better test both are killed, and the six others still count."""
    again = ("--record", "record", "--again")
    assert "6 killed, 0 timed out, 2 survived" in mutate(tmp_path, CODE, LOOSE, *again[:2])
    recorded = read(str(tmp_path / "record"))["toy.py"]
    assert [each["change"] for each in recorded["survivors"]] == ["n > 0  ->  n >= 0", "0  ->  1"]
    assert {each["code"] for each in recorded["survivors"]} == {"return 1 if n > 0 else 0"}
    log = f"    open({str(tmp_path / 'log')!r}, 'a').write('x')\n"
    better = TIGHT.replace("test_it():\n", f"test_it():\n{log}")
    assert "8 killed, 0 timed out, 0 survived" in mutate(tmp_path, CODE, better, *again)
    assert (tmp_path / "log").read_text() == "xxx"  # without a mutant, and two mutants
    refusal = "--record has no toy.py as it is now; leave out --again\n"
    assert mutate(tmp_path, CODE + "\n", better, *again) == refusal
    assert mutate(tmp_path, CODE, better, "--again") == refusal
