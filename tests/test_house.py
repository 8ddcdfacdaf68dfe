"""The rooms of the house have an order, and each says what lives there."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "minise"
# From the top: a room imports the rooms below it. The core is the files that lie directly in the
# package.
FLOORS = (
    "commands",
    "page",
    "evaluation",
    "serving",
    "verify",
    "methods",
    "writing",
    "data",
    "loading",
    "equal_bits",
    "core",
)


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    named = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        named[name.removesuffix(".__init__")] = path
    return named


def room(module: str) -> str:
    """The room of a module: its folder, or the core. `python -m minise` is a command."""
    if module == "minise.__main__":
        return "commands"
    folder = module.split(".")[1]
    return folder if (PACKAGE / folder).is_dir() else "core"


def imports() -> dict[str, set[str]]:
    """What each module imports, wherever in the file."""
    files = modules()
    graph: dict[str, set[str]] = {module: set() for module in files}
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in imported(node):
                while name and name not in files:  # "minise.layout.pack" is of minise.layout
                    name = name.rpartition(".")[0]
                if name not in ("", "minise", module):
                    graph[module].add(name)
    return graph


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def upward(graph: dict[str, set[str]]) -> list[str]:
    """The imports that point to a room above."""
    found = []
    for module, targets in graph.items():
        for target in targets:
            here, there = room(module), room(target)
            if here != there and FLOORS.index(here) >= FLOORS.index(there):
                found.append(f"{module} -> {target}")
    return found


def circles(graph: dict[str, set[str]]) -> list[str]:
    """The modules from which a way of imports leads back to them."""
    found = []
    for module in graph:
        reached: set[str] = set()
        waiting = [*graph[module]]
        while waiting:
            target = waiting.pop()
            if target not in reached:
                reached.add(target)
                waiting.extend(graph[target])
        if module in reached:
            found.append(module)
    return found


def test_no_two_modules_import_each_other() -> None:
    assert circles(imports()) == []


def test_imports_point_downwards() -> None:
    assert upward(imports()) == []


def test_a_circle_and_an_arrow_upwards_are_found() -> None:
    """The rules above can fail."""
    graph = {"minise.layout": {"minise.commands.ask"}, "minise.commands.ask": {"minise.layout"}}
    assert circles(graph) == ["minise.layout", "minise.commands.ask"]
    assert upward(graph) == ["minise.layout -> minise.commands.ask"]
    graph = {
        "minise.lm": {"minise.lab.equal_bits.decoder"},
        "minise.lab.equal_bits.decoder": {"minise.lm"},
    }
    assert upward(graph) == ["minise.lm -> minise.lab.equal_bits.decoder"]


def test_the_smallest_fork_answers(tmp_path: Path) -> None:
    """The core, loading/ and the one file that the page names, alone in a folder."""
    for path in [*PACKAGE.glob("*.py"), *PACKAGE.glob("loading/*.py")]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (tmp_path / "minise" / "lab" / "equal_bits").mkdir()
    shutil.copy(PACKAGE / "equal_bits" / "machine.py", tmp_path / "minise" / "lab" / "equal_bits")
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


def test_every_folder_is_a_room_that_says_what_lives_there() -> None:
    folders = {path.parent.name: path for path in PACKAGE.glob("*/__init__.py")}
    assert {*folders, "core"} == set(FLOORS)
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    for name, path in folders.items():
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), name
        assert f"`{name}/`" in page


def test_every_file_of_the_core_stands_in_the_reading_order() -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    table = page[page.index("| file in `minise/`") :].partition("\n\n")[0]
    core = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert {name for name in core if f"`{name}`" not in table} == set()
