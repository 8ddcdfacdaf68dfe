"""Self-Ensemble for many-choice questions, in code that can be read and checked token by token."""

from functools import cache

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used: `minise --help` does not wait for torch."""
    from importlib import import_module

    homes = _homes()
    if name == "__all__":
        return sorted(homes)
    if name not in homes:
        raise AttributeError(f"module 'minise' has no attribute '{name}'")
    return getattr(import_module(homes[name]), name)


@cache
def _homes() -> "dict[str, str]":
    """The module of each public name. They stand once, in __init__.pyi, where type checkers look
    for them, as imports."""
    import ast
    from pathlib import Path

    statements = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [one for one in statements if isinstance(one, ast.ImportFrom) and one.module]
    return {name.name: str(one.module) for one in imports for name in one.names}
