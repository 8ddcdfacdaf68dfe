"""How a command names the files that it has written, in lines that fit on the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from minise.errors import printable


def near(path: Path) -> str:
    """The path, from the working folder if it is in there."""
    folder = Path.cwd()
    return printable(str(path.relative_to(folder) if path.is_relative_to(folder) else path))


def listed(head: str, names: Sequence[str]) -> str:
    """The names after `head`, in as many lines as they need. A name that is wider than the terminal
    has a line of its own."""
    width = shutil.get_terminal_size((100, 24)).columns
    lines = [head]
    for number, name in enumerate(names, 1):
        word = f" {printable(name)}{',' * (number < len(names))}"
        if len(lines[-1]) + len(word) > width:
            lines.append("   ")
        lines[-1] += word
    return "\n".join(lines)
