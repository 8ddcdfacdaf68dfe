"""Messages: one line each, safe to print, and never longer than a terminal shows."""

import pytest

from minise.errors import (
    InputError,
    Unsuited,
    check_name,
    one_line,
    printable,
    quote,
    refusing,
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


def test_control_characters_are_printed_as_escapes() -> None:
    assert printable("a\x1b[31m\x00\n\tb\ud800") == "a\\x1b[31m\\x00\n\tb\\ud800"
    assert printable("\u202eturned\u2066") == "\\u202eturned\\u2066"
    assert printable("\u200f\u05d0") == "\u200f\u05d0"  # a mark of ordinary Hebrew text


def test_any_error_of_a_library_becomes_an_input_error() -> None:
    panic = type("PanicException", (BaseException,), {})  # of a library in Rust
    for error in (RuntimeError("no such\nkey"), panic("no such key")):
        with (
            pytest.raises(InputError, match=r"^f\.json: damaged \(no such key\)"),
            refusing("f.json: damaged"),
        ):
            raise error


def test_an_interrupt_is_not_taken_for_a_damaged_file() -> None:
    with pytest.raises(KeyboardInterrupt), refusing("f.json: damaged"):
        raise KeyboardInterrupt


def test_an_unknown_name_is_refused_with_all_that_there_are() -> None:
    check_name("engine", "tree", ["tree", "packed"])
    with pytest.raises(InputError, match=r'^engine "fast" is unknown; use one of tree, packed$'):
        check_name("engine", "fast", ["tree", "packed"])
