"""How a command starts: what it imports, and which installed packages it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

from minise.commands.cli import COMMANDS

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "safetensors", "huggingface_hub"}
EXTRAS = ("scipy", "sklearn", "matplotlib", "pyarrow")
START = """
import sys
from minise.commands.cli import main
try:
    status = main()
except SystemExit as error:
    status = error.code
"""


def start(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def imported_by(*arguments: str, without: tuple[str, ...] = ()) -> list[str]:
    """The modules that a command has imported at its end, where some are not installed."""
    missing = f"import sys\nsys.modules.update(dict.fromkeys({without}))"
    report = "assert not status, status\nprint('\\n', *(m for m in sys.modules if sys.modules[m]))"
    done = start(f"{missing}\n{START}\n{report}", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], *([command, "--help"] for command in COMMANDS)],
    ids=" ".join,
)
def test_version_and_help_import_no_heavy_package(arguments: list[str]) -> None:
    assert not {module.split(".")[0] for module in imported_by(*arguments)} & HEAVY


def test_ask_needs_no_extra_and_does_not_import_evaluation() -> None:
    imported = imported_by("ask", "--trials", "1", without=EXTRAS)
    assert "minise.method" in imported
    assert not [m for m in imported if m.startswith("minise.evaluation")]
    # Only a hub id needs the hub's library, and only a chat template jinja2.
    assert not {"huggingface_hub", "jinja2"} & {module.split(".")[0] for module in imported}


@pytest.mark.parametrize(
    "arguments", [["eval", "--experiment", "main", "--output-path", "x"], ["report", "x"]]
)
def test_evaluations_say_in_one_line_what_to_install(arguments: list[str]) -> None:
    missing = f"import sys\nsys.modules.update(dict.fromkeys({EXTRAS}))"
    done = start(f"{missing}\n{START}\nsys.exit(status)", *arguments)
    assert done.returncode == 2
    assert "pip install 'minise[eval]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_a_command_imports_is_not_searched_for_garbage() -> None:
    """At exit this would take a third of the time of `ask`. What the command makes is searched."""
    report = (
        "import gc\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 100_000)\n"
        "gc.callbacks.append(lambda *_: print('searched'))\n"
        "rows = [[] for _ in range(100_000)]"
    )
    done = start(f"{START}\n{report}", "ask", "--trials", "1")
    *_, facts, searched = done.stdout[: done.stdout.index("searched") + 8].splitlines()
    assert (facts, searched) == ("True True", "searched"), done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_a_frozen_request(command: str) -> None:
    make = import_module(f"minise.commands.{command}").request
    run = import_module(f"minise.commands.run_{command}").run
    returned, taken = get_type_hints(make)["return"], get_type_hints(run)["request"]
    assert returned is taken
    assert is_dataclass(returned)
    assert returned.__dataclass_params__.frozen  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
    ids=str,
)
def test_waiting_threads_give_up_their_core_soon_unless_the_user_set_how(
    variables: dict[str, str], expected: str
) -> None:
    """Before torch is imported, because then its OpenMP reads it."""
    code = (
        "import os, sys, minise.__main__\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    free = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=free | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
