"""The wall between the reference and the lab, the order in which the core is read, and the smallest
fork: the reference alone, in an empty folder."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "minise"
TABLE = "minise.by_name"  # the only file of the reference that knows the lab, by its names
# The core, as it is read: no file imports one that is read after it.
READING_ORDER = (
    *("definition", "errors", "memory", "layout", "grouping", "question", "tokenizer", "prompts"),
    *("template", "method", "config", "rope", "attention", "model", "engines", "lm"),
)
# From the top: a room imports the rooms below it. The last is the core.
REFERENCE = ("commands", "public", "verify", "loading", "core")
LAB = (
    *("commands", "page", "decisions", "evaluation", "serving", "packing", "proof", "methods"),
    *("writing", "data", "recurrent", "equal_bits", "alone"),  # the last: files in the folder
)


def modules() -> dict[str, Path]:
    """Every module of the package by its name."""
    named = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        named[name.removesuffix(".__init__")] = path
    return named


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


def in_lab(module: str) -> bool:
    return module.startswith("minise.lab")


def room(module: str) -> str:
    """The room of a module, within its house."""
    if module == "minise.__main__":
        return "commands"
    _, *parts = module.removeprefix("minise.lab" if in_lab(module) else "minise").split(".")
    rooms = LAB if in_lab(module) else REFERENCE
    return parts[0] if parts and parts[0] in rooms else rooms[-1]


def through_the_wall(graph: dict[str, set[str]]) -> list[str]:
    """Imports of the lab by the reference."""
    found = []
    for module, targets in graph.items():
        if not in_lab(module):
            found += [f"{module} -> {target}" for target in targets if in_lab(target)]
    return found


def upward(graph: dict[str, set[str]]) -> list[str]:
    """The imports that point to a room above, in one house. The table of names lies below all."""
    found = []
    for module, targets in graph.items():
        for target in targets:
            if in_lab(module) != in_lab(target) or target == TABLE:
                continue
            rooms = LAB if in_lab(module) else REFERENCE
            here, there = rooms.index(room(module)), rooms.index(room(target))
            if here > there or (module == "minise.lab" and here != there):
                found.append(f"{module} -> {target}")
    return found


def read_later(graph: dict[str, set[str]]) -> list[str]:
    """The imports by a file of the core of one that is read after it."""
    found = []
    for place, name in enumerate(READING_ORDER):
        for target in graph[f"minise.{name}"]:
            later = target.removeprefix("minise.")
            if later in READING_ORDER[place:]:
                found.append(f"{name} -> {later}")
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


def test_the_reference_imports_nothing_of_the_lab() -> None:
    assert through_the_wall(imports()) == []


def test_only_the_table_of_names_knows_the_lab() -> None:
    for module, path in modules().items():
        if not in_lab(module) and module != TABLE:
            assert "minise.lab" not in path.read_text("utf-8"), module


def test_the_tests_of_the_reference_import_nothing_of_the_lab() -> None:
    for path in (ROOT / "tests" / "reference").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in imported(node):
                assert not name.startswith(("minise.lab", "tests.lab")), path


def test_no_two_modules_import_each_other() -> None:
    assert circles(imports()) == []


def test_imports_point_downwards() -> None:
    assert upward(imports()) == []


def test_no_file_of_the_core_imports_one_that_is_read_after_it() -> None:
    assert read_later(imports()) == []


def test_a_hole_a_circle_an_arrow_upwards_and_a_later_file_are_found() -> None:
    """The rules above can fail."""
    graph = {"minise.layout": {"minise.commands.ask"}, "minise.commands.ask": {"minise.layout"}}
    assert circles(graph) == ["minise.layout", "minise.commands.ask"]
    assert upward(graph) == ["minise.layout -> minise.commands.ask"]
    graph = {"minise.lm": {"minise.lab.equal_bits.decoder"}}
    assert through_the_wall(graph) == ["minise.lm -> minise.lab.equal_bits.decoder"]
    graph = {"minise.lab.data.tasks": {"minise.lab.evaluation.run", "minise.lm"}}
    assert upward(graph) == ["minise.lab.data.tasks -> minise.lab.evaluation.run"]
    graph = {f"minise.{name}": set[str]() for name in READING_ORDER}
    graph["minise.layout"] = {"minise.lm"}
    assert read_later(graph) == ["layout -> lm"]


def test_the_table_of_names_has_no_name_that_is_not_there() -> None:
    from minise import by_name

    homes = [*by_name.PUBLIC, *(module for module, _ in by_name.COMMANDS.values())]
    homes += [where.partition(":")[0] for where in by_name.LAB.values()]
    files = modules()
    if "minise.lab" in files:
        assert set(homes) <= set(files)


def test_every_file_of_the_core_is_in_the_reading_order_of_the_readme() -> None:
    core = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert core == {*READING_ORDER, "by_name", "public"}
    page = ROOT / "README.md"
    if not page.exists():
        pytest.skip("a copy of the reference alone has no README")
    table = page.read_text("utf-8").partition("| file in `minise/`")[2].partition("\n\n")[0]
    listed = [name for name in re.findall(r"`(\w+)\.py`", table) if name in READING_ORDER]
    assert sorted(listed) == sorted(READING_ORDER)
    in_order = [name for name in READING_ORDER if name not in ("errors", "memory")]
    assert [name for name in listed if name not in ("errors", "memory")] == in_order


ALONE = """
import torch
import minise

