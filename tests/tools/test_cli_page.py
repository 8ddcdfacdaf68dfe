"""The page about the command line has what the parsers have."""

from __future__ import annotations

import argparse
import re

from minise.commands.cli import COMMANDS, parser
from tools import cli_page


def test_the_page_has_every_command_and_each_of_its_options() -> None:
    _, *sections = re.split(r"^## `minise (\w+)`$", cli_page.page(), flags=re.MULTILINE)
    assert tuple(sections[::2]) == COMMANDS
    (commands,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        known = {one for one in commands.choices[name]._option_string_actions if one[:2] == "--"}
        assert set(re.findall(r"^\|.*?`(--[\w-]+)", text, re.MULTILINE)) == known - {"--help"}
        assert f"```sh\nminise {name}" in text  # the example


def test_an_option_is_written_with_its_values_and_its_text_stays_text() -> None:
    command = argparse.ArgumentParser("try", description="Two\nlines.", epilog="example: try a")
    command.add_argument("FILE", nargs="+", help="a|b of FILE_ID <x> `a_b`")
    command.add_argument("-s", "--side", choices=("left", "right"), help="100%% of [it]")
    command.add_argument("--pair", nargs=2, metavar=("A", "B"), help="two")
    command.add_argument("--hidden", help=argparse.SUPPRESS)
    assert cli_page._entry("try", command) == (
        "\n## `minise try`\n\nTwo lines.\n\n```sh\ntry a\n```\n"
        "\n| positional arguments | what it is |\n|---|---|\n"
        "| `FILE ...` | a\\|b of FILE\\_ID \\<x\\> `a_b` |\n"
        "\n| options | what it is |\n|---|---|\n"
        "| `-s {left,right}`, `--side {left,right}` | 100% of \\[it\\] |\n"
        "| `--pair A B` | two |\n"
    )
