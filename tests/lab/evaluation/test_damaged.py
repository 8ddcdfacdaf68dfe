"""Whatever the files of a run's folder hold: report and eval are done, or refuse it in one line."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="evaluations need the extra [eval]")
pytest.importorskip("hypothesis", reason="it draws the damage; the extra [test] has it")
pytest.importorskip("resource", reason="limits of POSIX")

from hypothesis import given
from hypothesis import strategies as st

from minise.commands.cli import main
from tests.lab.claims.test_readers import VALUES, bounded, broken
from tests.reference.support.cases import cases
from tests.reference.support.commands import assert_one_line, run
from tools.faults import GONE, places_in, with_value

Capture = pytest.CaptureFixture[str]
METHODS = "standard,self-ensemble,vector-scaling(folds=2),first-trials(trials=1)"
METHODS += ",cot(max_new_tokens=2)"
EVAL = ["eval", "--task", "miniature", "--limit", "4", "--cut-to", "4", "--trials", "2"]
EVAL += ["--group-size", "2", "--method", METHODS, "-o"]
STANDARD = "samples-miniature-k4-standard.jsonl"
ENSEMBLE = "samples-miniature-k4-self-ensemble.jsonl"
TEXTS = "texts-miniature-k4-cot(max_new_tokens=2).jsonl"
MARK = "samples-miniature-k4-standard.left-out"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run. Tests only read it."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*EVAL, str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minise.lab.evaluation.metrics.RESAMPLES", 2)


# States by hand


Damage = Callable[[Path], object]


def folder_at(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return damage


def link_at(name: str) -> Damage:
    """A link that leads nowhere."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(folder / "nowhere" / "absent")

    return damage


