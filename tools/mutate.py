"""Do the tests notice? Change a file in small ways, and run the tests on each change.

    python -m tools.mutate minise/layout.py
    python -m tools.mutate minise/checking/verify.py --mutants 200 --seed 1 --jobs 2
    python -m tools.mutate minise/groupings/exact.py --tests tests/groupings/test_exact.py
    python -m tools.mutate minise/layout.py --record docs/mutants.jsonl
    python -m tools.mutate minise/layout.py --record docs/mutants.jsonl --again

A mutant has one operator, comparison or constant changed, one condition negated, one statement or
one keyword argument removed. It is killed if a test fails or runs past the time limit. One that
survives shows a line on which no test depends, or a change that changes nothing.

Code that computes nothing is left alone: type annotations, docstrings, the texts of errors and of
--help, the sizes of lines and letters in figures, and zip's `strict`, for lengths that the code
around it makes equal. Everything runs in a copy of the tree: the working tree never holds a mutant.
Tests that start a process of their own run the file as it is there, so they kill nothing.

The tests first run without a mutant, and it is noted which of them run which line. A mutant is then
tried on the tests that run its line, and on all only if these let it live: a value that an earlier
test left in a cache, or in a fixture of several tests, may be checked by another.

With --record the result is kept in a file, which tools/mutation_record.py prints. --again tries
only the mutants that survived when the file was recorded, and counts the others as before: for new
tests of a file that has not changed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tools import mutation_record
from tools.mutation_record import Entry

# The tests that matter for a file, as ROOM/NAME, likely and fast killers first. A file that is not
# here is tried on the test file of its own name, or else on all.
TESTS = {
    "layout": "core/layout core/tree claims/equivalence",
    "attention": "core/attention core/model core/cache",
    "exact/attention": "core/tree writing/generation core/attention core/cache claims/bits",
    "exact/calls": "exact/calls exact/probe",
    "exact/layers": "exact/layers claims/bits claims/hostile exact/odd_sizes",
    "exact/machine": "exact/machine",
    "exact/probe": "exact/probe claims/hostile",
    "exact/run": "claims/bits core/cache core/attention core/tree",
    "checking/comparison": "checking/comparison checking/verify commands/verify",
    "checking/widened": "checking/widened checking/verify",
    "checking/symbols": "checking/symbols checking/proof",
    "cache": "core/cache writing/generation",
    "loading/config_json": "loading/config_json loading/checkpoint",
    "config": "core/config core/rope loading/config_json",
    "rope": "core/rope core/model claims/goldens",
    "model": "core/model claims/goldens core/tree core/cache",
    "grouping": "core/grouping groupings/registry groupings/balanced docs/docstrings",
    "groupings/balanced": (
        "groupings/balanced groupings/balanced_means core/grouping docs/docstrings"
    ),
    "question": "core/question core/prompt data/question_file",
    "data/rows": "data/rows data/question_file",
    "tokenizer": "core/tokenizer core/prompt loading/bad_models loading/checkpoint",
    "prompt": "core/prompt core/method docs/docstrings",
    "engines": (
        "core/engines core/tree core/layout loading/bad_models claims/equivalence core/method "
        "methods/ablations"
    ),
    "methods/authors_code": (
        "methods/authors_code methods/presets_in_prompts methods/preset_departures"
    ),
    "methods/presets": "methods/presets_in_prompts methods/preset_departures core/method",
    "method": (
        "core/method evaluation/asking loading/bad_models methods/build methods/preset_departures"
    ),
    "rounds": "core/rounds evaluation/asking methods/sequential core/method methods/reasoning",
    "groupings/exact": "groupings/exact core/grouping core/method docs/docstrings",
    "methods/uncertainty": "methods/uncertainty core/method",
    "evaluation/meter": "evaluation/meter core/method",
    "checking/verify": "commands/verify checking/verify",
    "checking/traces": "checking/traces commands/verify checking/verify",
    "evaluation/asking": "evaluation/asking evaluation/run methods/reasoning",
    "evaluation/run": (
        "evaluation/run evaluation/own_runs methods/own evaluation/run_folder report/results "
        "evaluation/samples commands/eval"
    ),
    "methods/first_trials": "methods/first_trials methods/build evaluation/planned",
    "evaluation/experiments": "evaluation/planned evaluation/experiments",
    "explaining/collect": "explaining/collect explaining/library_model",
    "explaining/watch": "explaining/collect",
    "data/question_file": "data/question_file data/rows",
    "data/miniature": "data/miniature data/hops",
    "data/datasets": "data/datasets data/tasks data/rows data/question_file",
    "data/tasks": "data/tasks data/datasets data/rows",
    "evaluation/metrics": "evaluation/metrics evaluation/clusters",
    "report/tables": "report/tables report/results report/report",
    "report/across": "report/across report/report",
    "report/results": (
        "report/results report/tables report/report report/paper_figures evaluation/run "
        "evaluation/run_folder"
    ),
    "evaluation/extras": "evaluation/extras evaluation/planned",
    "report/panels": "report/panels report/figures report/paper_figures",
    "report/figures": "report/figures report/panels report/paper_figures",
    "report/drawing": "report/drawing report/panels report/figures",
    "commands/ask_text": "commands/ask_text commands/ask",
    "commands/options": "commands/options commands/cli commands/ask commands/eval",
    "methods/registry": "methods/registry methods/build",
    "methods/rotations": (
        "methods/rotations methods/priors methods/build evaluation/planned evaluation/asking"
    ),
    "methods/sequential": "methods/sequential methods/build",
    "methods/reasoning": "methods/reasoning methods/build",
    "methods/sample": "methods/sample evaluation/samples",
    "methods/fitted": "methods/fitted methods/calibration evaluation/samples",
    "methods/priors": "methods/priors methods/build evaluation/rival_runs",
    "methods/ablations": "methods/ablations methods/build claims/sabotage",
    "loading/stored": ("loading/stored loading/placement loading/mapped loading/tensor_parallel"),
    "loading/checkpoint": "loading/checkpoint loading/mapped",
    "loading/quantize": "loading/quantize loading/stored",
    "loading/placement": "loading/placement commands/dry_run",
}

# Each operator, and what replaces it.
SWAPS = {
    operator: others
    for line in (
        "Lt LtE GtE, LtE Lt Gt, Gt GtE LtE, GtE Gt Lt, Eq NotEq, NotEq Eq, Is IsNot, IsNot Is",
        "In NotIn, NotIn In, And Or, Or And, Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Div",
        "Mod Mult, Pow Mult, BitAnd BitOr, BitOr BitAnd, BitXor BitAnd",
    )
    for operator, *others in map(str.split, line.split(","))
}
REMOVED = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Return),
    *(ast.Continue, ast.Break, ast.Assert),
)
# Arguments that are texts of --help, or sizes in figures.
UNTRIED = ("help", "description", "metavar", "epilog", "lw", "elinewidth", "fontsize")
Place = tuple[tuple[str, int | None], ...]  # the fields that lead from the module to a node


class Mutant(NamedTuple):
    """The node at `place` becomes `new`."""

    place: Place
    new: ast.AST
    line: int
    column: int
    description: str

    def planted(self, tree: ast.Module) -> ast.Module:
        """The module with this change."""
        tree = copy.deepcopy(tree)
        node: Any = tree
        for field, index in self.place[:-1]:
            node = getattr(node, field) if index is None else getattr(node, field)[index]
        field, index = self.place[-1]
        if index is None:
            setattr(node, field, self.new)
        else:
            getattr(node, field)[index] = self.new
        return ast.fix_missing_locations(tree)


def mutants(tree: ast.Module) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    unique: dict[tuple[int, int, str], Mutant] = {}
    for place, node, line in _nodes(tree, (), 0):
        for new in _changes(node):
            before, after = (" ".join(ast.unparse(x).split()) for x in (node, new))
            description = f"{before[:90]}  ->  {after[:90] if after != 'pass' else '(removed)'}"
            where = line, getattr(node, "col_offset", 0), description
            unique.setdefault(where, Mutant(place, new, *where))
    return sorted(unique.values(), key=lambda mutant: mutant.line)


def _nodes(node: ast.AST, place: Place, line: int) -> Iterator[tuple[Place, Any, int]]:
    """The statements and expressions that may be changed, and their lines."""
    line = getattr(node, "lineno", line)
    if isinstance(node, ast.expr | ast.stmt | ast.comprehension):
        yield place, node, line
    for field, value in ast.iter_fields(node):
        if _is_text(node, field):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not _is_no_code(child):
                step = field, index if isinstance(value, list) else None
                yield from _nodes(child, (*place, step), line)


def _is_text(node: ast.AST, field: str) -> bool:
    """Whether a field holds an annotation, an error's message, help, a size in a figure, zip's
    `strict`, or a class's decorators, which forbid and compare but compute nothing."""
    match node:
        case ast.Call(func=ast.Name(name)):
            return name.endswith("Error") or (name == "zip" and field == "keywords")
        case ast.ClassDef():
            return field == "decorator_list"
        case ast.keyword(arg=arg):
            return arg in UNTRIED
    return isinstance(node, ast.Raise) or field in ("annotation", "returns")


