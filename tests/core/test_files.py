"""Files are written whole or not at all; and JSON holds finite numbers only."""

from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import pytest

from minise.errors import InputError
from minise.files import json_text, read_bytes, write_file


def test_a_new_and_an_old_file_get_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in ("text\n", b"\0\xff", "Où? \ud800"):
        write_file(path, content)
        expected = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        assert path.read_bytes() == expected.replace(b" ?", b" \\ud800")
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_is_named_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError) as refused:
        write_file(path, "new")
    assert str(refused.value).startswith(f"{path}: could not be written (No space left on device);")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to("there")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "new"


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "text")
    reader.join()
    assert got == ["text"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="none") as caught:
        read_bytes(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")


def test_json_has_every_bit_and_no_number_that_is_not_finite() -> None:
    value = {"a": [0.1 + 0.2, None, True], "ü": "\ud800"}
    assert json.loads(json_text(value, indent=1)) == value
    assert json_text("ü", ensure_ascii=False) == '"ü"'
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(InputError, match="cannot be written as JSON"):
            json_text({"words": [number]})
    with pytest.raises(TypeError):
        json_text(object())
