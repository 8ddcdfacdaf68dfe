"""Messages: one line each, safe to print, and never longer than a terminal shows."""

from __future__ import annotations

import io
import os

import pytest
import torch

from minise.errors import (
    InputError,
    Unsuited,
    is_memory,
    no_stderr,
    one_line,
    painted,
    printable,
    quote,
    refusing,
    say,
    shorten,
    use_colour,
)


def test_input_errors_are_value_errors() -> None:
    assert issubclass(Unsuited, InputError)
    assert issubclass(InputError, ValueError)


def test_a_librarys_message_becomes_one_line() -> None:
    assert one_line(ValueError("a\n  b\tc")) == "a b c"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(ValueError("x" * 999))) == 200


def test_a_quoted_value_is_json_of_limited_length() -> None:
    assert quote({"a": [1, None]}) == '{"a": [1, null]}'
    assert quote("é") == '"é"'
    assert len(quote("x" * 999)) == 80
    endless: list[object] = []
    endless.append(endless)
    assert quote(endless) == "a list"


def test_a_text_is_shortened_only_if_it_is_too_long() -> None:
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."


def test_control_characters_are_printed_as_escapes() -> None:
    assert printable("a\x1b[31m\x00\n\tb\ud800") == "a\\x1b[31m\\x00\n\tb\\ud800"
    assert printable("\u202eturned\u2066") == "\\u202eturned\\u2066"
    assert printable("\u200f\u05d0") == "\u200f\u05d0"  # a mark of ordinary Hebrew text


def test_a_message_on_stderr_is_one_line_of_at_most_400_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("two\nlines " + "x" * 999)
    err = capsys.readouterr().err
    assert err.startswith("minise: two lines xxx")
    assert err.count("\n") == 1
    assert len(err) <= 400


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_for_lack_of_memory_are_recognised(error: Exception, expected: bool) -> None:
    assert is_memory(error) == expected


def test_any_error_of_a_library_becomes_an_input_error() -> None:
    with (
        pytest.raises(InputError, match=r"^f\.json: damaged \(no such key\); fetch it again$"),
        refusing("f.json: damaged"),
    ):
        raise RuntimeError("no such\nkey")
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(InputError, match="called unwrap"), refusing("f.json: damaged"):
        raise panic("called unwrap")


def test_an_interrupt_is_not_taken_for_a_damaged_file() -> None:
    with pytest.raises(KeyboardInterrupt), refusing("f.json: damaged"):
        raise KeyboardInterrupt


def test_stderr_is_silent_only_inside_the_block(capfd: pytest.CaptureFixture[str]) -> None:
    with no_stderr():
        os.write(2, b"hidden\n")  # as native code does
    os.write(2, b"shown\n")
    assert capfd.readouterr().err == "shown\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("when", "variables", "on_a_terminal", "elsewhere"),
    [
        ("auto", {}, True, False),
        ("auto", {"TERM": "dumb"}, False, False),
        ("auto", {"NO_COLOR": "1"}, False, False),
        ("auto", {"NO_COLOR": ""}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, True, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ("always", {"NO_COLOR": "1"}, True, True),
        ("never", {"FORCE_COLOR": "1"}, False, False),
    ],
)
def test_colours_are_for_terminals_unless_a_person_says_otherwise(
    monkeypatch, when: str, variables: dict[str, str], on_a_terminal: bool, elsewhere: bool
) -> None:
    for name, value in {"TERM": "xterm", "NO_COLOR": "", "FORCE_COLOR": "", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("minise.errors._when", "auto")
    use_colour(when)
    for stream, expected in ((Terminal(), on_a_terminal), (io.StringIO(), elsewhere)):
        assert painted("ok", "green", stream) == ("\x1b[32mok\x1b[0m" if expected else "ok")


def test_only_the_program_of_a_message_is_in_colour(capsys, monkeypatch) -> None:
    monkeypatch.setattr("minise.errors._when", "always")
    say("red \x1b[31m")
    say("no such file", "red")
    assert capsys.readouterr().err == (
        "\x1b[33mminise:\x1b[0m red \\x1b[31m\n\x1b[31mminise:\x1b[0m no such file\n"
    )
