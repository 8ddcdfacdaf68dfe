"""The search notices what a reader may not do. Its readers take sound files, and damaged ones."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FunctionType

import pytest

from minise import InputError
from minise.loading.config_json import read_config
from tests.support.confine import confined
from tools import fuzz_readers
from tools.fuzz_readers import READERS, Reader, judge, main, package_functions

for module in ("filelock", "jinja2"):
    pytest.importorskip(module)


@pytest.mark.parametrize("name", READERS)
def test_a_sound_file_is_read_and_a_damaged_one_is_read_or_refused_in_one_line(
    name: str, tmp_path: Path
) -> None:
    draw = random.Random(name)
    with confined(tmp_path, 60):
        reader = READERS[name]()
        for seed in reader.seeds:
            reader.read(seed)
            for _ in range(20):
                damaged = reader.damage(seed, draw)
                assert judge(lambda damaged=damaged: reader.read(damaged)) == ("", "")


def refuses(message: str) -> None:
    raise InputError(message)


def writes_outside() -> None:
    Path("../x").write_text("")


def test_a_planted_defect_is_noticed(tmp_path: Path) -> None:
    with confined(tmp_path, 60):
        assert judge(lambda: refuses("x" * 400)) == judge(lambda: 3) == ("", "")
        assert judge(lambda: refuses("x" * 401))[0].startswith("a message of over 400 characters")
        assert judge(lambda: refuses("a\nb"))[0].startswith("a message that is not one line")
        assert judge(lambda: {}["x"])[0] == "KeyError"
        assert judge(writes_outside)[0].startswith("WroteOutside")
    with confined(tmp_path, 0.1):
        assert judge(lambda: all(True for _ in iter(lambda: 0, 1)))[0].startswith("Hang")


def test_the_place_of_a_defect_is_named() -> None:
    assert judge(lambda: read_config(None))[0].startswith("AttributeError in config_json.py:")  # type: ignore[arg-type]


def test_every_function_of_the_package_guides_the_search() -> None:
    names = {f"{one.__module__}.{one.__qualname__}" for one in package_functions()}
    for name in (
        "loading.config_json.read_config",
        "loading.config_json._Reader.rope",
        "loading.stored.Stored.values",  # a property
        "loading.stored.opened",  # a context manager
        "data.rows.field_columns",  # a cached function
        "tokenizer.Tokenizer.from_file",  # a class method
    ):
        assert f"minise.{name}" in names
    assert all(isinstance(one, FunctionType) for one in package_functions())


def test_without_atheris_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "atheris", None)
    assert main(["config"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "pip install atheris" in err


def test_a_file_that_was_found_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "1"
    path.write_bytes(b"x")
    assert main(["config", "--input", str(path)]) == 0
    monkeypatch.setitem(fuzz_readers.READERS, "config", lambda: Reader([], lambda content: 1 / 0))
    assert main(["config", "--input", str(path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_a_search_is_reported_with_its_counts_and_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "1.txt").write_text("KeyError in x.py:3 (f)\nTraceback ...")
    (tmp_path / "log").write_text(
        "#2\tINITED cov: 7 ft: 9 corp: 2/4b\n#3000\tDONE   cov: 12 ft: 30 corp: 5/9b\n"
    )
    assert fuzz_readers.report("config", tmp_path, 0) == 1
    assert fuzz_readers.report("config", tmp_path, 77) == 2
    out = capsys.readouterr().out
    assert "config: 3,000 files read, 12 edges reached, 5 files kept, 1 defects" in out
    assert "1: KeyError in x.py:3 (f)\n" in out
    assert "the search ended with status 77" in out
