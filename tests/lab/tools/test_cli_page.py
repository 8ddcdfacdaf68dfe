"""The page about the command line has what the commands print."""

import re

from minise.commands.cli import COMMANDS
from tools import cli_page


def test_the_page_has_every_command_with_its_options_and_an_example() -> None:
    _, *sections = re.split(r"^## `minise (\w+)`$", cli_page.page(), flags=re.MULTILINE)
    assert sections[::2] == list(COMMANDS)
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        assert "--help" in text
        assert f"minise {name} " in text.replace(f"Usage: minise {name}", ""), name