def _is_no_code(node: ast.AST) -> bool:
    """Whether it is a docstring, an import, for type checkers only, a name for a type, `__all__` or
    a script's start."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name("__all__")]):
            return True
        case ast.Assign(value=ast.Call(func=ast.Name("TypeVar"))):
            return True
        case ast.Assign(targets=[ast.Name(name)], value=ast.Subscript()):
            return name.lstrip("_")[:1].isupper() and not name.isupper()
        case ast.If(test=ast.Compare(left=ast.Name("__name__")) | ast.Name("TYPE_CHECKING")):
            return True
    return False


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may replace a node."""
    if isinstance(node, REMOVED):
        yield ast.Pass()
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=ifs):
            for i, test in enumerate(ifs):
                yield _with(node, ifs=[*ifs[:i], ast.UnaryOp(ast.Not(), test), *ifs[i + 1 :]])
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for swap in _swaps(op):
                    yield _with(node, ops=[*ops[:i], swap, *ops[i + 1 :]])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            for swap in _swaps(op):
                yield _with(node, op=swap)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield _with(node, value=not value)
        case ast.Constant(value=int(value)):
            yield _with(node, value=value + 1)
            if value > 0:
                yield _with(node, value=value - 1)
        case ast.Constant(value=float(value)):
            yield _with(node, value=value * 2 + 1)
        case ast.Constant(value=str(value)):
            yield _with(node, value=f"XX{value}")
        case ast.Call(keywords=keywords) if not _is_text(node, "keywords"):
            for i, keyword in enumerate(keywords):
                if keyword.arg is not None and keyword.arg not in UNTRIED:
                    yield _with(node, keywords=[*keywords[:i], *keywords[i + 1 :]])


