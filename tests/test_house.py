"""The house has a size, and its rooms have an order. Who wants to add must take out.

Sizes are lines without blanks; docstrings and comments count. Words are those of pages without
code blocks.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "minise"
# From the top: a room imports the rooms below it. The core is the files that lie directly in the
# package; equal_bits/ is its appendix, on the same floor.
FLOORS = (
    ("commands",),
    ("page",),
    ("evaluation",),
    ("serving",),
    ("verify",),
    ("methods",),
    ("writing",),
    ("data",),
    ("loading",),
    ("core", "equal_bits"),
)
ROOMS = [name for floor in FLOORS for name in floor if name != "core"]
LONG = 80  # lines of a function


def lines(folder: str, *endings: str) -> int:
    """Lines of the files below a folder of the project; "minise/*" is its own files alone."""
    found = (ROOT / folder.removesuffix("/*")).glob("*" if folder.endswith("/*") else "**/*")
    files = [path for path in found if path.suffix in endings and "node_modules" not in path.parts]
    return sum(1 for path in files for line in path.read_text("utf-8").split("\n") if line.strip())


def words() -> int:
    """Words of all pages. docs/api.md is made from the docstrings."""
    pages = [*ROOT.glob("*.md")]
    for folder in ("docs", "weights", "exercises"):
        pages += [path for path in (ROOT / folder).rglob("*.md") if path.name != "api.md"]
    text = "\n".join(path.read_text("utf-8") for path in pages)
    return len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())


SIZES = {  # what is measured, its limit
    "core": (lambda: lines("minise/*", ".py"), 1150),
    "equal_bits": (lambda: lines("minise/equal_bits", ".py"), 600),
    "package": (lambda: lines("minise", ".py"), 8000),
    "verify": (lambda: lines("minise/verify", ".py"), 1500),
    "page": (lambda: lines("minise", ".js", ".css", ".html"), 3800),
    "tests": (lambda: lines("tests", ".py", ".js"), 14000),
    "tools": (lambda: lines("tools", ".py", ".js"), 2000),
    "words of all pages": (words, 28000),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_house_is_small(name: str) -> None:
    measure, limit = SIZES[name]
    size = measure()
    print(f"{name}: {size:,} (limit {limit:,})")
    assert size <= limit


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    named = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def room(module: str) -> str:
    """The room of a module: its folder, or the core. `python -m minise` is a command."""
    parts = module.split(".")
    if module == "minise.__main__":
        return "commands"
    return parts[1] if (PACKAGE / parts[-1 if len(parts) == 2 else 1]).is_dir() else "core"


def imports() -> dict[str, set[str]]:
    """What each module imports, wherever in the file."""
    files, graph = modules(), {}
    for module, path in files.items():
        graph[module] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in imported(node):
                while name and name not in files:  # "minise.layout.pack" is of minise.layout
                    name = name.rpartition(".")[0]
                if name not in ("", "minise", module):
                    graph[module].add(name)
    return graph


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(graph: dict[str, set[str]]) -> list[str]:
    """The imports that point to a room above, or to another room on the same floor."""
    floor = {name: i for i, names in enumerate(FLOORS) for name in names}
    return [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets
        if room(module) != room(target)
        and floor[room(module)] >= floor[room(target)]
        and {room(module), room(target)} != {"core", "equal_bits"}
    ]


def circles(graph: dict[str, set[str]]) -> list[str]:
    """The modules from which a way of imports leads back to them."""
    reach = {module: set(targets) for module, targets in graph.items()}
    while True:
        longer = {m: targets.union(*(reach[t] for t in targets)) for m, targets in reach.items()}
        if longer == reach:
            return [module for module in reach if module in reach[module]]
        reach = longer


def test_no_two_modules_import_each_other() -> None:
    assert circles(imports()) == []


def test_imports_point_downwards() -> None:
    assert upward(imports()) == []


def test_a_circle_and_an_arrow_upwards_are_found() -> None:
    """The rules above can fail."""
    graph = {"minise.layout": {"minise.commands.ask"}, "minise.commands.ask": {"minise.layout"}}
    assert circles(graph) == ["minise.layout", "minise.commands.ask"]
    assert upward(graph) == ["minise.layout -> minise.commands.ask"]


def test_every_folder_is_a_room_that_says_what_lives_there() -> None:
    folders = {path.parent.name: path for path in PACKAGE.glob("*/__init__.py")}
    assert folders.keys() == set(ROOMS)
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    for name, path in folders.items():
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), name
        assert f"`{name}/`" in page


def test_every_file_of_the_core_stands_in_the_reading_order() -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    table = page[page.index("| file in `minise/`") :].partition("\n\n")[0]
    core = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert {name for name in core if f"`{name}`" not in table} == set()


def test_no_function_is_longer_than_two_screens() -> None:
    found = []
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONG:
                found.append(f"{module}.{node.name}")
    assert found == []
