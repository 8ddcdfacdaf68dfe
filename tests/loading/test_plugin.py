"""Optional packages and the user's own files, loaded by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from minise.errors import InputError
from minise.loading.plugin import find_object, load_extra


def refusal(where: str) -> str:
    with pytest.raises(InputError) as refused:
        find_object(where)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_missing_package_is_named_with_the_extra_that_has_it() -> None:
    with pytest.raises(InputError) as refused:
        load_extra("no_such_package.part", "eval")
    reason = "this needs no_such_package, which is not installed: pip install 'minise[eval]'"
    assert str(refused.value) == reason


def test_an_object_is_found_in_a_module_or_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from dataclasses import dataclass\n@dataclass\nclass Mine:\n    m: int = 4\n")
    assert find_object("pathlib:Path") is Path
    assert find_object(f"{path}:Mine")(3).m == 3


def test_an_edited_file_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for value in range(3):
        path.write_text(f"value = {value}\n")
        assert find_object(f"{path}:value") == value


@pytest.mark.parametrize("where", ["", "mine.py", "mine.py:", ":Mine"])
def test_a_name_without_a_file_or_an_object_is_refused(where: str) -> None:
    assert refusal(where).endswith("names no object; write FILE.py:NAME")


def test_a_module_or_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert refusal("no_such_package:Mine").startswith("no_such_package:Mine: not found (")
    assert refusal("pathlib:Mine").startswith("pathlib:Mine: not found (")
    for path in (tmp_path / "none.py", "\0.py", "x" * 5000 + ".py"):
        assert refusal(f"{path}:Mine").endswith("no such file; give the path of a Python file")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("1 / 0", "could not be run (ZeroDivisionError: division by zero); fix the file"),
        ("exit(3)", "could not be run (SystemExit: 3); fix the file"),
        ("def (", "could not be run (SyntaxError: "),
        ("other = 1", "defines no Mine; give one of the names it defines"),
    ],
)
def test_a_file_that_fails_or_lacks_the_name_is_refused(
    tmp_path: Path, source: str, reason: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    assert refusal(f"{path}:Mine").startswith(f"{path}: {reason}")
