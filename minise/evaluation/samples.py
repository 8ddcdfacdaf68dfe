"""What a method said to one question, and the file that keeps it: one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError


@dataclass(frozen=True)
class Sample:
    """One question under one method and seed.

    `question_hash` is that of its text and choices, `answer` the right choice's index. `tokens`
    counts what the method's engine runs for this question alone, `seconds` is its share of the
    forward pass. `logits` are the label logits where the method has one prompt with all choices,
    `groups` what each prompt said, if asked for.
    """

    id: str
    seed: int
    question_hash: str
    answer: int
    prediction: int
    probabilities: list[float]
    scores: list[float]
    tokens: int
    seconds: float
    logits: list[float] | None = None
    groups: list[dict[str, Any]] | None = None

    @property
    def key(self) -> tuple[int, str]:
        """What a sample is found by in its file."""
        return self.seed, self.id

    def line(self) -> str:
        """The sample as a line of its file. Floats are written so that they read back the same."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(fields, ensure_ascii=False) + "\n"


def read_samples(path: Path) -> list[Sample]:
    """The samples of a file, in its order; a last line that a cut left torn is passed over.

    Raises InputError for any other line that is no sample, and for one that is there twice.
    """
    samples: dict[tuple[int, str], Sample] = {}
    for number, line in enumerate(_whole_lines(path), 1):
        try:
            sample = Sample(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}, line {number}: not a sample ({error})") from None
        if sample.key in samples:
            raise InputError(f"{path}, line {number}: question {sample.id} is there twice")
        samples[sample.key] = sample
    return list(samples.values())


def drop_torn_line(path: Path) -> None:
    """Cut a file back to the end of its last whole line."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add whole lines at the end in one write, and have them on disk before returning.

    Raises InputError for a disk that takes no more.
    """
    try:
        with path.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(
            f"{path}: could not be written ({error.strerror}); make room, then go on with --resume"
        ) from None


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [line.decode("utf-8", errors="replace") for line in lines]
