"""The one exception that a user can cause, and how text from outside becomes part of a message."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class InputError(ValueError):
    """Unusable input. The message is one line: what is wrong, where, and how to fix it.

    The command line prints it and exits with status 2; library callers catch it as a ValueError.
    """


class Unsuited(InputError):
    """A method cannot run on this model, or these questions. An evaluation leaves it out."""


class QuestionUnsuited(Unsuited):
    """A method cannot ask this question: it has too many choices, or is too long. An evaluation
    leaves the question out, and asks the others."""


def one_line(error: BaseException) -> str:
    """An error's message on one line of at most 200 characters; its class if it has no message."""
    return shorten(" ".join(str(error).split()) or type(error).__name__, 200)


def quote(value: object, most: int = 80) -> str:
    """A value from outside as JSON on one line, of at most `most` characters."""
    try:
        return shorten(json.dumps(value, default=str, ensure_ascii=False), most)
    except (ValueError, RecursionError):  # a list that holds itself, or very deep nesting
        return f"a {type(value).__name__}"


def shorten(text: str, most: int) -> str:
    """The text; if it is longer than `most` characters, its beginning with "..."."""
    return text if len(text) <= most else text[: most - 3] + "..."


def check_name(what: str, name: str, names: Collection[str]) -> None:
    """Refuse a name that is not among `names`."""
    if name not in names:
        raise InputError(f"{what} {quote(name)} is unknown; use one of {', '.join(names)}")


def printable(text: str) -> str:
    """The text with everything that a terminal could take for a command written as an escape:
    control characters, halves of surrogate pairs, and marks that turn the direction of text."""
    return _COMMANDS.sub(lambda found: repr(found[0])[1:-1], text)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn everything that a library raises for a damaged file into InputError. A library in Rust
    may also panic, which is no Exception, and whose class cannot be imported."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise InputError(f"{what} ({one_line(error)}); fetch it again") from None
        raise
