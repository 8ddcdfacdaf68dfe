"""The texts that a model writes before it chooses, kept beside the samples."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.lab.data.kinds import (
    TEXT,
    YES_OR_NO,
    Kind,
    check_fields,
    from_object,
    list_of,
    number_from,
    whole_from,
    with_parts,
)
from minise.lab.evaluation.lines import REMEDY, append_line, open_lines, read_lines
from minise.lab.methods.writes_first import Written


@dataclass(frozen=True)
class SavedText(Written):
    """What a model wrote, as a line has it. Raises InputError that names a wrong field."""

    def __post_init__(self) -> None:
        check_fields(self, OF_TEXT)


OF_TEXT = {
    "text": TEXT,
    "new_tokens": whole_from(0),
    "finished": YES_OR_NO,
    "seconds": number_from(0),
}


@dataclass(frozen=True)
class KeptBlock:
    """A line: all texts of a block of questions. block: its number, from 0."""

    block: int
    texts: list[SavedText]

    def __post_init__(self) -> None:
        check_fields(self, {"block": whole_from(0), "texts": list_of(SAVED_TEXT)})


SAVED_TEXT = Kind("a text that was written", lambda value: isinstance(value, SavedText))


def block_of(line: Any) -> KeptBlock:
    """The block that a line holds. Raises InputError for what is none."""
    return from_object(KeptBlock, with_parts(line, "texts", SavedText))


class KeptTexts:
    """The texts of one method on one task: writes_first.Texts in a file. A line has all texts of a
    block of questions, so a block is on the disk as a whole or not at all, before its first answer.
    A run that goes on after a cut writes none of them again. Raises InputError for a line that
    holds no texts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks: dict[int, list[SavedText]] = {}
        for found in read_lines(path, block_of):
            self.blocks[found.block] = found.texts

    def read(self, block: int, count: int) -> Sequence[Written] | None:
        texts = self.blocks.get(block)
        if texts is not None and len(texts) != count:
            what = f"block {block} has {len(texts)} texts, and {count} questions"
            raise InputError(f"{self.path}: {what}; {REMEDY}")
        return texts

    def keep(self, block: int, texts: Sequence[Written]) -> None:
        line = {"block": block, "texts": [asdict(text) for text in texts]}
        with open_lines(self.path, '{"block": ') as file:
            append_line(file, line)
