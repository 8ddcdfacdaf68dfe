"""How these tests call a command: in this process, with the shipped model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minise.commands.cli import main

Done = tuple[int, str, str]  # exit status, stdout, stderr


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """A command with these words, and what it did."""

    def run(*words: object) -> Done:
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def refused(call: Callable[..., Done]) -> Callable[..., str]:
    """The one line by which a command refuses these words. Every refusal has this form."""

    def run(*words: object) -> str:
        status, out, err = call(*words)
        assert (status, out) == (2, "")
        assert err.startswith("minise: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert len(err) <= 400
        assert not set(err) & set("\x1b\x9b\ud800\r")  # commands to the terminal
        return err

    return run
