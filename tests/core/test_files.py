"""Files are written whole or not at all, whatever fails; and JSON holds finite numbers only."""

from __future__ import annotations

import ast
import errno
import json
import math
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minise.errors import InputError
from minise.files import (
    append_text,
    cut_file,
    json_text,
    make_folder,
    read_bytes,
    sync_folder,
    write_file,
)
from tests.support.calls import Calls
from tools import house

NEW = "new, and longer than a buffer: " + "n" * 20_000


class Failing(Calls):
    """The call number `at` fails, counted from 1."""

    def __init__(self, root: Path, at: int = 0) -> None:
        super().__init__(root)
        self.at, self.seen = at, list[str]()

    def call(self, name: str, paths: list[str], real: Callable[..., Any], detail: Any) -> Any:
        self.seen.append(name)
        if len(self.seen) == self.at:
            raise OSError(errno.EIO, "Input/output error")
        return real()


def calls(root: Path, action: Callable[[], Any], at: int = 0) -> list[str]:
    watch = Failing(root, at)
    with watch.watching():
        action()
    return watch.seen


class TestWriteFile:
    def test_a_new_and_an_old_file_get_the_content(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for content in ("text\n", b"\0\xff", "Où? \ud800"):
            expected = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
            expected = expected.replace(b" ?", b" \\ud800")
            assert write_file(path, content) == len(expected)
            assert path.read_bytes() == expected
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("exists", [True, False])
    def test_whichever_call_fails_the_file_is_old_or_new_and_named(
        self, tmp_path: Path, exists: bool
    ) -> None:
        path = tmp_path / "file"

        def write() -> None:
            write_file(path, NEW)

        def start() -> None:
            path.unlink(missing_ok=True)
            if exists:
                path.write_text("old")
                path.chmod(0o600)

        start()
        names = calls(tmp_path, write)
        assert names[-1] == "fsync"
        for at, name in enumerate(names, 1):
            start()
            with pytest.raises(InputError) as caught:
                calls(tmp_path, write, at)
            reason = r"could not be written (Input/output error); check the disk, then run the"
            assert str(caught.value) == f"{path}: {reason} command again"
            content = path.read_text() if path.exists() else None
            is_new = at > names.index("replace") + 1
            assert content == (NEW if is_new else "old" if exists else None), name
            assert [each for each in tmp_path.iterdir() if each != path] == []

    def test_the_content_is_on_the_disk_before_the_file_is_replaced(self, tmp_path: Path) -> None:
        names = calls(tmp_path, lambda: write_file(tmp_path / "file", NEW))
        assert names == ["open", "write", "flush", "fsync", "close", "replace", "open", "fsync"]

    @pytest.mark.parametrize("target", ["there", "not there"])
    def test_a_link_stays_and_its_target_is_written(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "there").write_text("old")
        link = tmp_path / "link"
        link.symlink_to(Path("other") / target)
        write_file(link, "new")
        assert link.is_symlink()
        assert (tmp_path / "other" / target).read_text() == "new"

    def test_a_link_to_itself_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("link")
        with pytest.raises(InputError, match=r"link: could not be written \("):
            write_file(tmp_path / "link", "new")

    def test_permissions_are_kept_and_new_files_get_the_usual_ones(self, tmp_path: Path) -> None:
        usual, path = tmp_path / "usual", tmp_path / "file"
        usual.touch()
        write_file(path, "new")
        assert path.stat().st_mode == usual.stat().st_mode
        for mode in (0o600, 0o664, 0o755):
            path.chmod(mode)
            write_file(path, "newer")
            assert stat.S_IMODE(path.stat().st_mode) == mode

    def test_a_file_that_may_not_be_written_is_not_replaced(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        path.write_text("old")
        # Who runs the tests may be allowed everything.
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        with pytest.raises(InputError, match=r"\(Permission denied\); allow it to be written"):
            write_file(path, "new")
        assert path.read_text() == "old"

    def test_a_pipe_is_written_directly(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        read: list[str] = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
        reader.start()
        write_file(pipe, NEW)
        reader.join(60)
        assert read == [NEW]
        assert stat.S_ISFIFO(pipe.stat().st_mode)

    def test_what_is_printed_follows_what_is_written_to_standard_output(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Here standard output is a file."""
        write_file(Path("/dev/stdout"), "a page\n")
        print("a line")
        assert capfd.readouterr().out == "a page\na line\n"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
    def test_a_full_disk_asks_for_room(self) -> None:
        with pytest.raises(InputError, match=r"^/dev/full: .*No space left.*; make room, then x$"):
            write_file(Path("/dev/full"), "new", "x")

    def test_the_longest_name_can_be_written(self, tmp_path: Path) -> None:
        path = tmp_path / ("n" * 255)
        write_file(path, "new")
        assert path.read_text() == "new"

    def test_many_writers_leave_the_file_whole(self, tmp_path: Path) -> None:
        path, contents = tmp_path / "file", [letter * 100_000 for letter in "abcd"]
        write_file(path, contents[0])
        threads = [
            threading.Thread(target=lambda c=content: [write_file(path, c) for _ in range(5)])
            for content in contents
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert path.read_text() in contents
        assert list(tmp_path.iterdir()) == [path]


class TestAppendText:
    def test_whichever_call_fails_the_old_content_is_there(self, tmp_path: Path) -> None:
        """What could not be brought to the disk is not left in the file either."""
        path = tmp_path / "file"
        for old in ("", "old\n"):
            path.write_text(old)
            names = calls(tmp_path, lambda: append_text(path, NEW))
            assert path.read_text() == old + NEW
            for at in range(1, len(names) + 1):
                path.write_text(old)
                with pytest.raises(InputError, match=r"file: could not be written \(Input/output"):
                    calls(tmp_path, lambda: append_text(path, NEW), at)
                assert path.read_text() == old

    def test_the_folder_of_a_new_file_is_brought_to_the_disk(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        assert calls(tmp_path, lambda: append_text(path, "a\n")).count("fsync") == 2
        assert calls(tmp_path, lambda: append_text(path, "b\n")).count("fsync") == 1
        assert path.read_text() == "a\nb\n"


def test_a_file_is_cut_or_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("abc")
    cut_file(path, 2)
    assert path.read_text() == "ab"
    with pytest.raises(InputError, match="none: could not be written"):
        cut_file(tmp_path / "none", 2)


def test_folders_are_on_the_disk_or_named(tmp_path: Path) -> None:
    names = calls(tmp_path, lambda: make_folder(tmp_path / "a" / "b"))
    assert names == ["mkdir", "open", "fsync"] * 2
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(InputError, match=f"{folder}: could not be written .*choose another"):
            make_folder(folder)


def test_a_file_that_cannot_be_read_to_its_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    for at in (1, 2):
        with pytest.raises(OSError, match="Input/output error") as caught:
            calls(tmp_path, lambda: read_bytes(path), at)
        assert caught.value.filename == str(path)


class TestJsonText:
    def test_it_is_the_text_of_json_with_every_bit(self) -> None:
        value = {"a": [0.1 + 0.2, None, True], "ü": "\ud800"}
        assert json.loads(json_text(value, indent=1)) == value
        assert json_text("ü", ensure_ascii=False) == '"ü"'

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize(
        ("value", "place"),
        [
            (lambda x: x, '"the value"'),
            (lambda x: {"results": {"words": (0.5, [1, x])}}, '"results.words.1.1"'),
        ],
    )
    def test_a_number_that_is_not_finite_is_named(
        self, number: float, value: Callable[[float], Any], place: str
    ) -> None:
        with pytest.raises(InputError, match=f"^{place} is not a finite number"):
            json_text(value(number))

    def test_other_mistakes_stay_what_they_are(self) -> None:
        with pytest.raises(TypeError):
            json_text(object())


# What may stand outside files.py: a switch of the kernel, and what goes to nowhere or to stderr.
WRITES_ELSEWHERE = {
    "minise.evaluation.meter": ["Path('/proc/self/clear_refs').write_text('5')"],
    "minise.errors": ["os.open(os.devnull, os.O_WRONLY)"],
    "minise.commands.cli": ["os.open(os.devnull, os.O_WRONLY)"],
    "minise.__main__": ["open(2, 'w', closefd=False)", "os.open(os.devnull, os.O_RDWR)"],
}
# JSON that is compared, hashed, shown in a message or read back by this program.
OTHER_JSON = {"errors", "question", "exact.machine", "data.miniature", "report.results"}
OTHER_JSON |= {"evaluation.samples", "evaluation.run", "evaluation.asking", "methods.build"}
OTHER_JSON |= {"writing.chat", "writing.templates"}


def _calls_of(module: str, path: Path) -> list[tuple[str, ast.Call, str]]:
    """The calls in a module: the name that is called, the call and its text."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "attr", getattr(called, "id", ""))
            found.append((name, node, ast.unparse(node)))
    return found


def _writes(name: str, call: ast.Call, text: str) -> bool:
    """Whether a call opens or changes a file."""
    if name in ("write_text", "write_bytes", "savefig", "mkdir", "makedirs", "touch", "truncate"):
        return "savefig(content" not in text
    if name in ("save_file", "tofile", "savez", "copyfile", "copytree", "rename", "symlink_to"):
        return True
    if text.startswith(("json.dump(", "torch.save(", "np.save(", "os.replace(", "os.open(")):
        return True
    modes = [*call.args, *(word.value for word in call.keywords)]
    letters = [m.value for m in modes if isinstance(m, ast.Constant) and isinstance(m.value, str)]
    return name == "open" and any(set("wax+") & set(mode) for mode in letters)


def test_no_other_module_opens_a_file_for_writing() -> None:
    writing = {}
    for module, path in house.modules().items():
        calls = _calls_of(module, path)
        texts = sorted(text for name, call, text in calls if _writes(name, call, text))
        if texts and module != "minise.files":
            writing[module] = texts
    assert writing == WRITES_ELSEWHERE


def test_what_is_written_or_printed_as_json_goes_through_one_function() -> None:
    using = {
        module.removeprefix("minise.")
        for module, path in house.modules().items()
        for _, _, text in _calls_of(module, path)
        if text.startswith("json.dumps(") and module != "minise.files"
    }
    assert using <= OTHER_JSON


@pytest.mark.parametrize(
    "line",
    [
        'open("x", "w")',
        'path.open(mode="ab")',
        "path.write_text(y)",
        "figure.savefig(path)",
        "os.replace(a, b)",
        "json.dump(a, file)",
    ],
)
def test_a_call_that_writes_is_found(line: str) -> None:
    """The rule above can fail."""
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    assert _writes(name, call, line)


def test_a_folder_that_cannot_be_synced_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left") as caught:
        sync_folder(tmp_path)
    assert caught.value.filename == str(tmp_path)