assert minise.__file__.startswith({here!r}), minise.__file__
lm = minise.load("weights/tiny-llama", dtype="float64")
question = minise.Question("What is the capital of Kenya?", ["Accra", "Nairobi", "Lagos", "Cairo"])
answer = minise.self_ensemble(lm, question, group_size=2)
print(question.choices[answer.prediction])

# Twenty steps of training on packed prompts.
_, prompts = minise.SelfEnsemble(group_size=2, trials=2).prompts(lm, question)
layout = minise.pack(prompts.prefix, prompts.branches, tree=True)
lm.decoder.requires_grad_()
step = torch.optim.AdamW(lm.decoder.parameters(), lr=1e-4)
losses = []
for _ in range(20):
    step.zero_grad()
    loss = minise.packed_loss(lm, layout)
    loss.backward()
    step.step()
    losses.append(float(loss.detach()))
assert losses[-1] < 0.8 * losses[0], losses
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference alone: no lab, no docs. What a fork copies."""
    if not (PACKAGE / "lab").exists():
        pytest.skip("this is such a copy")
    folder = tmp_path_factory.mktemp("alone")
    ignored = shutil.ignore_patterns("lab", "__pycache__", "weights")
    shutil.copytree(PACKAGE, folder / "minise", ignore=ignored)
    shutil.copytree(ROOT / "tests" / "reference", folder / "tests" / "reference", ignore=ignored)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests" / "conftest.py")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "weights", folder / "weights")
    return folder


def run_alone(folder: Path, *words: str, status: int = 0) -> str:
    """What a Python program prints in that folder; if it must fail, what it says of that."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stderr if status else done.stdout


def test_the_smallest_fork_answers_and_trains(alone: Path) -> None:
    assert run_alone(alone, "-c", ALONE.format(here=str(alone))).split() == ["Nairobi"]


def test_the_smallest_fork_has_the_commands_ask_and_verify(alone: Path) -> None:
    assert "Self-Ensemble answers: Ottawa (right)" in run_alone(alone, "-m", "minise", "ask")
    verified = run_alone(alone, "-m", "minise", "verify", "--trials", "1")
    assert "passed: the decoder is its definition; separate, packed and tree" in verified
    refused = run_alone(alone, "-m", "minise", "eval", "--task", "miniature", "-o", "x", status=2)
    assert "eval is of the lab, and this copy has none" in refused
    assert refused.count("\n") == 1


NAMES = """
from minise import *
import minise

assert not hasattr(minise, "check")
assert "check" not in dir(minise)
print(sorted(minise.__all__))
"""


def test_the_smallest_fork_does_not_speak_of_a_lab_that_is_not_there(alone: Path) -> None:
    names = run_alone(alone, "-c", NAMES)
    assert "'self_ensemble'" in names
    assert "'explain'" not in names
    overview = run_alone(alone, "-m", "minise", "--help")
    assert "  verify  " in overview
    assert "  eval  " not in overview


@pytest.mark.slow
def test_the_smallest_fork_installs(alone: Path, tmp_path: Path) -> None:
    run_alone(alone, "-m", "venv", "--system-site-packages", str(tmp_path / "venv"))
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "-e", str(alone)]
    done = subprocess.run([str(word) for word in install], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_the_smallest_fork_passes_the_tests_of_the_reference_with_pytest_alone(
    alone: Path,
) -> None:
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "tests")
    assert " passed" in run_alone(alone, *words)
