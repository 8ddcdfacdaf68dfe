"""The README's commands and example, run; and whatever README, docs and cards name."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType

import pytest

from minise.by_name import COMMANDS
from minise.commands import cli
from minise.commands.cli import main
from tests.lab.support.borrowed import borrow

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("weights/*/README.md"),
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "minise"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def borrowed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This environment's packages, minise itself left out, as a path for another environment: so
    that install.py finds torch there instead of unpacking it once more."""
    return str(borrow(tmp_path_factory.mktemp("borrowed")))


def paste(block: str, clone: Path, borrowed: str, **environment: str) -> str:
    """Paste a block into a shell at the root of the clone; what a person would see."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("VIRTUAL_ENV", "PYTHONHOME", "PYTEST_ADDOPTS")
        and not name.startswith("PYTEST")
    }
    # The interpreter that runs the tests is the newcomer's python3.
    variables["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).resolve().parent), variables["PATH"]]
    )
    done = subprocess.run(
        ["sh", "-e", "-c", block],
        cwd=clone, env={**variables, "PYTHONPATH": borrowed, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_the_first_command_answers_a_real_question(clone: Path, borrowed: str) -> None:
    shown = paste(BLOCKS[0], clone, borrowed)
    assert "What is the capital of Canada?" in shown
    assert "\nStandard inference answers: Kingston (wrong)\n" in shown
    assert "\nSelf-Ensemble answers: Ottawa (right)\n" in shown


@pytest.mark.slow
def test_the_second_command_passes_the_tests(clone: Path, borrowed: str) -> None:
    """Of the suite only one file, or this test would run itself."""
    shown = paste(BLOCKS[1], clone, borrowed, PYTEST_ADDOPTS="tests/reference/core/test_layout.py")
    assert re.search(r"\b\d+ passed", shown)
    assert "failed" not in shown


def test_no_command_of_the_readme_has_a_place_to_fill_in() -> None:
    """<this repository> cannot be pasted."""
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    code = [*BLOCKS, *re.findall(r"`[^`\n]+`", text)]
    assert len(code) > 30
    assert [part for part in code if re.search("<[a-z]", part)] == []


def test_the_drawing_of_the_mask_is_what_the_program_draws() -> None:
    drawn = subprocess.run(
        [sys.executable, "-m", "tools.draw_mask"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    ).stdout  # fmt: skip
    assert drawn.strip() in (ROOT / "docs/reading.md").read_text("utf-8")


def test_the_answer_in_the_readme_is_what_ask_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask"]) == 0
    shown = capsys.readouterr().out.strip()
    start = README.index(shown.split("\n")[0])
    quoted = README[start : README.index("```", start)].strip().removesuffix("\n...")
    shown = "\n".join(shown.split("\n")[: quoted.count("\n") + 1])  # README shows its beginning
    percent = r"([\d.]+)%[ █]*"  # another machine may round the last digit otherwise
    assert re.sub(percent, "%", shown) == re.sub(percent, "%", quoted)
    in_readme, printed = ([float(p) for p in re.findall(percent, text)] for text in (quoted, shown))
    assert printed == pytest.approx(in_readme, abs=0.2)


def test_the_python_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)[0]
    monkeypatch.chdir(ROOT)
    exec(example, {})


def test_the_files_that_are_listed_are_those_that_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every function that runs between the command and the printed answer stands in one of them,
    but for those that read the command line or the checkpoint."""
    package = ROOT / "minise"
    ran = set()

    def keep(frame: FrameType, event: str, argument: object) -> None:
        ran.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(keep)
    try:
        assert main(["ask"]) == 0
    finally:
        sys.setprofile(before)
    assert "Ottawa (right)" in capsys.readouterr().out
    files = {Path(name).relative_to(package) for name in ran if Path(name).is_relative_to(package)}
    answering = {path.as_posix() for path in files if path.parts[0] not in ("commands", "loading")}
    section = README[README.index("## Read it") : README.index("## What was seen")]
    listed = set(re.findall(r"`(\w+\.py)`", section))
    # by_name.py finds the module of the command.
    assert answering - {"__init__.py", "by_name.py"} <= listed
    assert {"layout.py", "model.py", "attention.py", "engines.py", "method.py"} <= answering


def test_the_stated_number_of_lines_of_the_core_is_right() -> None:
    section = README[README.index("## Read it") : README.index("(`errors.py`")]
    names = set(re.findall(r"`(\w+\.py)`", section))
    lines = dict.fromkeys(names, 0)
    for name in names:
        text = (ROOT / "minise" / name).read_text("utf-8")
        lines[name] = sum(bool(line.strip()) for line in text.splitlines())
    definition = lines.pop("definition.py")
    stated = [int(n.replace(",", "")) for n in re.findall(r"about ([\d,]+) lines", section)]
    assert stated == pytest.approx([definition, sum(lines.values())], abs=20)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    top = "minise|tests|tools|docs|weights"
    named: list[Path] = []
    for code in code_of(text):
        for name in re.findall(rf"(?<![\w./:-])((?:{top})/[\w./*{{}},$-]+)", code):
            if not re.search("[*{$]", name):  # a pattern
                named.append(ROOT / name.rstrip(".,}"))
    named += [
        page.parent / name for name in re.findall(r"\]\((?!https?:|live\.html)([^)#]+)", text)
    ]
    if page.name == "README.md" and page.parent == ROOT:
        # "Read it" names files by their names alone.
        start = text.index("## Read it")
        rows = re.findall(r"`(\w+\.py)`", text[start : text.index("\n## ", start)])
        assert len(rows) > 12
        named += [ROOT / "minise" / name for name in rows]
    assert named or page.name == "api.md"
    for path in named:
        if path != ROOT / "minise/self_ensemble":  # a task's name of inspect_ai
            assert path.exists(), path


def code_of(text: str) -> list[str]:
    """All code of a page: its blocks, and what stands between backticks outside of them."""
    block = r"^```.*?^```"
    outside = re.sub(block, "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(block, text, flags=re.MULTILINE | re.DOTALL)
    return [*blocks, *re.findall(r"`[^`]+`", outside)]


def test_every_command_that_a_page_names_can_be_parsed() -> None:
    """Options and their values are checked by the parser itself, as a shell would pass them."""
    names = "ask|explain|verify|eval|report|check|decide"
    commands = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        on_page = re.findall(rf"`(minise (?:{names})\b[^`]*)`", text)  # also over the end of a line
        on_page += re.findall(r"^(minise .*)$", text, flags=re.MULTILINE)
        on_page += re.findall(r"^python -m tools\.studies( eval .*)$", text, flags=re.MULTILINE)
        commands += [(page, command) for command in on_page]
    assert len(commands) > 25
    for page, command in commands:
        arguments = shlex.split(command.removeprefix("minise"))
        assert arguments[0] in COMMANDS, (page, command)
        if arguments[1:] not in ([], ["--help"]) and "..." not in arguments:
            module = import_module(COMMANDS[arguments[0]][0])
            cli.parse(arguments[0], module.__doc__, module.Options, arguments[1:])
