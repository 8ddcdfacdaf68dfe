"""Load code by its name while the program runs: optional packages, and files of the user's own."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from minise.errors import InputError, one_line, quote


def load_extra(module: str, extra: str = "eval") -> Any:
    """A module that only an optional extra of this package installs.

    Raises InputError that names the extra if the module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"this needs {error.name}, which is not installed: pip install 'minise[{extra}]'"
        ) from None


def find_object(where: str) -> Any:
    """The object "package.module:Name", or "./file.py:Name" from a file of the user's own.

    The file is run like any Python program, so give only files that you trust. Raises InputError
    for a file or name that does not exist, and for a file that fails when it is run.
    """
    source, _, name = where.rpartition(":")
    if not source or not name:
        raise InputError(f"{quote(where)} names no object; write FILE.py:NAME")
    if not source.endswith(".py"):
        try:
            return getattr(import_module(source), name)
        except (Exception, SystemExit) as error:  # whatever the module raises
            raise InputError(
                f"{where}: not found ({one_line(error)}); write FILE.py:NAME"
            ) from None
    path = Path(source)
    if not os.path.isfile(path):  # Path.is_file raises for impossible names
        raise InputError(f"{path}: no such file; give the path of a Python file")
    module_name = f"minise_plugin_{path.stem}"
    module = ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module  # dataclasses look their own module up
    try:
        # Not by an import, which may take the bytecode of a file that was edited a moment ago.
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:  # whatever the file raises
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise InputError(f"{path}: could not be run ({reason}); fix the file") from None
    if not hasattr(module, name):
        raise InputError(f"{path}: defines no {name}; give one of the names it defines")
    return getattr(module, name)
