"""A run: each answer is on the disk before the next question, and the same command goes on."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import (
    InputError,
    LabelLogits,
    LanguageModel,
    LocalModel,
    Prompts,
    Question,
    SelfEnsemble,
    Standard,
    ask,
    load,
)
from minise.engines import token_counts
from minise.errors import Unsuited
from minise.lab.data.asked import Asked
from minise.lab.evaluation import peak
from minise.lab.evaluation.folder import samples_path
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.rows import Keep
from minise.lab.evaluation.run import evaluate
from minise.method import GroupPlan
from minise.prompts import Limits
from minise.tokenizer import Tokenizer
from tests.lab.evaluation.conftest import ABOUT, QUESTIONS, lines
from tests.lab.support.answers import read_answers

MakeRun, Patch = Callable[..., Run], pytest.MonkeyPatch
STANDARD, ENSEMBLE = "samples-words-standard.jsonl", "samples-words-self-ensemble.jsonl"
OWN = "tests/lab/evaluation/test_run.py"


@dataclass
class Elsewhere:
    """A model of which no more is known here than what it answers."""

    lm: LocalModel
    known: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    engine: str = "elsewhere"
    family: str = ""

    @property
    def name(self) -> str:
        return self.lm.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.lm.tokenizer

    @property
    def limits(self) -> Limits:
        return self.lm.limits

    def about(self) -> dict[str, str]:
        return self.known

    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        self.calls.append("asked")
        return self.lm.logits(prompts)


# What a line holds


def test_a_line_holds_the_answer_that_the_method_gives(
    lm: LocalModel, asked: list[Asked], finished: Path
) -> None:
    rows = read_answers(finished / ENSEMBLE)
    assert [row.id for row in rows] == [one.question.id for one in asked]
    for row, one in zip(rows, asked, strict=True):
        question, method = one.question, SelfEnsemble(2, 3)
        answer = ask(lm, method, question, one.seed)
        _, prompts = method.prompts(lm, question, one.seed)
        assert row.normalized == pytest.approx(answer.normalized.tolist(), abs=1e-5)
        assert row.scores == pytest.approx(answer.scores.tolist(), abs=1e-5)
        assert row.prediction == answer.prediction
        mean = sum(group.null or 0 for group in answer.groups) / 6
        assert row.null == pytest.approx(mean, abs=1e-5)
        assert row.on_labels == pytest.approx(answer.on_labels, abs=1e-5)
        assert row.tokens == token_counts(prompts.prefix, prompts.branches)["tree"]
        assert (row.answer, row.cluster) == (question.answer, question.cluster)
        assert row.question_hash == question.content_hash
        assert row.seconds > 0
        assert row.label is None
    names = {"groups", "notes", "question", "choices", "peak_bytes"}
    assert not names & json.loads((finished / ENSEMBLE).read_text().splitlines()[0]).keys()


def test_a_single_prompt_has_its_label_and_logits(finished: Path) -> None:
    for row in read_answers(finished / STANDARD):
        assert row.label == row.prediction == row.logits.index(max(row.logits))
        softmax = torch.tensor(row.logits, dtype=torch.float64).softmax(-1)
        assert row.normalized == pytest.approx(softmax.tolist(), abs=1e-12)
        assert row.null is None
        assert 0 < row.on_labels < 1


def test_a_fitted_method_gets_the_groups_it_needs(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run("self-ensemble", "first-trials(of=self-ensemble,trials=1)")
    evaluate(lm, run, tmp_path, print)
    assert all(len(row.groups) == 6 for row in read_answers(tmp_path / ENSEMBLE))


def test_what_a_model_writes_is_noted_and_its_text_only_where_asked(
    lm: LocalModel, asked: list[Asked], make_run: MakeRun, tmp_path: Path
) -> None:
    text = "cot(max_new_tokens=2)"
    name = "samples-words-cot(max_new_tokens=2).jsonl"
    for keep in (False, True):
        folder = tmp_path / str(keep)
        evaluate(lm, make_run(text, questions=asked[:1], keep=Keep(text=keep)), folder, print)
        (row,) = read_answers(folder / name)
        assert row.notes["new_tokens"] <= 2
        assert ("reasoning" in row.notes) == keep


def test_with_equal_bits_a_line_does_not_depend_on_what_shares_its_pass(
    equal_bits: LocalModel, make_run: MakeRun, tmp_path: Path, monkeypatch: Patch
) -> None:
    run = make_run("standard", "self-ensemble")
    for together in (0, 150, 10_000):
        folder = tmp_path / str(together)
        monkeypatch.setattr("minise.lab.evaluation.pipeline.TOGETHER", together)
        evaluate(equal_bits, run, folder, print)
        for name in (STANDARD, ENSEMBLE):
            assert lines(folder / name) == lines(tmp_path / "0" / name)


def test_a_variant_has_its_engine_and_without_one_the_models(
    lm: LocalModel, make_run: MakeRun, finished: Path, tmp_path: Path
) -> None:
    evaluate(lm.with_engine("separate"), make_run("self-ensemble"), tmp_path / "a", print)
    evaluate(lm, make_run("self-ensemble", engine="separate"), tmp_path / "b", print)
    evaluate(lm, make_run("self-ensemble", engine="without-mask"), tmp_path / "c", print)
    separate, named, ablated, tree = (
        lines(folder / ENSEMBLE)
        for folder in (tmp_path / "a", tmp_path / "b", tmp_path / "c", finished)
    )
    assert separate == named
    for one, other, wrong in zip(separate, tree, ablated, strict=True):
        assert one["normalized"] == pytest.approx(other["normalized"], abs=1e-5)
        assert one["normalized"] != pytest.approx(wrong["normalized"], abs=1e-3)
        assert one["tokens"] > wrong["tokens"] > other["tokens"]
    for folder, engine in (("a", "separate"), ("b", "separate"), ("c", "without-mask")):
        what = json.loads((tmp_path / folder / "run.json").read_text())
        assert what["tasks"]["words"]["methods"]["self-ensemble"]["engine"] == engine


def test_what_needs_a_model_that_runs_here_is_left_out_elsewhere(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    model = Elsewhere(lm)
    for number, facts in enumerate([{"engine": "without-mask"}, {"peak": True}]):
        told: list[str] = []
        evaluate(model, make_run(**facts), tmp_path / str(number), told.append)
        (line,) = told
        assert "left out: standard: needs a model that runs here" in line
    assert model.calls == []


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="not Linux")
def test_memory_is_measured_where_asked_after_a_pass_that_reads_the_weights(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path, monkeypatch: Patch
) -> None:
    calls: list[str] = []

    def noted(owner: Any, name: str) -> None:
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: calls.append(name) or call(*args))

    noted(peak, "reset_peak")
    noted(peak, "peak_of_memory")
    noted(LocalModel, "logits")
    evaluate(lm, make_run(peak=True), tmp_path, print)
    rows = read_answers(tmp_path / STANDARD)
    assert all(0 <= row.peak_bytes < 2**30 for row in rows)
    one = ["reset_peak", "peak_of_memory", "logits", "peak_of_memory"]
    assert calls == one * (QUESTIONS + 1)


def test_where_the_system_does_not_tell_no_memory_is_written(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(peak, "RESET", tmp_path / "absent")
    for name in ("reset_peak", "peak_of_memory"):
        monkeypatch.delattr(peak, name)
    evaluate(lm, make_run(peak=True), tmp_path / "run", print)
    rows = read_answers(tmp_path / "run" / STANDARD)
    assert [row.peak_bytes for row in rows] == [None] * QUESTIONS


# Going on


def test_a_line_is_on_the_disk_before_the_next_pass(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path, monkeypatch: Patch
) -> None:
    path, model = tmp_path / STANDARD, Elsewhere(lm)
    synced = os.fsync

    def fsync(descriptor: int) -> None:
        synced(descriptor)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            assert path.read_bytes().endswith(b"\n")  # nothing waits in a buffer
            model.calls.append("synced")

    path.touch()
    monkeypatch.setattr(os, "fsync", fsync)
    evaluate(model, make_run(), tmp_path, print)
    assert model.calls == ["asked", "synced"] * QUESTIONS


def test_a_run_that_is_done_asks_nothing(lm: LocalModel, make_run: MakeRun, tmp_path: Path) -> None:
    model = Elsewhere(lm)
    evaluate(model, make_run(), tmp_path, print)
    assert len(model.calls) == QUESTIONS
    evaluate(model, make_run(), tmp_path, print)
    assert len(model.calls) == QUESTIONS


# Refusals


def turned(asked: Asked) -> Asked:
    """The question with another answer."""
    question = asked.question
    return replace(asked, question=replace(question, answer=(question.answer or 0) ^ 1))


def other_runs(make_run: MakeRun, asked: list[Asked]) -> dict[str, Run]:
    return {
        "tasks.words.hash": make_run(questions=[turned(one) for one in asked]),
        "tasks.words.questions": make_run(questions=asked[:3]),
        "tasks.words.methods.standard": make_run("cyclic"),
        "tasks.words.methods.standard.engine": make_run(engine="packed"),
        "keep.groups": make_run(keep=Keep(groups=True)),
        "shards": make_run(shard=(0, 2)),
        "limit": make_run(about={**ABOUT, "limit": 6}),
    }


@pytest.mark.parametrize("differs", other_runs(lambda *a, **k: None, []))  # type: ignore[arg-type]
def test_another_run_is_refused_with_what_differs(
    lm: LocalModel, make_run: MakeRun, asked: list[Asked], tmp_path: Path, differs: str
) -> None:
    evaluate(lm, make_run(), tmp_path, print)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=differs) as caught:
        evaluate(lm, other_runs(make_run, asked)[differs], tmp_path, print)
    assert "\n" not in str(caught.value)
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if ".lock" not in path.name}
    assert after == {path: text for path, text in before.items() if ".lock" not in path.name}


def test_another_model_is_refused(lm: LocalModel, make_run: MakeRun, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_half_a_run_is_not_continued_with_weights_of_which_any_part_is_another(
    make_run: MakeRun, tmp_path: Path, dtype: str
) -> None:
    """Not with every other value of each matrix changed, nor with one value of one."""
    lm = load("weights/tiny-llama", dtype=dtype)
    evaluate(lm, make_run(), tmp_path, print)
    (samples,) = tmp_path.glob("samples-*.jsonl")
    whole = samples.read_bytes()
    samples.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    matrices = [x.data for x in lm.decoder.parameters() if x.dim() == 2]
    before = [x.clone() for x in matrices]
    halves = [(x, slice(1, None, 2)) for x in matrices]
    for changed in (halves, [(matrices[0], (7, 3))], [(matrices[-1], (-1, -1))]):
        for x, some in changed:
            x[some] *= 1.5
        with pytest.raises(InputError, match="weights is"):
            evaluate(lm, make_run(), tmp_path, print)
        for x, was in zip(matrices, before, strict=True):
            x[:] = was
    evaluate(lm, make_run(), tmp_path, print)
    assert samples.read_bytes().count(b"\n") == whole.count(b"\n")


@pytest.mark.parametrize("buffer", ["codes", "scales"])
def test_a_run_in_4_bits_is_not_continued_with_other_weights(
    make_run: MakeRun, tmp_path: Path, buffer: str
) -> None:
    packed = load("weights/tiny-llama", quantize="nf4")
    evaluate(packed, make_run(), tmp_path, print)
    what = json.loads((tmp_path / "run.json").read_text())
    assert what["parameters"] == sum(x.numel() for x in load(packed.name).decoder.parameters())
    packed.decoder.model.layers[0].mlp.up_proj.get_buffer(buffer).zero_()
    with pytest.raises(InputError, match="weights is"):
        evaluate(packed, make_run(), tmp_path, print)


def test_a_folder_that_cannot_be_written_is_refused(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file"):
        evaluate(lm, make_run(), tmp_path / "file" / "run", print)


def test_answers_to_other_questions_are_refused(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
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

    def prompts(
        self, lm: LanguageModel, question: Question, seed: int = 0
    ) -> tuple[GroupPlan, Prompts]:
        plan, prompts = super().prompts(lm, question, seed)
        is_bad = self.word in question.text
        if is_bad and not self.late:
            raise (InputError if self.suits else Unsuited)(f"cannot ask: {self.word}")
        return plan, replace(prompts, prefix=[1 << 30]) if is_bad else prompts


def test_an_unsuited_method_is_left_out_with_one_line(
    lm: LocalModel, make_run: MakeRun, finished: Path, tmp_path: Path
) -> None:
    told: list[str] = []
    evaluate(lm, make_run("reasoning", "standard"), tmp_path, told.append)
    assert len(told) == 1
    assert "reasoning" in told[0]
    assert "\n" not in told[0]
    assert lines(tmp_path / STANDARD) == lines(finished / STANDARD)


@pytest.mark.parametrize("how", ["", "(late=true)", "(suits=false)"])
def test_a_question_that_cannot_be_asked_is_named_and_answers_before_it_are_kept(
    lm: LocalModel, make_run: MakeRun, asked: list[Asked], tmp_path: Path, how: str
) -> None:
    bad = replace(asked[3].question, text="here is the one")
    run = make_run(f"{OWN}:Picky{how}", questions=[*asked[:3], Asked(bad)])
    told: list[str] = []
    try:
        evaluate(lm, run, tmp_path, told.append)
    except InputError as error:
        told.append(str(error))
    assert ("left out" in told[0], bad.id in told[0]) == ("suits" in how, True)
    assert len(read_answers(next(tmp_path.glob("samples-*.jsonl")))) == 3


MINE = "from minise import Standard\nclass Mine(Standard):\n    name = 'mine'\n"
OTHERWISE = """
    def answer(self, plan, logits):
        return super().answer(plan, [type(one)(-one.labels, one.total) for one in logits])
