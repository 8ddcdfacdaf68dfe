"""The house has a size, and its rooms have an order. Who wants to add must take out.

Sizes are lines without blanks; docstrings and comments count. Words are those of pages without
code blocks.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "minise"
# From the top: a room imports the rooms below it. The core is the files that lie directly in the
# package.
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
    ("equal_bits",),
    ("core",),
)
ROOMS = [name for floor in FLOORS for name in floor if name != "core"]
LONG = 100  # lines of a function


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
    "core": (lambda: lines("minise/*", ".py"), 1700),
    "equal_bits": (lambda: lines("minise/equal_bits", ".py"), 800),
    "package": (lambda: lines("minise", ".py"), 10500),
    "verify": (lambda: lines("minise/verify", ".py"), 2000),
    "page": (lambda: lines("minise", ".js", ".css", ".html"), 3800),
    "tests": (lambda: lines("tests", ".py", ".js"), 17000),
    "tools": (lambda: lines("tools", ".py", ".js"), 2000),
    "words of all pages": (words, 31000),
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
        if room(module) != room(target) and floor[room(module)] >= floor[room(target)]
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
    graph = {"minise.lm": {"minise.equal_bits.decoder"}, "minise.equal_bits.decoder": {"minise.lm"}}
    assert upward(graph) == ["minise.lm -> minise.equal_bits.decoder"]


def test_the_smallest_fork_answers(tmp_path: Path) -> None:
    """The core, loading/ and the one file that the page names, alone in a folder."""
    for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("loading/*.py")]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (tmp_path / "minise" / "equal_bits").mkdir()
    shutil.copy(PACKAGE / "equal_bits" / "machine.py", tmp_path / "minise" / "equal_bits")
    shutil.copytree(ROOT / "weights" / "tiny-llama", tmp_path / "weights" / "tiny-llama")
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    where = "import minise\nprint(minise.__file__)\n"
    done = subprocess.run(
        [sys.executable, "-c", where + example],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(tmp_path / "minise" / "__init__.py"), "Nairobi"], done.stderr
    text = "\n".join(path.read_text("utf-8") for path in tmp_path.rglob("*.py"))
    size = sum(1 for line in text.split("\n") if line.strip())
    [stated] = re.findall(r"some ([\d,]+) lines without blank ones", page)
    assert int(stated.replace(",", "")) == pytest.approx(size, abs=100)


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
