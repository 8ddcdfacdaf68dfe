"""A run: each answer is on the disk before the next question, and the same command goes on."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minise.engines import LanguageModel, branch_logits
from minise.errors import InputError, Unsuited
from minise.evaluation import run as module
from minise.evaluation.run import Asked, Run, evaluate, read_rows
from minise.layout import shared_length
from minise.method import Plan, SelfEnsemble, Standard, ask
from minise.question import Question
from minise.serving.elsewhere import Elsewhere
from tests.evaluation.conftest import ABOUT, QUESTIONS, lines

MakeRun, Patch = Callable[..., Run], pytest.MonkeyPatch
STANDARD, ENSEMBLE = "samples-words-standard.jsonl", "samples-words-self-ensemble.jsonl"
OWN = "tests/evaluation/test_run.py"


# What a line holds


def test_a_line_holds_the_answer_that_the_method_gives(
    lm: LanguageModel, asked: Asked, finished: Path
) -> None:
    rows = read_rows(finished / ENSEMBLE)
    assert [row["id"] for row in rows] == [question.id for _, question in asked]
    for row, (seed, question) in zip(rows, asked, strict=True):
        answer = ask(lm, SelfEnsemble(2, 3), question, seed)
        assert row["probabilities"] == answer.probabilities.tolist()
        assert row["scores"] == answer.scores.tolist()
        assert row["prediction"] == answer.prediction
        assert row["null"] == pytest.approx(sum(g.null or 0 for g in answer.groups) / 6)
        assert row["tokens"] == SelfEnsemble(2, 3).plan(lm, question, seed).tokens("tree")
        assert (row["answer"], row["cluster"]) == (question.answer, question.cluster)
        assert row["question_hash"] == question.content_hash
        assert row["seconds"] > 0
        assert row["label"] is None
        assert not row.keys() & {"groups", "notes", "question", "choices"}


def test_a_single_prompt_has_its_label_and_logits(finished: Path) -> None:
    for row in read_rows(finished / STANDARD):
        assert row["label"] == row["prediction"] == row["logits"].index(max(row["logits"]))
        softmax = torch.tensor(row["logits"], dtype=torch.float64).softmax(-1)
        assert row["probabilities"] == pytest.approx(softmax.tolist(), abs=1e-12)
        assert row["null"] is None
        assert 0 < row["on_labels"] < 1


def test_a_fitted_method_gets_the_groups_it_needs(
    lm: LanguageModel, make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run("self-ensemble", "first-trials(of=self-ensemble,trials=1)")
    evaluate(lm, run, tmp_path, print)
    assert all(len(row["groups"]) == 6 for row in read_rows(tmp_path / ENSEMBLE))


def test_what_a_model_writes_is_noted_and_its_text_only_where_asked(
    lm: LanguageModel, asked: Asked, make_run: MakeRun, tmp_path: Path
) -> None:
    text = "cot(max_new_tokens=2)"
    for keep in (False, True):
        folder = tmp_path / str(keep)
        evaluate(lm, make_run(text, questions=asked[:1], keep_text=keep), folder, print)
        (row,) = read_rows(folder / f"samples-words-{text}.jsonl")
        assert row["notes"]["new_tokens"] <= 2
        assert ("reasoning" in row["notes"]) == keep


def test_several_questions_in_one_pass_give_equal_bits(
    lm: LanguageModel, make_run: MakeRun, finished: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    for tokens in (0, 150, 10_000):
        monkeypatch.setattr(module, "TOGETHER", tokens)
        evaluate(lm, make_run("standard", "self-ensemble"), tmp_path / str(tokens), print)
        for name in (STANDARD, ENSEMBLE):
            assert lines(tmp_path / str(tokens) / name) == lines(finished / name)


# On a GPU a pass takes eight times as many.
@pytest.mark.parametrize(("device", "most"), [("cpu", 80), ("cuda:0", 10)])
@pytest.mark.parametrize("solved", [(), (Question("A?", ["b", "c"], answer=0),) * 2])
def test_a_pass_takes_questions_until_they_have_so_many_tokens_of_their_own(
    lm: LanguageModel,
    make_run: MakeRun,
    tmp_path: Path,
    monkeypatch: Patch,
    solved: Any,
    device: str,
    most: int,
) -> None:
    def answer(prefix: Any, branches: Any, columns: Any, total: bool) -> torch.Tensor:
        return branch_logits(lm, prefix, branches, "tree", columns, total)

    decoder: Any = Elsewhere(lm.decoder.dtype, device)
    asked = replace(lm, decoder=decoder, elsewhere=answer)
    passes: list[int] = []

    def counted(lm: LanguageModel, plans: Sequence[Plan], *rest: Any, **more: Any) -> Any:
        shared = shared_length([plan.prefix for plan in plans])
        assert shared >= 10 * len(solved)  # solved questions are in front of all
        passes.append(sum(plan.tokens("tree") - shared for plan in plans))
        return original(lm, plans, *rest, **more)

    original = module.pass_logits
    monkeypatch.setattr(module, "pass_logits", counted)
    monkeypatch.setattr(module, "TOGETHER", most)
    run = make_run()
    run.tasks[0].options.update({"solved": solved} if solved else {})
    began = time.perf_counter()
    evaluate(asked, run, tmp_path, print)
    took = sum(row["seconds"] for row in read_rows(tmp_path / STANDARD))
    assert took < time.perf_counter() - began  # no second counts twice
    assert len(passes) > 1
    assert all(80 <= tokens < 160 for tokens in passes[:-1])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="not Linux")
def test_memory_is_measured_where_asked_after_a_pass_that_reads_the_weights(
    lm: LanguageModel, make_run: MakeRun, tmp_path: Path, monkeypatch: Patch
) -> None:
    calls: list[str] = []

    def noted(name: str, call: Any) -> Any:
        return lambda *args, **more: calls.append(name) or call(*args, **more)

    for name in ("pass_logits", "memory"):
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    evaluate(lm, make_run(peak=True), tmp_path, print)
    rows = read_rows(tmp_path / STANDARD)
    assert all(0 <= row["peak_bytes"] < 2**30 for row in rows)
    assert calls == ["pass_logits", *["memory", "pass_logits", "memory"] * len(rows)]


# Going on


def test_a_line_is_on_the_disk_before_the_next_pass(
    lm: LanguageModel, make_run: MakeRun, tmp_path: Path, monkeypatch: Patch
) -> None:
    path, events = tmp_path / STANDARD, list[str]()
    synced, passed = os.fsync, module.pass_logits

    def fsync(descriptor: int) -> None:
        assert path.read_bytes().endswith(b"\n")  # nothing waits in a buffer
        events.append("synced")
        synced(descriptor)

    def counted(*plans: Any, **more: Any) -> Any:
        events.append("asked")
        return passed(*plans, **more)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(module, "pass_logits", counted)
    monkeypatch.setattr(module, "TOGETHER", 0)
    evaluate(lm, make_run(), tmp_path, print)
    assert events == ["asked", "synced"] * QUESTIONS


def test_a_run_that_is_done_asks_nothing(
    lm: LanguageModel, make_run: MakeRun, tmp_path: Path, monkeypatch: Patch
) -> None:
    evaluate(lm, make_run(), tmp_path, print)
    monkeypatch.setattr(module, "pass_logits", None)
    evaluate(lm, make_run(), tmp_path, print)


# Refusals


def other_runs(make_run: MakeRun, asked: Asked) -> dict[str, Run]:
    turned = [(seed, replace(q, answer=(q.answer or 0) ^ 1)) for seed, q in asked]
    return {
        "tasks.words.hash": make_run(questions=turned),
        "tasks.words.questions": make_run(questions=asked[:3]),
        "tasks.words.methods.standard": make_run("cyclic"),
        "keep.groups": make_run(keep_groups=True),
        "shards": make_run(shard=(0, 2)),
        "limit": make_run(about={**ABOUT, "limit": 6}),
    }


@pytest.mark.parametrize("differs", other_runs(lambda *a, **k: None, []))  # type: ignore[arg-type]
def test_another_run_is_refused_with_what_differs(
    lm: LanguageModel, make_run: MakeRun, asked: Asked, tmp_path: Path, differs: str
) -> None:
    evaluate(lm, make_run(), tmp_path, print)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=differs) as caught:
        evaluate(lm, other_runs(make_run, asked)[differs], tmp_path, print)
    assert "\n" not in str(caught.value)
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if ".lock" not in path.name}
    assert after == {path: text for path, text in before.items() if ".lock" not in path.name}


def test_another_model_is_refused(lm: LanguageModel, make_run: MakeRun, tmp_path: Path) -> None:
    evaluate(lm, make_run(), tmp_path, print)
    other = replace(lm, name="another")
    with pytest.raises(InputError, match='model is "weights/tiny-llama" there and "another" here'):
        evaluate(other, make_run(), tmp_path, print)
    norm = lm.decoder.model.norm.weight
    norm.data[0] += 1  # the same name, other weights
    try:
        with pytest.raises(InputError, match="weights is"):
            evaluate(lm, make_run(), tmp_path, print)
    finally:
        norm.data[0] -= 1


def test_a_folder_that_cannot_be_written_is_refused(
    lm: LanguageModel, make_run: MakeRun, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file"):
        evaluate(lm, make_run(), tmp_path / "file" / "run", print)


@pytest.mark.parametrize("text", ["{}\n", "[1]\n", '"a"\n', "no JSON\n", '{"id": "miniature'])
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, finished: Path, text: str) -> None:
    path = tmp_path / STANDARD
    path.write_text((finished / STANDARD).read_text() + text + "{}\n")
    with pytest.raises(InputError, match=f"line {QUESTIONS + 1}"):
        read_rows(path)


def test_answers_to_other_questions_are_refused(
    lm: LanguageModel, make_run: MakeRun, tmp_path: Path
) -> None:
    evaluate(lm, make_run(), tmp_path, print)
    text = (tmp_path / STANDARD).read_text().splitlines(keepends=True)
    (tmp_path / STANDARD).write_text("".join([text[1], text[0]]))
    with pytest.raises(InputError, match="other questions"):
        evaluate(lm, make_run(), tmp_path, print)


# Methods that cannot


@dataclass(frozen=True)
class Picky(Standard):
    """Cannot ask a question whose text has the word in it; `late`: when its prompt is to run."""

    name = "picky"
    word: str = "here"
    suits: bool = True
    late: bool = False

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        plan, is_bad = super().plan(lm, question, seed), self.word in question.text
        if is_bad and not self.late:
            raise (InputError if self.suits else Unsuited)(f"cannot ask: {self.word}")
        return replace(plan, prefix=[1 << 30]) if is_bad else plan


def test_an_unsuited_method_is_left_out_with_one_line(
    lm: LanguageModel, make_run: MakeRun, finished: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    evaluate(lm, make_run("reasoning", "standard"), tmp_path, told.append)
    assert len(told) == 1
    assert "reasoning" in told[0]
    assert "\n" not in told[0]
    assert lines(tmp_path / STANDARD) == lines(finished / STANDARD)


@pytest.mark.parametrize("how", ["", "(late=true)", "(suits=false)"])
def test_a_question_that_cannot_be_asked_is_named_and_answers_before_it_are_kept(
    lm: LanguageModel, make_run: MakeRun, asked: Asked, tmp_path: Path, how: str
) -> None:
    bad = replace(asked[3][1], text="here is the one")
    run, told = make_run(f"{OWN}:Picky{how}", questions=[*asked[:3], (0, bad)]), list[str]()
    try:
        evaluate(lm, run, tmp_path, told.append)
    except InputError as error:
        told.append(str(error))
    assert ("left out" in told[0], bad.id in told[0]) == ("suits" in how, True)
    assert len(read_rows(next(tmp_path.glob("samples-*.jsonl")))) == 3


def test_a_method_of_ones_own_is_part_of_what_a_run_is(
    lm: LanguageModel, make_run: MakeRun, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("from minise import Standard\nclass Mine(Standard):\n    name = 'mine'\n")
    evaluate(lm, make_run(f"{mine}:Mine"), tmp_path / "run", print)
    evaluate(lm, make_run(f"{mine}:Mine"), tmp_path / "run", print)
    mine.write_text(mine.read_text() + "\n# changed\n")
    with pytest.raises(InputError, match="code"):
        evaluate(lm, make_run(f"{mine}:Mine"), tmp_path / "run", print)


def test_run_json_says_what_the_run_is(lm: LanguageModel, finished: Path) -> None:
    what = json.loads((finished / "run.json").read_text())
    assert (what["model"], what["dtype"], what["device"]) == (lm.name, "float32", "cpu")
    assert what["versions"]["torch"] == torch.__version__
    task = what["tasks"]["words"]
    assert (task["questions"], task["choices"]) == (QUESTIONS, 4)
    ensemble = task["methods"]["self-ensemble"]
    assert ensemble["engine"] == "tree"
    assert ensemble["settings"]["group_size"] == 2
    assert "random_partitions" in ensemble["settings"]["grouping"]
    assert " at 0x" not in json.dumps(what)


def test_a_method_name_with_a_slash_stays_in_the_folder(tmp_path: Path) -> None:
    path = module.samples_path(tmp_path, "words", "self-ensemble(grouping=./mine.py:f)")
    assert path.parent == tmp_path
