"""The one exception that a user can cause, and how text from outside becomes part of a message."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

COLOURS = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
WHEN = ("auto", "always", "never")  # a terminal shows colours; the first is the default
_when = WHEN[0]


class InputError(ValueError):
    """Unusable input. The message is one line: what is wrong, where, and how to fix it.

    The command line prints it and exits with status 2; library callers catch it as a ValueError.
    """


class Unsuited(InputError):
    """A method cannot run on this model, or with so many choices or tokens. An experiment leaves it
    out."""


def one_line(error: BaseException) -> str:
    """An error's message on one line of at most 200 characters; the error's class if the message is
    empty, or raises itself."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # the class may be a user's own
        message = ""
    return shorten(message or type(error).__name__, 200)


def quote(value: object, most: int = 80) -> str:
    """A value from outside as JSON on one line, of at most `most` characters."""
    try:
        return shorten(json.dumps(value, default=str, ensure_ascii=False), most)
    except (ValueError, RecursionError):  # a list that holds itself, or very deep nesting
        return f"a {type(value).__name__}"


def shorten(text: str, most: int) -> str:
    """The text; if it is longer than `most` characters, its beginning with "..."."""
    return text if len(text) <= most else text[: most - 3] + "..."


def say(message: str, colour: str = "yellow") -> None:
    """Print one line of at most 400 characters on stderr."""
    line = shorten(printable(" ".join(message.split())), 380)
    print(f"{painted('minise:', colour, sys.stderr)} {line}", file=sys.stderr, flush=True)


def use_colour(when: str) -> None:
    """Choose one of WHEN for `painted`."""
    global _when
    _when = when


def painted(text: str, colour: str, stream: TextIO | None = None) -> str:
    """The text in one of COLOURS, if `stream` (stdout) is a terminal; else the text as it is.

    `use_colour` goes before the variables NO_COLOR and FORCE_COLOR, and these before the terminal.
    """
    stream = stream or sys.stdout
    is_on = _when == "always"
    if _when == "auto" and not os.environ.get("NO_COLOR"):
        # An old console of Windows would show the commands as text.
        knows = os.environ.get("TERM") != "dumb" and (os.name != "nt" or "WT_SESSION" in os.environ)
        is_terminal = stream is not None and stream.isatty()
        is_on = bool(os.environ.get("FORCE_COLOR")) or (is_terminal and knows)
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if is_on else text


def printable(text: str) -> str:
    r"""The text with everything that a terminal could take for a command written as an escape.

    Text from files may hold control characters, halves of surrogate pairs, and marks that turn the
    direction of what follows. Line ends and tabs stay.

    >>> print(printable("red \x1b[31m"))
    red \x1b[31m
    """
    return "".join(repr(c)[1:-1] if _is_command(c) else c for c in text)


def _is_command(c: str) -> bool:
    turns = "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069"
    return turns or (unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t")


def is_memory(error: BaseException) -> bool:
    """Whether a library says that no memory is left."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    # Words in a plain RuntimeError of torch.
    phrases = ("out of memory", "not enough memory", "allocate memory", "unable to mmap")
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn everything that a library raises for a damaged file into InputError. A library in Rust
    may also panic."""
    try:
        yield
    except BaseException as error:
        # A panic is not an Exception, and its class cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise InputError(f"{what} ({one_line(error)}); fetch it again") from None
        raise


@contextmanager
def no_stderr() -> Iterator[None]:
    """Drop what is written to stderr, also by native code: a panic prints many lines of its own."""
    try:
        real_stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(real_stderr, 2)
        os.close(real_stderr)
        os.close(nowhere)
