"""The page of the site about the command line: each command with its options, as the parsers have
them. tools/docs_site.py adds it, so it is never older than the code.

    python -m tools.cli_page    prints it
"""

from __future__ import annotations

import argparse
import re

from minise.commands.cli import parser
from tools.markdown import table

HEAD = """# The command line

`minise COMMAND --help` says the same in a terminal. Bad input ends in one line that says how to
mend it.

| exit status | what it means |
|---|---|
| 0 | done |
| 1 | a check failed |
| 2 | bad input |
| 130, 143 | interrupted, terminated |
| 141 | the reader of the output is gone |
"""


def page() -> str:
    (commands,) = (
        action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    return HEAD + "".join(_entry(name, command) for name, command in commands.choices.items())


def _entry(name: str, command: argparse.ArgumentParser) -> str:
    """What a command does, an example, and a table for each group of its options."""
    example = (command.epilog or "").removeprefix("example: ")
    text = f"\n## `minise {name}`\n\n{_plain(command.description or '')}\n\n```sh\n{example}\n```\n"
    for group in command._action_groups:
        rows = [
            (_usage(action), _plain(str(action.help).replace("%%", "%")))
            for action in group._group_actions
            if action.help not in (None, argparse.SUPPRESS) and action.dest != "help"
        ]
        if rows:
            text += f"\n{table([group.title or '', 'what it is'], rows)}\n"
    return text


def _usage(action: argparse.Action) -> str:
    """How an option is written, with its value: `-o FILE`, `--output FILE`."""
    value = action.metavar or action.dest.upper()
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not isinstance(value, str):
        value = " ".join(value)
    if action.nargs == 0:
        value = ""
    many = " ..." if action.nargs in ("+", "*") else ""
    names = [f"{name} {value}" for name in action.option_strings] or [value]
    return ", ".join(f"`{name.strip()}{many}`" for name in names)


def _plain(text: str) -> str:
    """A text in which Markdown marks nothing but `code`."""
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if number % 2 else re.sub(r"[\\*_<>|\[\]]", r"\\\g<0>", part)
        for number, part in enumerate(parts)
    )


if __name__ == "__main__":
    print(page(), end="")
