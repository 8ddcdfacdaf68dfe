"""The page of the site about the command line: what each command's --help prints.
tools/docs_site.py adds it, so it is never older than the code."""

from __future__ import annotations

import contextlib
import io

from minise.by_name import COMMANDS
from minise.commands.cli import main

HEAD = """# The command line

Bad input ends in one line that says how to mend it.

| exit status | what it means |
|---|---|
| 0 | done |
| 1 | a check failed |
| 2 | bad input |
| 130 | interrupted |
| 141 | the reader of the output is gone |
"""


def page() -> str:
    text = HEAD
    for name in COMMANDS:
        text += f"\n## `minise {name}`\n\n```\n{help_of(name)}```\n"
    return text


def help_of(command: str) -> str:
    """What `minise COMMAND --help` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        main([command, "--help"])
    return shown.getvalue()
