"""The command line: a dataclass becomes a parser, and what is unusable is refused in one line."""

import errno
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import pytest

import minise
from minise.by_name import COMMANDS, is_here
from minise.commands.options import ModelOptions, Option
from minise.errors import InputError

Q = ("--question", "Which is a bird?", "--choice", "wren", "--choice", "trout")
MORE = tuple(word for i in range(26) for word in ("--choice", f"other {i}"))
LONG = "\x1b[31m" + "x" * 50_000 + "\x9b\ud800\r\n"


@pytest.mark.lab
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("guess", '"guess"'),
        ("ask --frobnicate", "--frobnicate"),
        ("ask --modle x", "--model"),  # what was meant
        ("ask --tri 5", "--tri"),  # no abbreviations
        ("ask Up? yes no", "Up?"),
        ("ask --trials", "--trials"),
        ("ask --trials many", "many"),
        ("ask --trials 0", "--trials"),
        ("ask --trials 1000000000", "1000000000"),
        ("ask --group-size 0", "--group-size"),
        ("ask --threads 0", "--threads"),
        ("ask --engine fast", "fast"),
        ("ask --dtype int8", "int8"),
        ("ask --quantize int4", "int4"),
        ("ask --device nonsense", "nonsense"),
        ("ask --grouping guess", '"guess"'),
        ("ask --method guess", '"guess"'),
        ("ask --method self-ensemble(guess=1)", '"guess"'),
        ("ask --method vector-scaling", "vector-scaling"),
        ("ask --method ./no/such.py:Mine", "no/such.py"),
        ("ask --model ./no/such/folder", "no/such/folder"),
        ("ask --model weights/tiny-llama --revision main", "revision"),
        ("ask --file no/such.json", "no/such.json"),
        ("ask --file x.json --choice a", "--file"),
        ("ask --choice a", "--question"),
        (("ask", "--question", "Why?"), "0 choices"),
        (("ask", "--question", "Why?", "--choice", "a"), "1 choice"),
        (("ask", "--question", "", "--choice", "a", "--choice", "b"), "question"),
        (("ask", *Q, *MORE[:14], "--grouping", "exact", "--group-size", "7"), "groups"),
        (("ask", *Q, "--choice", ""), "choice 3"),
        (("ask", *Q, "--choice", "\udcff"), "choice 3"),
        (("ask", *Q, *["--choice", "x"] * 1000), "1002"),
        (("ask", *Q, *MORE, "--group-size", "28"), "26"),
        (("ask", "--question", "x " * 10_000, *Q[2:], "--choice", "b"), "positions"),
    ],
)
def test_unusable_words_are_refused_in_a_line_that_names_them(refused, words, named: str) -> None:
    assert named in refused(*(words.split() if isinstance(words, str) else words))


@pytest.mark.lab
@pytest.mark.parametrize(
    "words",
    [
        [LONG],
        ["ask", LONG],
        *(["ask", option, LONG] for option in ("--trials", "--engine", "--file", "--model")),
        *(["ask", option, LONG] for option in ("--grouping", "--method", "--device", LONG)),
        ["ask", "--question", LONG, "--choice", LONG, "--choice", "b"],
    ],
    ids=lambda words: " ".join(words)[:16],
)
def test_a_refusal_is_short_and_no_command_to_the_terminal(refused, words: list[str]) -> None:
    refused(*words)


def test_minise_alone_prints_its_commands(call) -> None:
    """Nothing was asked, so nothing is wrong: status 0."""
    status, out, err = call()
    assert (status, err) == (0, "")
    assert call("--help") == call("-h") == (0, out, "")
    for name, (module, _) in COMMANDS.items():
        assert (f"\n  {name} " in out) == is_here(module)


def test_version_is_that_of_the_package(call) -> None:
    assert call("--version") == (0, f"minise {minise.__version__}\n", "")