def _swaps(op: ast.AST) -> list[Any]:
    return [getattr(ast, name)() for name in SWAPS.get(type(op).__name__, [])]


def _with(node: Any, **changed: Any) -> Any:
    node = copy.copy(node)
    for field, value in changed.items():
        setattr(node, field, value)
    return node


class Changed(SourceFileLoader):
    """Finds and loads one module, from a tree and not from its file."""

    tree: ast.Module

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.tree, self.path, "exec")
        return code


class Watch:
    """A plugin of pytest that notes which tests run which lines of a file.

    A function that has run ENOUGH lines in a test without a new one is not watched any further
    there, or loops would take minutes. A line that it misses so is tried on all tests.
    """

    ENOUGH = 20_000

    def __init__(self, path: str) -> None:
        self.path, self.test = path, ""
        self.ran: dict[int, list[str]] = {}  # the tests of each line
        self.repeated: Counter[int] = Counter()  # lines of a function since its last new one

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid
        self.repeated.clear()
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = id(frame.f_code)
        if frame.f_code.co_filename != self.path or self.repeated[code] > self.ENOUGH:
            return None
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        tests = self.ran.setdefault(frame.f_lineno, [])
        self.repeated[id(frame.f_code)] += 1
        if self.test not in tests[-1:]:
            tests.append(self.test)
            self.repeated[id(frame.f_code)] = 0
        elif self.repeated[id(frame.f_code)] > self.ENOUGH:
            frame.f_trace_lines = False
        return self._step


