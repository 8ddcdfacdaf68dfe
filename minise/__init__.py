"""Self-Ensemble for many-choice questions, in code that can be read and checked token by token."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

# The public names stand once, in __init__.pyi, as imports for type checkers. They are imported when
# they are first used, so that `minise --help` does not wait for torch.
_PUBLIC = {
    name.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for name in statement.names
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'minise' has no attribute '{name}'")
