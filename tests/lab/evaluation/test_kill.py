"""A run that is killed or cut at any place goes on, and ends with the bits of one that was not: on
the same machine with the same number of threads, without equal bits, too."""

import json
import os
import random
import re
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from minise import LanguageModel, LocalModel
from minise.lab.evaluation.pipeline import ROUND
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.run import evaluate
from minise.lab.files import PARTIAL
from minise.lab.methods.reasoning import ChainOfThought
from minise.lab.methods.writes_first import Start, Written
from tests.lab.evaluation.conftest import lines, some_questions
from tests.lab.support.answers import read_answers

MakeRun = Callable[..., Run]
MANY = ROUND + 4  # questions: more than a block
COT = "cot(max_new_tokens=3)"
METHODS = ("standard", "self-ensemble", COT)


@pytest.fixture(scope="module")
def make_long_run(make_run: MakeRun) -> MakeRun:
    questions = some_questions(MANY)
    return lambda *methods: make_run(*methods, questions=questions)


@pytest.fixture(scope="module")
def unbroken(
    lm: LocalModel, make_long_run: MakeRun, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    evaluate(lm, make_long_run(*METHODS), folder, print)
    return folder


def without_seconds(path: Path) -> bytes:
    """The bytes of a file, but for what depends on the clock."""
    return re.sub(rb'"seconds": [^,}]+', b"", path.read_bytes())


# Cut at every place


@pytest.mark.parametrize("method", ["standard", "self-ensemble", COT])
def test_a_samples_file_cut_at_every_line_and_within_it_ends_with_the_same_bytes(
    lm: LocalModel, make_long_run: MakeRun, unbroken: Path, tmp_path: Path, method: str
) -> None:
    whole = (unbroken / f"samples-words-{method}.jsonl").read_bytes().splitlines(keepends=True)
    run = make_long_run(method)
    evaluate(lm, run, tmp_path, print)
    path = tmp_path / f"samples-words-{method}.jsonl"
    for kept in range(MANY):
        torn = whole[kept][: 40 * (kept % 2)]  # every second time a part of the next line is left
        path.write_bytes(b"".join(whole[:kept]) + torn)
        evaluate(lm, run, tmp_path, print)
        assert without_seconds(path) == without_seconds(unbroken / path.name), kept


def test_more_than_one_pass_and_more_than_one_question_in_a_pass_are_cut_above(
    lm: LocalModel, make_long_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If not, the test above would show little."""
    passes: list[int] = []
    logits = LocalModel.logits

    def counted(self: LocalModel, prompts: Any) -> Any:
        passes.append(len(prompts.branches))
        return logits(self, prompts)

    monkeypatch.setattr(LocalModel, "logits", counted)
    evaluate(lm, make_long_run("standard"), tmp_path, print)
    assert len(passes) > 2
    assert max(passes) > 1


# Texts


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts the model has written at once, in each of its calls."""
    calls: list[int] = []
    write = ChainOfThought.write

    def counted(self: ChainOfThought, lm: LanguageModel, starts: Sequence[Start]) -> list[Written]:
        calls.append(len(starts))
        return write(self, lm, starts)

    monkeypatch.setattr(ChainOfThought, "write", counted)
    return calls


def test_the_texts_of_a_block_are_kept_and_not_written_again(
    lm: LocalModel, make_long_run: MakeRun, unbroken: Path, tmp_path: Path, written: list[int]
) -> None:
    folder = Path(shutil.copytree(unbroken, tmp_path / "run"))
    texts = folder / f"texts-words-{COT}.jsonl"
    before = texts.read_bytes()
    assert before.count(b"\n") == 2  # a line for each block
    samples = folder / f"samples-words-{COT}.jsonl"
    for kept in (0, 3, ROUND, ROUND + 1):
        whole = samples.read_bytes().splitlines(keepends=True)
        samples.write_bytes(b"".join(whole[:kept]))
        evaluate(lm, make_long_run(*METHODS), folder, print)
        assert texts.read_bytes() == before
    assert written == []


def test_the_seconds_of_an_answer_have_those_of_its_text(unbroken: Path) -> None:
    texts = []
    for line in (unbroken / f"texts-words-{COT}.jsonl").read_text().splitlines():
        texts.extend(json.loads(line)["texts"])
    rows = read_answers(unbroken / f"samples-words-{COT}.jsonl")
    for row, text in zip(rows, texts, strict=True):
        assert 0 < text["seconds"] < row.seconds


@pytest.mark.parametrize("lost", [1, 2000, 10**9])
def test_a_block_of_texts_cut_while_it_was_written_is_written_again(
    lm: LocalModel,
    make_long_run: MakeRun,
    unbroken: Path,
    tmp_path: Path,
    written: list[int],
    lost: int,
) -> None:
    """lost: bytes at the end: of the last block, of more than that, of all."""
    folder = Path(shutil.copytree(unbroken, tmp_path / "run"))
    texts = folder / f"texts-words-{COT}.jsonl"
    before = texts.read_bytes()
    blocks = without_seconds(texts)
    os.truncate(texts, max(0, len(before) - lost))
    samples = folder / f"samples-words-{COT}.jsonl"
    whole = samples.read_bytes().splitlines(keepends=True)
    left = 0 if texts.read_bytes().count(b"\n") == 0 else ROUND
    samples.write_bytes(b"".join(whole[:left]))
    evaluate(lm, make_long_run(*METHODS), folder, print)
    assert without_seconds(texts) == blocks
    assert without_seconds(samples) == without_seconds(unbroken / samples.name)
    assert written == ([ROUND, MANY - ROUND] if left == 0 else [MANY - ROUND])


def test_the_texts_are_on_the_disk_before_the_first_answer_of_their_block(
    lm: LocalModel, make_long_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    synced = os.fsync
    logits = LocalModel.logits

    def fsync(descriptor: int) -> None:
        synced(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        events.append(name.partition("-")[0])

    def asked(self: LocalModel, prompts: Any) -> Any:
        events.append("asked")
        return logits(self, prompts)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(LocalModel, "logits", asked)
    evaluate(lm, make_long_run(COT), tmp_path, print)
    kept = [number for number, event in enumerate(events) if event == "texts"]
    answered = [number for number, event in enumerate(events) if event == "samples"]
    assert (len(kept), len(answered)) == (2, MANY)
    assert kept[0] < events.index("asked") < answered[0]
    assert answered[ROUND - 1] < kept[1] < answered[ROUND]
    assert "asked" not in events[answered[ROUND - 1] : kept[1]]


# Killed


def test_a_process_killed_at_any_instant_goes_on(
    lm: LocalModel, make_long_run: MakeRun, unbroken: Path, tmp_path: Path
) -> None:
    draw, run = random.Random(0), make_long_run(*METHODS)
    for _ in range(5):
        child = fork(lambda: evaluate(lm, run, tmp_path, print))
        time.sleep(draw.uniform(0, 0.4))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    evaluate(lm, run, tmp_path, print)
    for path in unbroken.glob("samples-*.jsonl"):
        assert without_seconds(tmp_path / path.name) == without_seconds(path)
        assert lines(tmp_path / path.name) == lines(path)
    (texts,) = unbroken.glob("texts-*.jsonl")
    assert without_seconds(tmp_path / texts.name) == without_seconds(texts)


def fork(work: Callable[[], None]) -> int:
    """A process that does the work with what is loaded already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, which the child does not use
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:  # whatever happens, this process is no test
            os._exit(0)
    return child


def test_a_file_half_written_by_a_killed_process_is_removed_by_the_next_run(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    """Those of processes that live, and of other machines, stay."""

    def killed() -> None:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        evaluate(lm, make_run(), tmp_path, print)

    child = fork(killed)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (left,) = tmp_path.glob("*.partial")
    others = [left.with_name(f"{PARTIAL}{os.getppid()}.partial")]
    others.append(left.with_name(f".minise-elsewhere-{child}.partial"))
    for path in others:
        path.touch()
    evaluate(lm, make_run(), tmp_path, print)
    assert set(tmp_path.glob(".*.partial")) == set(others)
