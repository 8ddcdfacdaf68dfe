"""Optional packages and the user's own files, loaded by name."""

from pathlib import Path

import pytest

from minise.errors import InputError
from minise.loading import plugin
from minise.loading.plugin import find_engine, find_object, load_extra


def test_a_missing_package_is_named_with_the_extra_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the README installs it, in a clone.
    (tmp_path / "install.py").touch()
    monkeypatch.setattr(plugin, "CLONE", tmp_path)
    with pytest.raises(
        InputError, match=r"no_such_package.*python3 install\.py bench, .*\[bench\]"
    ):
        load_extra("no_such_package.part", "bench")
    assert load_extra("json") is __import__("json")


def test_outside_of_a_clone_the_wheel_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "CLONE", tmp_path)
    with pytest.raises(InputError, match=r"not installed; pip install 'minise\[eval\]'$"):
        load_extra("no_such_package")


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


def test_an_error_in_the_users_own_file_is_his_to_see(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        find_object(f"{path}:Mine")


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("", '""'),
        ("mine.py", "mine.py"),
        ("mine.py:", "mine.py:"),
        (":Mine", ":Mine"),
        ("no_such_package:Mine", "no_such_package"),
        ("pathlib:Mine", "defines no Mine"),
        ("./mine:Mine", "./mine:Mine"),
        (".mine:Mine", "write FILE.py:NAME"),
        ("mine..more:Mine", "write FILE.py:NAME"),
        ("my mine:Mine", "write FILE.py:NAME"),
        ("none.py:Mine", "none.py"),
        ("\0.py:Mine", "no such file"),
        ("x" * 5000 + ".py:Mine", "no such file"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(where: str, named: str) -> None:
    with pytest.raises(InputError) as refused:
        find_object(where)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_called_is_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("number = 4\n")
    with pytest.raises(InputError, match="is no function; name one"):
        find_engine(f"{path}:number")
