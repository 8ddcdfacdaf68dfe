"""Load code by its name while the program runs: optional packages, and files of the user's own."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minise.errors import InputError, quote

if TYPE_CHECKING:
    from minise.engines import NamedEngine

CLONE = Path(__file__).parents[2]  # or, where a wheel is installed, the folder of all packages


def load_extra(module: str, extra: str = "eval") -> Any:
    """A module that an optional extra installs. Raises InputError that names the extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        how = ""
        if extra:
            how = f"; pip install 'minise[{extra}]'"
        if extra and CLONE.joinpath("install.py").is_file():
            how = f"; in the clone: python3 install.py {extra}, or pip install -e '.[{extra}]'"
        raise InputError(f"this needs {error.name}, which is not installed{how}") from None


def find_object(where: str) -> Any:
    """The object "package.module:Name", or "./file.py:Name" from a file of the user's own, which is
    run like any Python program. Raises InputError for a file, module or name that does not exist.
    """
    source, _, name = where.rpartition(":")
    if not source or not name:
        raise InputError(f"{quote(where)} names no object; write FILE.py:NAME")
    if not source.endswith(".py"):
        if not all(part.isidentifier() for part in source.split(".")):
            raise InputError(f"{quote(where)} names no module; write FILE.py:NAME")
        module = load_extra(source, extra="")
    elif os.path.isfile(source):
        module = ModuleType(f"minise_plugin_{os.path.basename(source)[:-3]}")
        module.__file__ = source
        sys.modules[module.__name__] = module  # dataclasses look their own module up
        with open(source, "rb") as file:
            # Not an import, which may take the bytecode of a file that was edited a moment ago.
            exec(compile(file.read(), source, "exec", dont_inherit=True), vars(module))
    else:
        raise InputError(f"{source}: no such file; give the path of a Python file")
    if not hasattr(module, name):
        raise InputError(f"{source}: defines no {name}; give one of the names it defines")
    return getattr(module, name)


def find_function(where: str) -> Any:
    """As `find_object`. Raises InputError also for what cannot be called."""
    found = find_object(where)
    if not callable(found):
        raise InputError(f"{quote(where)} is no function; name one")
    return found


def find_engine(engine: str) -> NamedEngine:
    """The engine of this name: one of minise/engines.py, or the function that "FILE.py:NAME" names.
    Raises InputError for what is neither."""
    from minise.engines import NamedEngine, engine_named  # which imports torch

    if ":" in engine:
        return NamedEngine(engine, find_function(engine))
    return engine_named(engine)
