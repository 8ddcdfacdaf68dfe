"""The calls by which the package reads and changes files, each of which can be watched or made to
fail: a layer between Python code and the files below some folders.

Native code (safetensors, tokenizers) opens its files without these calls. Text written to an open
file counts as one call, although Python hands it to the system later; `flush` is a call of its own.
"""

from __future__ import annotations

import builtins
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from typing import Any
from unittest import mock

# The functions of os, each with how many of its first arguments are paths.
FUNCTIONS = {
    "open": 1,
    "fsync": 1,
    "replace": 2,
    "rename": 2,
    "mkdir": 1,
    "truncate": 1,
    "unlink": 1,
    "remove": 1,
    "chmod": 1,
    "listdir": 1,
    "scandir": 1,
}


class Calls:
    """The calls on files below `roots`. A subclass does in `call` what it likes with each."""

    def __init__(self, *roots: Path) -> None:
        self.roots = tuple(f"{os.path.abspath(root)}" for root in roots)
        self.open_files: dict[int, str] = {}  # paths by descriptor
        self.lock = RLock()

    def call(self, name: str, paths: list[str], real: Callable[..., Any], detail: Any) -> Any:
        """Called in place of `real`. `detail`: the mode of an `open`, the new size of a `truncate`,
        the content of a `write`, which `real` also takes."""
        return real()

    @contextmanager
    def watching(self) -> Iterator[None]:
        real_open = builtins.open
        with ExitStack() as stack:
            for name in FUNCTIONS:
                replaced = self._function(name, getattr(os, name))
                stack.enter_context(mock.patch.object(os, name, replaced))
            for module in (builtins, io):
                stack.enter_context(mock.patch.object(module, "open", self._opening(real_open)))
            if accessor := getattr(pathlib, "_NormalAccessor", None):  # Python 3.10 keeps its own
                for name in FUNCTIONS:
                    replaced = self._opening(real_open) if name == "open" else getattr(os, name)
                    if hasattr(accessor, name):
                        patch = mock.patch.object(accessor, name, staticmethod(replaced))
                        stack.enter_context(patch)
            yield

    def path(self, file: Any) -> str | None:
        """The path of a file that is watched, else None."""
        if isinstance(file, int):
            return self.open_files.get(file)
        path = os.path.abspath(os.fsdecode(file))
        below = any((path + os.sep).startswith(root + os.sep) for root in self.roots)
        return path if below else None

    def _function(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            with self.lock:
                paths = [self.path(one) for one in arguments[: FUNCTIONS[name]]]
                if named.get("dir_fd") is not None or None in paths or not paths:
                    return real(*arguments, **named)

                def call() -> Any:
                    return real(*arguments, **named)

                detail = arguments[1] if len(arguments) > 1 else None
                result = self.call(name, [p for p in paths if p], call, detail)
                if name == "open":
                    self.open_files[result] = paths[0] or ""
                return result

        return watched

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            with self.lock:
                path = self.path(file)
                if path is None:
                    return real(file, mode, *arguments, **named)
                opened = self.call(
                    "open", [path], lambda: real(file, mode, *arguments, **named), mode
                )
                self.open_files[opened.fileno()] = path
                return _File(self, path, opened)

        return watched


class _File:
    """An open file whose calls are watched."""

    def __init__(self, calls: Calls, path: str, real: Any) -> None:
        self._calls, self._path, self._real = calls, path, real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._calls.lock:
            real = getattr(self._real, name)

            def call(*others: Any) -> Any:
                return real(*(others or arguments))

            return self._calls.call(name, [self._path], call, *(arguments or (None,)))

    def read(self, *size: int) -> Any:
        return self._call("read", *size)

    def write(self, content: Any) -> Any:
        return self._call("write", content)

    def flush(self) -> None:
        self._call("flush")

    def close(self) -> None:
        if self._real.closed or not self._real.writable():
            self._real.close()  # that a file which was only read cannot be closed does not happen
            return
        try:
            self._call("close")
        finally:
            self._real.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._call("readlines"))

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
