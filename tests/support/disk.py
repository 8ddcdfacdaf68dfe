"""A disk that forgets: after a loss of power, what was not brought to it may be gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.support.calls import Calls


@dataclass(eq=False)
class Content:
    """Of a file: as programs see it, and what of it is on the disk."""

    seen: bytes = b""
    kept: bytes = b""

    def after_loss(self) -> set[bytes]:
        """What may be there: nothing of the new part, all, a half, or a half after zeros."""
        new = self.seen[len(self.kept) :] if self.seen.startswith(self.kept) else b""
        half = len(new) // 2
        return {
            self.kept,
            self.seen,
            self.kept + new[:half],
            self.kept + bytes(half) + new[half:],
        }


@dataclass(frozen=True)
class Loss:
    """What may be on the disk when the power is lost after a call."""

    after: str
    files: dict[str, bytes]  # by path
    answers: dict[str, bytes]  # the lines by path that were said to be on the disk


@dataclass
class _Change:
    """Of a folder's entries, all of it or nothing: what is set, and what is taken away."""

    sets: str = ""
    content: Content | None = None  # None for a folder
    removes: str = ""

    def folders(self) -> set[str]:
        return {os.path.dirname(path) for path in (self.sets, self.removes) if path}


@dataclass
class _State:
    """The entries of all folders by path, as programs see them and as they are on the disk."""

    seen: dict[str, Content | None] = field(default_factory=dict)
    kept: dict[str, Content | None] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)


def _apply(entries: dict[str, Content | None], change: _Change) -> None:
    entries.pop(change.removes, None)
    if change.sets:
        entries[change.sets] = change.content


class ForgetfulDisk(Calls):
    """Notes what a command writes below a folder, and what a loss of power may leave of it after
    each call. The order in which a disk keeps things is not known: any of the changes of a folder
    that were not followed by its fsync may be there or not."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.losses: list[Loss] = []
        self.answers: dict[str, bytes] = {}
        self.versions: dict[str, set[bytes]] = {}  # whole contents that a file has had, by path
        self.state = _State()

    @contextmanager
    def watching(self) -> Iterator[None]:
        for path in self.root.rglob("*"):
            content = None
            if path.is_file():
                data = path.read_bytes()
                content = Content(data, data)
                self.versions[str(path)] = {data}
                self.answers[str(path)] = data[: data.rfind(b"\n") + 1]
            self.state.seen[str(path)] = self.state.kept[str(path)] = content
        with super().watching():
            yield

    def appended(self, path: Path, text: str) -> None:
        """Note that a line was said to be on the disk."""
        self.answers[str(path)] = self.answers.get(str(path), b"") + text.encode()

    def call(self, name: str, paths: list[str], real: Callable[..., Any], detail: Any) -> Any:
        result = real()
        if self._note(name, paths, detail):
            self._lose(f"{name} {paths[-1]}")
        return result

    def _note(self, name: str, paths: list[str], detail: Any) -> bool:
        """Whether the call changed anything."""
        state, path = self.state, paths[-1]
        content = state.seen.get(path)
        if name == "open":
            is_new = (isinstance(detail, int) and detail & os.O_CREAT) or str(detail)[:1] in "wax"
            assert not str(detail).startswith("w"), f"{path} is emptied before it is written"
            if not is_new or path in state.seen:
                return False
            self._change(_Change(sets=path, content=Content()))
        elif name == "mkdir":
            self._change(_Change(sets=path))
        elif name in ("replace", "rename"):
            content = state.seen[paths[0]]
            assert content is not None
            self.versions.setdefault(path, set()).add(content.seen)
            self._change(_Change(path, content, paths[0]))
        elif name in ("unlink", "remove"):
            self._change(_Change(removes=path))
        elif name == "write" and content:
            content.seen += detail
        elif name == "truncate" and content:
            content.seen = content.seen[:detail]
        elif name == "fsync" and content:
            content.kept = content.seen
        elif name == "fsync":
            for change in [one for one in state.pending if path in one.folders()]:
                _apply(state.kept, change)
                state.pending.remove(change)
        else:
            return False
        return True

    def _change(self, change: _Change) -> None:
        _apply(self.state.seen, change)
        self.state.pending.append(change)

    def _lose(self, after: str) -> None:
        """Note all that may be left at this moment."""
        pending, answers = self.state.pending, dict(self.answers)
        few = pending[-4:]  # more are never open, where every change is brought to the disk
        for count in range(len(few) + 1):
            for changes in combinations(few, count):
                entries = dict(self.state.kept)
                for change in changes:
                    _apply(entries, change)
                files = {p: c for p, c in entries.items() if c and self._is_there(p, entries)}
                for kept in range(4):
                    left = {}
                    for path, content in files.items():
                        possible = sorted(content.after_loss())
                        left[path] = possible[min(kept, len(possible) - 1)]
                    self.losses.append(Loss(after, left, answers))

    def _is_there(self, path: str, entries: dict[str, Content | None]) -> bool:
        folder = os.path.dirname(path)
        return folder == str(self.root) or (folder in entries and self._is_there(folder, entries))


def problem(disk: ForgetfulDisk, loss: Loss) -> str:
    """What a loss of power has spoilt: a file that is neither old nor new, or a line that was said
    to be on the disk. Empty if nothing."""
    for path, content in loss.files.items():
        answers = loss.answers.get(path, b"")
        torn = path.endswith(".jsonl") and content.startswith(answers)
        torn = torn and content[len(answers) : -1].count(b"\n") == 0
        private = path.endswith((".partial", ".lock"))
        if not (torn or private or content in disk.versions.get(path, ())):
            return f"{path} is neither old nor new after {loss.after}"
    for path, answers in loss.answers.items():
        if answers and path not in loss.files:
            return f"{path} is gone after {loss.after}"
    return ""
