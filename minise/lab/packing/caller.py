"""Where the user called a model: the first line outside torch, the libraries and this room."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

LIBRARIES = str(Path(torch.__file__).parents[1])
ROOM = str(Path(__file__).parent)


def warn(words: str) -> None:
    """Warn of the user's line."""
    warnings.warn(words, stacklevel=level_of_user())


def place_of_call() -> str:
    frame = sys._getframe(level_of_user() - 1)
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"


def level_of_user() -> int:
    """How many frames it is from the caller of this function, which is 1, up to the user's."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    return level


def is_of_library(file: str) -> bool:
    return file.startswith((ROOM, LIBRARIES))