"""


def test_when_a_method_of_ones_own_changes_the_answers_of_the_others_stay(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "run"
    mine.write_text(MINE)
    texts = ("standard", f"{mine}:Mine")
    own = samples_path(folder, "words", f"{mine}:Mine")
    evaluate(lm, make_run(*texts), folder, print)
    evaluate(lm, make_run(*texts), folder, print)
    before = {path: path.read_bytes() for path in (own, folder / STANDARD)}
    mine.write_text(MINE + OTHERWISE)
    with pytest.raises(InputError, match="code is") as refused:
        evaluate(lm, make_run(*texts), folder, print)
    assert f"delete {own.name} to ask it again (the other answers stay)" in str(refused.value)
    assert before == {path: path.read_bytes() for path in before}
    own.unlink()
    evaluate(lm, make_run(*texts), folder, print)
    assert (folder / STANDARD).read_bytes() == before[folder / STANDARD]
    assert [line["prediction"] for line in lines(own)] != [
        json.loads(line)["prediction"] for line in before[own].splitlines()
    ]
    evaluate(lm, make_run(*texts, "cyclic"), folder, print)  # one more
    assert (folder / STANDARD).read_bytes() == before[folder / STANDARD]
    with pytest.raises(InputError, match=r"holds another run .*; choose another folder"):
        evaluate(lm, make_run("standard"), folder, print)


def test_answers_without_what_a_fitted_method_needs_are_not_taken_for_it(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    evaluate(lm, make_run("self-ensemble"), tmp_path, print)
    fitted = make_run("self-ensemble", "first-trials(of=self-ensemble,trials=1)")
    with pytest.raises(InputError, match="groups is false there and true here"):
        evaluate(lm, fitted, tmp_path, print)


def test_a_method_of_ones_own_is_tried_before_a_long_run(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    mine, model = tmp_path / "mine.py", Elsewhere(lm)
    mine.write_text(MINE + "    def answer(self, plan, logits):\n        return 1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        evaluate(model, make_run("standard", f"{mine}:Mine"), tmp_path / "run", print)
    assert model.calls == ["asked"]
    assert not (tmp_path / "run" / STANDARD).exists()


def test_run_json_says_what_the_run_is(lm: LocalModel, finished: Path) -> None:
    what = json.loads((finished / "run.json").read_text())
    assert (what["model"], what["dtype"], what["device"]) == (lm.name, "float32", "cpu")
    assert (what["parameters"] > 10**6, what["equal_bits"]) == (True, False)
    assert what["versions"]["torch"] == torch.__version__
    task = what["tasks"]["words"]
    assert (task["questions"], task["choices"]) == (QUESTIONS, 4)
    ensemble = task["methods"]["self-ensemble"]
    assert (ensemble["engine"], ensemble["engine_code"]) == ("tree", None)
    assert ensemble["settings"]["group_size"] == 2
    assert "random_partitions" in ensemble["settings"]["grouping"]
    assert " at 0x" not in json.dumps(what)


def test_another_version_of_minise_goes_on_with_a_run_and_notes_itself(
    lm: LocalModel, finished: Path, make_run: MakeRun, tmp_path: Path, monkeypatch
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    before = (folder / STANDARD).read_bytes()
    monkeypatch.setattr("minise.lab.evaluation.request.__version__", "0.1.1")
    evaluate(lm, make_run("standard", "self-ensemble"), folder, print)
    assert (folder / STANDARD).read_bytes() == before
    what = json.loads((folder / "run.json").read_text())
    assert (what["format"], what["versions"]["minise"]) == (1, "0.1.1")


def test_a_run_of_another_format_is_refused_and_left_as_it_is(
    lm: LocalModel, finished: Path, make_run: MakeRun, tmp_path: Path
) -> None:
    path = shutil.copytree(finished, tmp_path / "run") / "run.json"
    path.write_text(json.dumps({"format": 2, "of": "later"}))
    with pytest.raises(InputError, match=r"run\.json: its format is 2, not 1; .* that wrote it"):
        evaluate(lm, make_run("standard", "self-ensemble"), path.parent, print)
    assert json.loads(path.read_text()) == {"format": 2, "of": "later"}


def test_of_a_model_elsewhere_it_says_what_that_says_of_itself(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    evaluate(Elsewhere(lm, known={"device": "a server"}), make_run(), tmp_path, print)
    what = json.loads((tmp_path / "run.json").read_text())
    assert (what["device"], what["dtype"], what["parameters"]) == ("a server", None, None)
    assert what["tasks"]["words"]["methods"]["standard"]["engine"] == "elsewhere"
    with pytest.raises(InputError, match='device is "a server" there and "another" here'):
        evaluate(Elsewhere(lm, known={"device": "another"}), make_run(), tmp_path, print)


def test_equal_bits_are_part_of_what_a_run_is(
    lm: LocalModel, equal_bits: LocalModel, make_run: MakeRun, finished: Path, tmp_path: Path
) -> None:
    evaluate(equal_bits, make_run(), tmp_path, print)
    with pytest.raises(InputError, match="equal_bits is true there and false here"):
        evaluate(lm, make_run(), tmp_path, print)


def test_an_engine_of_ones_own_is_part_of_what_a_run_is(
    make_run: MakeRun, finished: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from minise.engines import packed\ndef own(*args):\n    return packed(*args)\n"
    )

    def run() -> None:
        model = load("weights/tiny-llama", engine=f"{mine}:own")
        evaluate(model, make_run(), tmp_path / "run", print)

    run()
    for one, other in zip(
        read_answers(tmp_path / "run" / STANDARD), read_answers(finished / STANDARD), strict=True
    ):
        assert one.normalized == pytest.approx(other.normalized, abs=1e-5)
    run()
    mine.write_text(mine.read_text() + "\n# changed\n")
    with pytest.raises(InputError, match="engine_code"):
        run()


def test_a_method_name_with_a_slash_stays_in_the_folder(tmp_path: Path) -> None:
    path = samples_path(tmp_path, "words", "self-ensemble(grouping=./mine.py:f)")
    assert path.parent == tmp_path
