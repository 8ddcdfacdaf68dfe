"""The texts that a model writes before it chooses, kept beside the samples."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from minise.errors import InputError
from minise.evaluation.lines import append_line, read_lines
from minise.writes_first import Written


class KeptTexts:
    """The texts of one method on one task: writes_first.Texts in a file. A line has all texts of a
    block of questions, so a block is on the disk as a whole or not at all, before its first answer.
    A run that goes on after a cut writes none of them again. Raises InputError for a line that
    holds no texts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks: dict[int, list[Written]] = {}
        for number, line in enumerate(read_lines(path, cut=True), 1):
            try:
                found = json.loads(line)
                self.blocks[found["block"]] = [Written(**text) for text in found["texts"]]
            except (ValueError, LookupError, TypeError):
                remedy = "delete it and what follows, then run the same command again"
                raise InputError(f"{path}, line {number}: holds no texts; {remedy}") from None

    def read(self, block: int) -> list[Written] | None:
        return self.blocks.get(block)

    def keep(self, block: int, texts: Sequence[Written]) -> None:
        self.blocks[block] = list(texts)
        with self.path.open("ab") as file:
            append_line(file, {"block": block, "texts": [asdict(text) for text in texts]})
