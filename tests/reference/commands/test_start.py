"""How a command starts and ends: what it imports, closed and full streams, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from minise.commands.cli import COMMANDS

ROOT = Path(__file__).parents[3]
MINISE = [sys.executable, "-m", "minise"]
HEAVY = {"torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "huggingface_hub"}
EXTRAS = HEAVY - {"torch", "numpy"}
only_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and streams of POSIX")


def imported_by(code: str, without: tuple[str, ...] = ()) -> set[str]:
    """The modules that are there after this code, where some packages are not installed."""
    missing = f"import sys\nsys.modules.update(dict.fromkeys({without}))\n"
    report = "\nprint('\\n', *(name for name in sys.modules if sys.modules[name]))"
    done = subprocess.run(
        [sys.executable, "-c", missing + code + report],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.splitlines()[-1].split())


def ours(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.partition(".")[0] == "minise")


MAIN = "import minise.__main__ as start\nassert start.main({words!r}) == 0"


@pytest.mark.lab
def test_help_does_not_wait_for_heavy_packages() -> None:
    words = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    code = "\n".join(MAIN.format(words=one) for one in words)
    modules = imported_by(code)
    assert not {name.partition(".")[0] for name in modules} & HEAVY


def test_ask_imports_few_files_and_needs_no_extra() -> None:
    """A reader of the shipped code follows one question through these files."""
    code = MAIN.format(words=["ask", "--trials", "1"])
    modules = imported_by(code, without=tuple(sorted(EXTRAS)))
    assert len(ours(modules)) <= 35, ours(modules)
    assert not {name.partition(".")[0] for name in modules} & EXTRAS
    assert "torch._dynamo" not in modules  # the compiler, a second of its own


def test_import_minise_imports_few_files() -> None:
    assert len(ours(imported_by("import minise"))) <= 12


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says it so")
def test_memory_does_not_grow_with_each_new_number_of_rows() -> None:
    """Where the CPU multiplies bfloat16, a kernel is kept for each, half a megabyte in size."""
    code = (
        "import minise.__main__\n"
        "import re, torch\n"
        "from pathlib import Path\n"
        "torch.set_num_threads(1)\n"
        "def resident():\n"
        "    return int(re.search(r'VmRSS:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "wide = torch.nn.Linear(512, 1024, dtype=torch.bfloat16)\n"
        "narrow = torch.nn.Linear(1024, 512, dtype=torch.bfloat16)\n"
        "with torch.inference_mode():\n"
        "    for rows in range(40, 240):\n"
        "        narrow(wide(torch.ones(rows, 512, dtype=torch.bfloat16)))\n"
        "        before = resident() if rows == 80 else before if rows > 80 else 0\n"
        "print((resident() - before) // 1024)"
    )
    free = {name: value for name, value in os.environ.items() if not name.endswith("_CAPACITY")}
    out = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=free)
    assert int(out) < 30  # megabytes; without the limit 214


def shell(line: str) -> tuple[int, str, str]:
    """What a shell's command does, with MINISE as the program."""
    command = line.replace("MINISE", f'"{sys.executable}" -m minise')
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@only_posix
@pytest.mark.parametrize(
    ("line", "status", "named"),
    [
        ("MINISE ask --help > /dev/full", 2, "No space left on device"),
        ("MINISE ask --trials 1 > /dev/full", 2, "No space left on device"),
        ("MINISE ask --trials 1 >&-", 2, "standard output is closed"),
        ("MINISE ask --trials 1 --file - 0>&-", 2, "-"),
        ("MINISE --version 2>&-", 0, None),
        ("MINISE ask --nonsense 2>/dev/null", 2, None),
        ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 MINISE ask --question é", 2, "the locale"),
        # 141 is the status of what a shell ends by SIGPIPE; `sleep` lets the reader go first.
        ("(sleep 0.3; MINISE ask --help; echo $? >&2) | true", 0, "141"),
    ],
)
def test_closed_and_full_streams_are_one_line(line: str, status: int, named: str | None) -> None:
    code, _, err = shell(line)
    assert code == status
    assert err.count("\n") == (named is not None)
    assert (named or "") in err


def interrupted(seconds: float, patience: float, **kinds: object) -> tuple[int, str, str]:
    """What a long command does after Ctrl-C at this instant; -1 if it still runs after `patience`
    seconds."""
    process = subprocess.Popen(
        [*MINISE, "ask", "--trials", "5000"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Where the tests run in the background of a shell, they ignore it, and so would this.
        preexec_fn=partial(signal.signal, signal.SIGINT, kinds.get("as_found", signal.SIG_DFL)),
    )  # fmt: skip
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        return -1, *process.communicate()
    return process.returncode, out, err


@only_posix
@pytest.mark.parametrize("seconds", [0.5, 1.3, 3.0])
def test_ctrl_c_ends_a_command_at_any_instant_with_one_line(seconds: float) -> None:
    """While it imports, loads or asks: no traceback, and no exception that gets lost."""
    assert interrupted(seconds, patience=60) == (130, "", "minise: stopped\n")


@only_posix
def test_ctrl_c_that_was_ignored_at_the_start_stays_ignored() -> None:
    """As `nohup` and the `&` of a shell need it."""
    assert interrupted(0.5, patience=0.5, as_found=signal.SIG_IGN) == (-1, "", "")