class Only:
    """A plugin of pytest that leaves out all but some tests."""

    def __init__(self, tests: list[str]) -> None:
        self.tests = frozenset(tests)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.tests]


class Trial:
    """A copy of the present folder, in which the tests of one file run on its mutants."""

    def __init__(self, file: str, tests: list[str], scratch: Path) -> None:
        self.file, self.tests, self.scratch = file, tests, scratch
        self.root, self.noted = scratch / "tree", scratch / "noted.json"
        left_out = shutil.ignore_patterns(".git", ".venv", ".hypothesis", "*_cache")
        shutil.copytree(Path.cwd(), self.root, symlinks=True, ignore=left_out)
        self.tree = ast.parse((self.root / file).read_text())
        self.ran: dict[int, Only] = {}  # the tests that run a line

    def start(self, tree: ast.Module, *plugins: Watch | Only) -> int:
        """Run the tests in a process of its own; its id. It ends in 0 if all pass."""
        if pid := os.fork():
            return pid
        status = 1
        try:
            os.setsid()
            status = self._run(tree, plugins)
        finally:
            os._exit(status)

    def _run(self, tree: ast.Module, plugins: Sequence[Watch | Only]) -> int:
        temporary = tempfile.mkdtemp(dir=self.scratch)
        os.chmod(temporary, 0o755)  # a test of the superuser's reads as another user
        output = os.open(self.scratch / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        os.chdir(self.root)
        sys.path.insert(0, str(self.root))
        for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
            del sys.modules[name]
        module = self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        loader = Changed(module, str(self.root / self.file))
        loader.tree = tree
        sys.meta_path.insert(0, loader)
        import pytest

        options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider"]
        status = 0
        for test in self.tests:
            status = int(
                pytest.main([*options, f"--basetemp={temporary}/pytest", test], [*plugins])
            )
            if status == pytest.ExitCode.NO_TESTS_COLLECTED:  # all of this file are left out
                status = 0
            if status:
                break
        for watch in plugins:
            if isinstance(watch, Watch):
                sys.settrace(None)
                noted = {"modules": list(sys.modules), "ran": list(watch.ran.items())}
                self.noted.write_text(json.dumps(noted))
        shutil.rmtree(temporary, ignore_errors=True)
        return status

    def first(self) -> bool:
        """Run the tests without a mutant. Whether all pass; then it is known what each runs."""
        _, status = os.waitpid(self.start(self.tree, Watch(str(self.root / self.file))), 0)
        if status == 0:
            noted = json.loads(self.noted.read_text())
            self.ran = {line: Only(tests) for line, tests in noted["ran"]}
            self._preload(noted["modules"])
        return status == 0

    def _preload(self, names: list[str]) -> None:
        """Import what the tests import from elsewhere, so that every process begins with it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in names:
                top = self.root / name.split(".")[0]
                if not top.exists() and not top.with_suffix(".py").exists():
                    with contextlib.suppress(Exception):
                        importlib.import_module(name)

    def results(
        self, chosen: list[Mutant], limit: float, jobs: int
    ) -> Iterator[tuple[Mutant, str]]:
        """Each mutant with "killed", "timed out" or "survived"."""
        waiting = [(mutant, self.ran.get(mutant.line)) for mutant in reversed(chosen)]
        running: dict[int, tuple[Mutant, Only | None, float]] = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant, only = waiting.pop()
                pid = self.start(mutant.planted(self.tree), *([only] if only else []))
                running[pid] = mutant, only, time.monotonic()
            time.sleep(0.02)
            for pid, (mutant, only, began) in list(running.items()):
                late = time.monotonic() - began > limit
                if late:
                    os.killpg(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
                if ended:
                    del running[pid]
                    if only and not status and not late:
                        waiting.append((mutant, None))
                    else:
                        yield mutant, "timed out" if late else "killed" if status else "survived"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="such as minise/layout.py; run it in the repository root")
    parser.add_argument("--mutants", type=int, default=50, help="how many, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", help="the files of tests, in place of the table's")
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at the same time")
    parser.add_argument("--limit", type=float, help="seconds for a mutant; 60, or the first run's")
    parser.add_argument("--record", help="keep the result in this file")
    parser.add_argument("--again", action="store_true", help="only those that survived in --record")
    args = parser.parse_args(arguments)
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    old = None
    if args.again:
        old = mutation_record.read(args.record).get(args.file) if args.record else None
        if old is None or old["sha256"] != mutation_record.digest(args.file):
            print(f"--record has no {args.file} as it is now; leave out --again", file=sys.stderr)
            return 2
        args.seed, args.mutants = old["seed"], old["tried"]
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        os.chmod(scratch, 0o755)  # as `temporary` in Trial
        trial = Trial(args.file, args.tests or tests_of(args.file), Path(scratch))
        entry = tried(trial, args, old)
    if entry is None:
        return 2
    if args.record:
        mutation_record.write(args.record, entry)
    survivors = len(entry["survivors"])
    print(
        f"{args.file}: {entry['tried']} of {entry['mutants']} mutants, seed {args.seed}: "
        f"{entry['killed']} killed, {entry['timed_out']} timed out, {survivors} survived "
        f"({1 - survivors / entry['tried']:.0%} noticed)"
    )
    return 0


def tried(trial: Trial, args: argparse.Namespace, old: Entry | None) -> Entry | None:
    """Try the mutants: the entry of the record. None if the tests fail without a mutant. `old`: the
    entry so far, of which only the survivors are tried."""
    sha256 = mutation_record.digest(trial.root / trial.file)
    every = mutants(trial.tree)
    chosen = random.Random(args.seed).sample(every, min(args.mutants, len(every)))
    count = {"killed": 0, "timed out": 0, "survived": 0}
    waiting = chosen
    survivors: list[dict[str, Any]] = []
    if old is not None:
        count |= {"killed": old["killed"], "timed out": old["timed_out"]}
        alive = {(each["line"], each["column"], each["change"]) for each in old["survivors"]}
        waiting = [x for x in chosen if (x.line, x.column, x.description) in alive]
    began = time.monotonic()
    if not trial.first():
        print((trial.scratch / "output").read_text()[-2000:], file=sys.stderr)
        print("the tests fail without a mutant", file=sys.stderr)
        return None
    # Noting the lines makes the first run several times slower than a mutant's.
    limit = args.limit or max(60.0, time.monotonic() - began)
    lines = (trial.root / trial.file).read_text().splitlines()
    for mutant, result in trial.results(waiting, limit, args.jobs):
        count[result] += 1
        if result == "survived":
            print(f"survived  {trial.file}:{mutant.line}  {mutant.description}", flush=True)
            where = {"line": mutant.line, "column": mutant.column}
            code = lines[mutant.line - 1].strip()
            survivors.append({**where, "code": code, "change": mutant.description})
    return {
        "file": trial.file,
        "sha256": sha256,
        "mutants": len(every),
        "tried": len(chosen),
        "killed": count["killed"],
        "timed_out": count["timed out"],
        "seed": args.seed,
        "survivors": sorted(survivors, key=lambda each: (each["line"], each["column"])),
    }


def tests_of(file: str) -> list[str]:
    """The test files for a file, in the order in which they run."""
    key = file.removeprefix("minise/").removesuffix(".py")
    mirrored = key if "/" in key else f"core/{key}"
    own = f"{mirrored} methods/registry" if key.startswith("methods/") else mirrored
    names = TESTS.get(key, own).split()
    named = [f"tests/{room}/test_{name}.py" for room, name in (x.split("/") for x in names)]
    return named if all(map(os.path.exists, named)) else ["tests"]


if __name__ == "__main__":
    sys.exit(main())
