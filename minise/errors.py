"""The one exception that a user can cause, and how a library's error becomes part of its line."""

from __future__ import annotations

import textwrap


class InputError(ValueError):
    """Unusable input. The message is one line: what is wrong, where, and how to mend it.

    The command line prints it and exits with status 2; library callers catch it as a ValueError.
    """


def one_line(error: BaseException) -> str:
    """A library's error message, shortened to 200 characters of one line; its class if empty."""
    return textwrap.shorten(str(error) or type(error).__name__, 200)
