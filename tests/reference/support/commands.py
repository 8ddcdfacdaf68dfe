"""Run a command in this process, and what every refusal looks like."""

import pytest

from minise.commands.cli import main

Q = ["--question", "Which is a bird?", "--choice", "wren", "--choice", "trout", "--choice", "oak"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The command's exit status, and its text on stdout and on stderr."""
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def assert_one_line(status: int, out: str, err: str, parts: list[str]) -> None:
    """Status 2, nothing printed, and one line on stderr that has all `parts` and no traceback."""
    assert status == 2
    assert out == ""
    assert err.startswith("minise: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert len(err) <= 400
    for part in parts:
        assert part in err
