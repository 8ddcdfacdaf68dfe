"""How these tests call a command: in this process, with the shipped model."""

from collections.abc import Callable

import pytest

from tests.reference.support.commands import assert_one_line, run

Done = tuple[int, str, str]  # exit status, stdout, stderr


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """A command with these words, and what it did."""
    return lambda *words: run(capsys, *words)


@pytest.fixture
def refused(call: Callable[..., Done]) -> Callable[..., str]:
    """The one line by which a command refuses these words. Every refusal has this form."""

    def line(*words: object) -> str:
        done = call(*words)
        assert_one_line(*done, [])
        assert not set(done[2]) & set("\x1b\x9b\ud800\r")  # commands to the terminal
        return done[2]

    return line
