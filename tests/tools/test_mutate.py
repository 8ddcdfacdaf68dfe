"""The mutation tool: it finds what a test does not notice, and changes only what computes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.mutate import TESTS, mutants

ROOT = Path(__file__).parents[2]
CODE = "def sign(n):\n    return 1 if n > 0 else 0\n"
LOOSE = "from toy import sign\n\ndef test_it():\n    assert [sign(5), sign(-5)] == [1, 0]\n"
TIGHT = LOOSE + "    assert [sign(1), sign(0)] == [1, 0]\n"
HANGS = "def count(n):\n    while n > 0:\n        n -= 1\n    return n\n"
COUNTS = "from toy import count\n\ndef test_it():\n    assert count(3) == 0\n"


def test_the_table_of_tests_names_files_that_exist() -> None:
    """With one wrong name, a file would be tried on all tests without a message."""
    for file, names in TESTS.items():
        assert (ROOT / "minise" / f"{file}.py").is_file()
        for room, name in (each.split("/") for each in names.split()):
            assert (ROOT / "tests" / room / f"test_{name}.py").is_file()


def mutate(folder: Path, code: str, test: str, *options: str) -> str:
    (folder / "toy.py").write_text(code)
    (folder / "test_toy.py").write_text(test)
    run = subprocess.run(
        [sys.executable, "-m", "tools.mutate", "toy.py", "--tests", "test_toy.py", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (folder / "toy.py").read_text() == code
    return run.stdout + run.stderr


def test_a_mutant_that_no_test_notices_is_named(tmp_path: Path) -> None:
    printed = mutate(tmp_path, CODE, LOOSE)
    assert "survived  toy.py:2  n > 0  ->  n >= 0\n" in printed
    assert "survived  toy.py:2  0  ->  1\n" in printed
    assert "6 killed, 0 timed out, 2 survived (75% noticed)" in printed


def test_with_a_complete_test_no_mutant_survives(tmp_path: Path) -> None:
    assert "8 killed, 0 timed out, 0 survived (100% noticed)" in mutate(tmp_path, CODE, TIGHT)


def test_a_mutant_that_hangs_is_noticed(tmp_path: Path) -> None:
    printed = mutate(tmp_path, HANGS, COUNTS, "--limit", "3", "--jobs", "4")
    assert "0 survived" in printed
    assert "0 timed out" not in printed


def test_if_the_tests_fail_without_a_mutant_nothing_is_mutated(tmp_path: Path) -> None:
    printed = mutate(tmp_path, CODE, LOOSE.replace("[1, 0]", "[1, 1]"))
    assert "the tests fail without a mutant" in printed
    assert "survived" not in printed


def test_a_mutant_is_tried_first_on_the_tests_that_run_its_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    other = f"\ndef test_other():\n    open({str(log)!r}, 'a').write('x')\n"
    assert "8 killed, 0 timed out, 0 survived" in mutate(tmp_path, CODE, TIGHT + other)
    assert log.read_text() == "x"  # the run without a mutant
    assert "6 killed, 0 timed out, 2 survived" in mutate(tmp_path, CODE, LOOSE + other)
    assert log.read_text() == "xxxx"


def test_a_value_that_one_test_makes_and_another_checks_is_noticed(tmp_path: Path) -> None:
    code = "from functools import cache\n\n@cache\ndef two():\n    return 2\n"
    test = "from toy import two\n\ndef test_a():\n    two()\n\n"
    assert "0 killed" in mutate(tmp_path, code, test)
    assert "0 survived" in mutate(tmp_path, code, test + "def test_b():\n    assert two() == 2\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", {"a <= b", "a >= b", "(removed)"}),
        ("x = not a", {"a", "(removed)"}),
        ("x = a + 1", {"a - 1", "2", "0", "(removed)"}),
        ("x = [a for a in b if a]", {"for a in b if not a", "(removed)"}),
        ("f(a, key=b)", {"f(a)", "(removed)"}),
        ("if a: pass", {"if not a: pass"}),
        ("raise E(f'{a + 1} is wrong')", {"(removed)"}),
        ("x = InputError(f'{a + 1} is wrong')", {"(removed)"}),
        ("x = zip(a, b, strict=True)", {"(removed)"}),
        ("load(a, strict=True)", {"load(a)", "False", "(removed)"}),
        ("if TYPE_CHECKING: x = 1", set()),
        ("def f(a: int = 1) -> 'b': 'Text.'", {"2", "0"}),
        ("T = TypeVar('T')", set()),
        ("_Pair = tuple[int, int]", set()),
        ("__all__ = ['a']", set()),
    ],
)
def test_each_line_has_these_mutants(line: str, expected: set[str]) -> None:
    assert {
        mutant.description.split("  ->  ")[1] for mutant in mutants(ast.parse(line))
    } == expected


def test_a_mutant_is_the_module_with_one_change() -> None:
    tree = ast.parse("x = a + b\ny = a + b\n")
    changed = {ast.unparse(mutant.planted(tree)) for mutant in mutants(tree)}
    assert changed == {
        "x = a - b\ny = a + b",
        "x = a + b\ny = a - b",
        "pass\ny = a + b",
        "x = a + b\npass",
    }
    assert ast.unparse(tree) == "x = a + b\ny = a + b"
