"""The structure of the package in numbers: rooms, imports, sizes, long functions.

    python -m tools.house

Imports are read from the source, so those inside functions and those for type checkers also count.
Lines are counted without blank ones. tests/test_house.py checks the rules of ARCHITECTURE.md by the
same functions.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "minise"
# From the top: a room imports the rooms below it. The core is the files that lie directly in the
# package; exact/ is its appendix, on the same floor.
FLOORS = (
    ("commands",),
    ("live",),
    ("explaining",),
    ("report",),
    ("evaluation",),
    ("methods",),
    ("checking",),
    ("writing",),
    ("groupings",),
    ("data",),
    ("loading",),
    ("core", "exact"),
)
LONG = 60  # lines of a function

Imports = dict[str, set[str]]  # module -> the modules of the package that it imports


def modules() -> dict[str, Path]:
    """Every module of the package by its name, without the package's own __init__."""
    files = sorted(PACKAGE.rglob("*.py"))
    named = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in files
    }
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


def room(module: str) -> str:
    """The room of a module: its folder, or the core. `python -m minise` is a command."""
    if module == "minise.__main__":
        return "commands"
    parts = module.split(".")
    is_package = (PACKAGE / "/".join(parts[1:])).is_dir()
    return parts[1] if len(parts) > 2 or (len(parts) == 2 and is_package) else "core"


def imports() -> Imports:
    """What each module imports, wherever in the file."""
    files = modules()
    graph: Imports = {}
    for module, path in files.items():
        graph[module] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _names(node):
                while name and name not in files:  # "minise.layout.pack" is of minise.layout
                    name = name.rpartition(".")[0]
                if name not in ("", "minise", module):
                    graph[module].add(name)
    return graph


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def circle(graph: Imports) -> list[str]:
    """Modules that import each other in a circle, the first again at the end; empty if none do."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for imported in sorted(graph[module]):
            if cycle := visit(imported, [*path, module]):
                return cycle
        done.add(module)
        return []

    for module in sorted(graph):
        if cycle := visit(module, []):
            return cycle
    return []


def upward(graph: Imports) -> list[str]:
    """The imports of a room above, as "minise.data.tasks -> minise.report.results"."""
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    return [
        f"{module} -> {imported}"
        for module in sorted(graph)
        for imported in sorted(graph[module])
        if floor[room(imported)] < floor[room(module)]
    ]


def lines(path: Path) -> int:
    """How many lines of a file are not blank."""
    return sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def long_functions() -> list[tuple[int, str]]:
    """The functions of more than LONG lines, the longest first: their lines and names."""
    functions = []
    for module, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG:
                    functions.append((length, f"{module}.{node.name}"))
    return sorted(functions, reverse=True)


def main() -> None:
    """Print the numbers."""
    graph, sizes = imports(), Counter[str]()
    for module, path in modules().items():
        sizes[room(module)] += lines(path)
    for names in FLOORS:
        for name in names:
            files = sum(1 for module in graph if room(module) == name)
            print(f"{name:12} {files:3} files {sizes[name]:6,} lines")
    print(f"{'all':12} {len(graph):3} files {sum(sizes.values()):6,} lines")
    print(f"circle of imports: {' -> '.join(circle(graph)) or 'none'}")
    print(f"imports of a room above: {', '.join(upward(graph)) or 'none'}")
    named = ", ".join(f"{name} ({length})" for length, name in long_functions())
    print(f"functions of more than {LONG} lines: {named or 'none'}")


if __name__ == "__main__":
    main()
