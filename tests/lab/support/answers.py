"""The answers of a samples file."""

from pathlib import Path

from minise.lab.evaluation.rows import read_rows
from minise.lab.methods.saved import SavedAnswer


def read_answers(path: Path) -> list[SavedAnswer]:
    """Without the questions that were left out."""
    return [row for row in read_rows(path) if isinstance(row, SavedAnswer)]
