"""How far a long loop is, where there is no terminal for a bar."""

from __future__ import annotations

import re

import pytest

from minise.evaluation import progress as module
from minise.evaluation.progress import Whole, progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds. It changes only when a test sets it."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def lines(capsys, clock: list[float], count: int, seconds: float) -> list[str]:
    """What is printed for so many items that take so long each."""
    items = []
    for item in progress(range(count), "miniature-standard", "question"):
        items.append(item)
        clock[0] += seconds
    assert items == list(range(count))
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_a_short_run_prints_nothing(capsys, clock) -> None:
    assert lines(capsys, clock, 20, 1.0) == []


def test_a_line_is_printed_for_each_tenth(capsys, clock) -> None:
    assert lines(capsys, clock, 1000, 1.0) == [
        f"minise: miniature-standard: {n} of 1,000 questions, about {left} left"
        for n, left in [
            *((100, "15 minutes"), (200, "13 minutes"), (300, "12 minutes"), (400, "10 minutes")),
            *((500, "8 minutes"), (600, "7 minutes"), (700, "5 minutes"), (800, "3 minutes")),
            (900, "2 minutes"),
        ]
    ]


def test_a_line_is_printed_at_most_every_30_seconds_and_at_least_every_10_minutes(
    capsys, clock
) -> None:
    assert len(lines(capsys, clock, 100, 1.0)) == 3  # at 30, 60 and 90
    slow = lines(capsys, clock, 10_000, 60.0)
    assert slow[0] == (
        "minise: miniature-standard: 10 of 10,000 questions, about 9990 minutes left"
    )
    assert len(slow) == 999


def test_a_note_is_printed_beside_the_progress(capsys, clock) -> None:
    for _ in progress(range(10), "miniature-cot", "question", lambda: "70 tokens written"):
        clock[0] += 40.0
    first = "1 of 10 questions, 70 tokens written, about 6 minutes left"
    assert capsys.readouterr().err.splitlines()[0] == f"minise: miniature-cot: {first}"


def test_a_bar_sends_no_command_to_the_terminal(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    assert list(progress([1], "red \x1b[31m \u202e", "question")) == [1]
    err = capsys.readouterr().err
    assert "red \\x1b[31m \\u202e" in err
    assert "\u202e" not in err


def test_several_loops_have_one_estimate_beside_that_of_each(capsys, clock) -> None:
    """The second takes three times as long for an item. So does its work."""
    whole = Whole("all 2 runs", {}, 10 * 40.0 + 10 * 120.0)
    for name, seconds in (("a", 40.0), ("b", 120.0)):
        for _ in progress(range(10), name, "question", whole=whole, work=seconds):
            clock[0] += seconds
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == (
        "minise: a: 1 of 10 questions, about 6 minutes left; all 2 runs: 2%, about 26 minutes left"
    )
    assert last == (
        "minise: b: 9 of 10 questions, about 2 minutes left; all 2 runs: 92%, about 2 minutes left"
    )


def test_the_bar_of_all_loops_goes_on_where_the_one_before_ended(
    capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True)
    whole = Whole("all 2 runs", {}, 40.0)
    for name in ("first", "second"):
        list(progress([1, 2], name, "question", whole=whole, work=10.0))
    err = capsys.readouterr().err
    bars = re.findall(r"all 2 runs: +(\d+)%\|.*?(first|second):", err, re.S)
    assert (bars[0], bars[-1]) == (("0", "first"), ("50", "second"))
    assert whole.done == whole.total
    assert not err.rpartition("\r")[2].strip("\x1b[A")  # nothing is left behind
