"""The lines that name the files that a command has written."""

from __future__ import annotations

from pathlib import Path

import pytest

from minise.commands.written import listed, near


def test_a_path_is_short_inside_the_working_folder_and_whole_outside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert near(tmp_path / "here" / "runs" / "a") == str(Path("runs", "a"))
    assert near(Path("runs/a")) == str(Path("runs/a"))
    assert near(tmp_path / "there") == str(tmp_path / "there")
    assert near(Path("red \x1b[31m")) == "red \\x1b[31m"


def test_no_line_is_wider_than_the_terminal_and_no_name_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"accuracy of {number}.png" for number in range(7)] + ["x" * 60]
    lines = listed("  figures:", names).split("\n")
    assert all(len(line) <= 60 for line in lines[:-1])
    assert lines[-1].strip() == names[-1]
    assert len(lines) == 4
    assert " ".join(lines).split() == f"figures: {', '.join(names)}".split()