@pytest.mark.lab
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen_and_has_an_example(call, monkeypatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = call(name, "--help")
    assert (status, err) == (0, "")
    assert out == call(name, "-h")[1]
    assert f"example: minise {name} " in out
    assert out.count("\n") <= 50


# A command of another room, as it plugs in: a module, and a line of the table.


@dataclass(frozen=True, kw_only=True)
class Options(ModelOptions):
    tasks: Annotated[tuple[str, ...], Option("what to do", "TASK...", positional=True)]
    output: Annotated[Path, Option("a folder", "DIR", short="-o")]
    limit: Annotated[int | None, Option("how many", min=1)] = None
    seed: Annotated[int, Option("any number")] = 0
    rate: Annotated[float, Option("how often")] = 0.5
    form: Annotated[Literal["long", "short"] | None, Option("how")] = None
    shard: Annotated[tuple[int, ...], Option("which")] = (1, 2)
    dry_run: Annotated[bool, Option("do nothing")] = False


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options with which the command `plug` was run."""
    seen: list[Options] = []

    def run(options: Options) -> int:
        seen.append(options)
        return 1

    module = ModuleType("minise.commands.plug", "Do a thing.\n\nexample: minise plug x -o y\n")
    module.Options, module.run = Options, run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(COMMANDS, "plug", (module.__name__, "do a thing"))
    return seen


def test_a_dataclass_is_a_parser(call, plugged: list[Options]) -> None:
    words = "a b -o there --limit 3 --seed -5 --rate 1e-3 --form long --shard 4 --shard 5 --dry-run"
    assert call("plug", *words.split(), "--model", "m") == (1, "", "")
    assert call("plug", "a", "--output=x") == (1, "", "")
    assert plugged == [
        Options(
            tasks=("a", "b"), output=Path("there"), limit=3, seed=-5, rate=0.001, form="long",
            shard=(4, 5), dry_run=True, model="m",
        ),
        Options(tasks=("a",), output=Path("x")),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("", "TASK"),
        ("a", "--output"),
        ("a -o x --limit 0", "--limit"),
        ("a -o x --rate often", "often"),
        ("a -o x --form wide", "wide"),
        ("a -o x --dry-run=yes", "--dry-run"),
        ("a -o x --fomr long", "--form"),
    ],
)
def test_a_parser_refuses_what_no_field_can_hold(refused, plugged, words, named) -> None:
    assert named in refused("plug", *words.split())
    assert plugged == []


def test_the_help_of_a_dataclass_has_its_own_options_first_and_the_defaults(call, plugged) -> None:
    _, out, _ = call("plug", "--help")
    assert out.startswith("Usage: minise plug [OPTIONS] TASK...\n\n  Do a thing.\n")
    assert out.index("--output") < out.index("--dry-run") < out.index("--model")
    assert "[default: 0.5]" in out
    assert "example: minise plug x -o y" in out


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the next command fail while it works."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("minise.commands.ask.load_model", fail)


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (InputError("x.json: line 3 is\nodd; mend it"), "line 3"),
        (OSError(errno.ENOSPC, "No space left on device", "some/file"), "some/file"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota"),
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to\nallocate 2 GiB."), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: 1 bytes."), "out of memory"),
        (RuntimeError("unable to mmap 8 bytes: Cannot allocate memory (12)"), "out of memory"),
    ],
)
def test_what_a_user_can_mend_is_one_line(refused, monkeypatch, error, named: str) -> None:
    raising(monkeypatch, error)
    assert named in refused("ask")


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), ValueError("a bug"), FileNotFoundError(errno.ENOENT, "a bug")]
)
def test_another_error_keeps_its_traceback(call, monkeypatch, error: Exception) -> None:
    raising(monkeypatch, error)
    with pytest.raises(type(error), match="a bug"):
        call("ask")


@pytest.mark.lab
def test_an_error_in_a_method_of_the_users_own_has_its_traceback(call, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from minise.method import Standard\n"
        "class Mine(Standard):\n"
        "    name = 'mine'\n"
        "    def answer(self, plan, logits):\n"
        "        return 1 // 0\n"
    )
    with pytest.raises(ZeroDivisionError) as caught:
        call("ask", "--method", f"{mine}:Mine")
    assert caught.traceback[-1].path == mine
    mine.write_text(mine.read_text().replace("1 // 0", "super().answer(plan, logits)"))
    done = json.loads(call("ask", "--method", f"{mine}:Mine", "--json")[1])
    standard = json.loads(call("ask", "--method", "standard", "--json")[1])
    assert done == standard | {"method": "mine"}