def content_of(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def value_at(place: str, value: Any) -> Damage:
    """Another value in run.json, at a place such as "tasks/words/hash"."""

    def damage(folder: Path) -> None:
        whole = json.loads((folder / "run.json").read_bytes())
        *holders, name = place.split("/")
        holder = whole
        for one in holders:
            holder = holder[one]
        holder[name] = value
        (folder / "run.json").write_text(json.dumps(whole))

    return damage


FITTED = "tasks/miniature-k4/methods/vector-scaling(folds=2)"
BOTH = {
    "run.json is cut": (content_of("run.json", b'{"tasks": {'), "run.json: it is no JSON"),
    "run.json is empty": (content_of("run.json", b""), "run.json: it is no JSON"),
    "run.json is an empty object": (content_of("run.json", b"{}"), "run.json: tasks is missing"),
    "run.json is nested deep": (content_of("run.json", b"[" * 99_999), "run.json: it is no JSON"),
    "run.json is a folder": (folder_at("run.json"), "run.json: is no file"),
    "no shards": (value_at("shards", None), "shards is null"),
    "shards below 0": (value_at("shards", -1), "shards is -1"),
    "very many shards": (value_at("shards", 10**9), "shards is 1000000000"),
    "very many questions": (value_at("tasks/miniature-k4/questions", 10**30), "questions is 1"),
    "a number that JSON has not": (value_at("limit", float("inf")), "run.json: it is no JSON"),
    "a key is no text": (value_at(f"{FITTED}/settings/\ud800", 1), "run.json: after "),
    "answers are a folder": (folder_at(STANDARD), f"{STANDARD}: is no file"),
    "answers are a link to nowhere": (link_at(STANDARD), f"{STANDARD}: is no file"),
    "a mark is a folder": (folder_at(MARK), f"{MARK}: is no file"),
    "a mark is a link to nowhere": (link_at(MARK), f"{MARK}: is no file"),
}
REPORT = {
    "a mark is empty": (content_of(MARK, b""), f"{MARK}: does not say why"),
    "a mark is no text": (content_of(MARK, b"\xff\0"), f"{MARK}: does not say why"),
    "no such method": (value_at(f"{FITTED}/text", "nothing"), 'method "nothing" is unknown'),
    "code that nobody named": (
        value_at(f"{FITTED}/text", "./evil.py:Evil"),
        "if you trust it, name it too: minise report --method",
    ),
    "a method that is not fitted": (value_at(f"{FITTED}/text", "standard"), "is not fitted"),
    "a name that no file can have": (value_at(f"{FITTED[:-10]}\0", {}), "the name of a file"),
}
EVAL_ONLY = {
    "texts are a folder": (folder_at(TEXTS), f"{TEXTS}: is no file"),
    "texts are a link to nowhere": (link_at(TEXTS), f"{TEXTS}: is no file"),
    "texts nested deep": (content_of(TEXTS, b"[" * 99_999 + b"\n"), "line 1: it is no JSON"),
    "a key of texts is no text": (content_of(TEXTS, b'{"\\ud800": 1}\n'), "line 1: after "),
    "no texts": (content_of(TEXTS, b"{}\n"), "line 1: block is missing"),
}


def cases_of(command: str, states: dict[str, tuple[Damage, str]]) -> list[Any]:
    found = []
    for name, (damage, named) in states.items():
        found.append(pytest.param(command, damage, named, id=f"{command}-{name}"))
    return found


@pytest.mark.parametrize(
    ("command", "damage", "named"),
    [
        *cases_of("report", BOTH | REPORT),
        *cases_of("eval", BOTH | EVAL_ONLY),
    ],
)
def test_what_is_no_run_is_refused_by_its_name(
    command: str, damage: Damage, named: str, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    damage(folder)
    status, out, err = run(capsys, *(EVAL if command == "eval" else ["report"]), folder)
    assert_one_line(status, out, err, [str(folder), named])


def test_code_that_only_a_folder_names_is_run_by_no_report(
    whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    mark = tmp_path / "it-ran"
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from pathlib import Path\n"
        "from minise.lab.methods.calibration import VectorScaling\n"
        f"Path({str(mark)!r}).touch()\n"
        "class Mine(VectorScaling):\n    pass\n"
    )
    value_at(f"{FITTED}/text", f"{mine}:Mine")(folder)
    assert run(capsys, "report", folder)[0] == 2
    assert not mark.exists()
    assert run(capsys, "report", folder, "--method", f"{mine}:Mine")[0] == 0
    assert mark.exists()


@pytest.mark.parametrize("content", [b"A thesis", b"A thesis\n", b"{}", b'{"id": "another"'])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_is_not_the_runs_is_not_cut(
    content: bytes, is_link: bool, tmp_path: Path, capsys: Capture
) -> None:
    other = tmp_path / ("thesis.txt" if is_link else f"run/{STANDARD}")
    (tmp_path / "run").mkdir()
    other.write_bytes(content)
    if is_link:
        (tmp_path / "run" / STANDARD).symlink_to(other)
    status, out, err = run(capsys, *EVAL, tmp_path / "run")
    assert_one_line(status, out, err, [STANDARD])
    assert other.read_bytes() == content


def test_texts_of_other_questions_are_not_taken_for_those_of_a_block(
    whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    """Questions without a text were left out of the block."""
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    block = json.loads((folder / TEXTS).read_bytes())
    block["texts"].pop()
    (folder / TEXTS).write_text(json.dumps(block) + "\n")
    (folder / TEXTS.replace("texts", "samples")).unlink()
    status, out, err = run(capsys, *EVAL, folder)
    assert_one_line(status, out, err, [TEXTS, "has 3 texts, and 4 questions"])


@pytest.mark.parametrize("name", ["file", "file/inside", "x" * 5000, "\0"])
def test_a_place_where_no_folder_can_be_is_refused(
    name: str, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / name
    assert_one_line(*run(capsys, "report", place), [])
    if name != "\0":
        assert_one_line(*run(capsys, "report", whole, "-o", place), [])
        assert_one_line(*run(capsys, *EVAL, place), [])


@pytest.mark.skipif(sys.platform == "darwin", reason="there every name of a file is UTF-8")
def test_a_file_whose_name_is_no_text_is_refused_before_a_question_is_asked(
    tmp_path: Path, capsys: Capture
) -> None:
    questions = tmp_path / os.fsdecode(b"mine\xff.jsonl")
    questions.write_text('{"question": "Up?", "choices": ["yes", "no"], "answer": 0}\n')
    model = ["--model", Path("weights/tiny-llama").resolve()]  # by another name than by default
    words = ["eval", "--task", str(questions), "--method", "standard", *model, "-o"]
    assert_one_line(*run(capsys, *words, tmp_path / "run"), ["the names in run.json", "mine"])
    assert not (tmp_path / "run").exists()


# States that are drawn


ODD = st.sampled_from([10**20, 1e300, [1e300] * 4, [0] * 4, [None] * 4, [True] * 4, ["a"] * 4])


def changed(draw: st.DrawFn, value: Any) -> Any:
    """The value with another one at any place, or without it."""
    value = deepcopy(value)
    place = draw(st.sampled_from(places_in(value)))
    other = draw(VALUES | ODD) if draw(st.integers(0, 7)) else GONE
    return with_value(value, place, other)


def damaged(draw: st.DrawFn, name: str, content: bytes) -> bytes:
    """Another content of a file of JSON, or of lines of JSON: values are changed, then bytes."""
    lines = [content] if name == "run.json" else content.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    value = json.loads(lines[number])
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
        value = changed(draw, value)
    lines[number] = json.dumps(value).encode()
    content = b"\n".join(lines) + b"\n"
    return broken(draw, content) if draw(st.booleans()) else content


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("report", "run.json"),
        ("report", STANDARD),
        ("report", ENSEMBLE),
        ("eval", "run.json"),
        ("eval", ENSEMBLE),
        ("eval", TEXTS),
    ],
)
@cases(8)
@given(data=st.data())
def test_a_damaged_folder_is_read_or_refused_in_one_line(
    command: str, name: str, data: st.DataObject, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    shutil.copytree(whole, folder)
    content = damaged(data.draw, name, (whole / name).read_bytes())
    (folder / name).write_bytes(content)
    words = ["report"] if command == "report" else EVAL
    with bounded():
        status, out, err = run(capsys, *words, folder)
    assert status in (0, 2)
    if status == 2:
        assert_one_line(status, out, err, [])
        assert "memory" not in err.lower()
    else:
        assert out != ""
        for line in err.splitlines():
            assert line.startswith("minise: left out: ")
    for path in folder.iterdir():
        path.unlink()
