"""The rules of ARCHITECTURE.md: who may import whom, and what lies where."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import house

ROOT = Path(__file__).parents[1]
ROOMS = [name for floor in house.FLOORS for name in floor if name != "core"]


def test_no_two_modules_import_each_other() -> None:
    assert house.circle(house.imports()) == []


def test_imports_point_downwards() -> None:
    assert house.upward(house.imports()) == []


def test_every_folder_is_a_room_with_a_floor() -> None:
    folders = {path.parent.name for path in house.PACKAGE.glob("*/__init__.py")}
    assert folders == set(ROOMS)


def test_only_commands_read_options() -> None:
    """Everything else takes plain arguments, so that it can be called from Python."""
    using = [
        module
        for module, path in house.modules().items()
        if "argparse" in path.read_text(encoding="utf-8") and house.room(module) != "commands"
    ]
    assert using == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_lives_there(room: str) -> None:
    text = ast.get_docstring(ast.parse((house.PACKAGE / room / "__init__.py").read_text()))
    assert text is not None
    assert "import" in text.lower()


@pytest.mark.parametrize("room", ["core", *ROOMS])
def test_the_page_of_the_architecture_names_every_room(room: str) -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert f"`{room}/`" in page or (room == "core" and "the core" in page)


def test_every_file_of_the_core_stands_in_the_reading_order() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    table = page[page.index("| file in `minise/`") :].partition("\n\n")[0]
    core = {
        path.name
        for path in house.PACKAGE.glob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    assert {name for name in core if f"`{name}`" not in table} == set()


@pytest.mark.parametrize("path", sorted(house.PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_the_core_imports_at_the_top_of_its_files(path: Path) -> None:
    """So a reader sees at once what a file rests on. (The package imports public names late.)"""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = [
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert inside == [] or path.name == "__init__.py"


def test_no_function_is_longer_than_two_screens() -> None:
    assert house.long_functions() == []


def test_a_circle_and_an_arrow_upwards_are_found() -> None:
    """The rules above can fail."""
    graph = {"minise.layout": {"minise.report.tables"}, "minise.report.tables": {"minise.layout"}}
    assert house.circle(graph) == ["minise.layout", "minise.report.tables", "minise.layout"]
    assert house.upward(graph) == ["minise.layout -> minise.report.tables"]
