"""A method of your own is one file outside the package: copy one of these two and change it."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import LanguageModel, Question, branch_logits, load
from minise.commands.cli import main
from minise.evaluation.samples import read_samples
from minise.loading.plugin import find_object
from minise.prompt import DEFAULT_TEMPLATE, write_prompts
from tests.support.commands import assert_one_line
from tests.support.tiny import FAMILIES, write_checkpoint

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)
pytestmark = pytest.mark.usefixtures("undrawn")

# Contextual calibration (Zhao et al., 2021): divide by what the model says of a question whose
# choices say nothing. A method that asks the model: it plans prompts and reads their logits.
ASKING = """
from dataclasses import dataclass

from minise.method import Group, combine, Plan
from minise.grouping import Groups
from minise.prompt import DEFAULT_TEMPLATE, write_prompts


@dataclass(frozen=True)
class Contextual:
    name = "contextual"
    strength: float = 1.0

    def plan(self, lm, question, seed=0):
        blank = ["N/A"] * len(question.choices)
        listed = [question.choices, blank]
        prefix, prompts = write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, question.text, listed)
        order = tuple(range(len(question.choices)))
        return Plan(question, Groups(((order,), (order,)), complete=True), prefix, prompts)

    def answer(self, plan, logits):
        said, blank = logits
        p = (said - self.strength * blank).softmax(-1)
        return combine(len(p), [Group(plan.groups.flat[0], p, None)])
"""

# Batch calibration (Zhou et al., 2023): divide by the mean over all questions. A fitted method: it
# turns the samples of other methods into its own and asks no model.
FITTED = """
from dataclasses import replace


class Batch:
    name = "batch"
    needs = ("standard",)

    def fit(self, samples):
        standard = samples["standard"]
        columns = zip(*(sample.probabilities for sample in standard))
        mean = [sum(column) / len(standard) for column in columns]
        return [self.divide(sample, mean) for sample in standard]

    def divide(self, sample, mean):
        ratios = [p / q for p, q in zip(sample.probabilities, mean)]
        p = [ratio / sum(ratios) for ratio in ratios]
        best = p.index(max(p))
        return replace(
            sample, prediction=best, probabilities=p, scores=p, seconds=None, logits=None
        )
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), FAMILIES["llama"])


@pytest.fixture(scope="module")
def lm(model: Path) -> LanguageModel:
    return load(str(model), dtype=torch.float32)


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with six questions of four choices."""
    draw = random.Random("questions")
    words = ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay"]
    rows = [
        {"question": f"Number {n}?", "choices": draw.sample(words, 4), "answer": n % 4}
        for n in range(6)
    ]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(model: Path, method: str, *more: Any) -> int:
    fixed = ["eval", "--model", model, "--task", "words.jsonl", "--output-path", "run"]
    return main([str(part) for part in [*fixed, "--method", method, *more]])


def results() -> dict[str, Any]:
    return json.loads(Path("run/results.json").read_text())


def test_a_users_method_asks_the_model(
    work_folder: Path, model: Path, lm: LanguageModel, capsys
) -> None:
    Path("mine.py").write_text(ASKING)
    assert evaluate(model, "standard,./mine.py:Contextual", "--keep-groups") == 0
    assert "contextual" in capsys.readouterr().out
    report = results()
    cell = report["results"]["words"]["contextual"]
    assert (cell["method"], cell["n"]) == ("./mine.py:Contextual", 6)
    assert cell["settings"] == {"strength": 1.0}
    pair = report["differences"]["words"][0]
    assert (pair["a"], pair["b"]) == ("contextual", "standard")
    rows = [json.loads(line) for line in Path("words.jsonl").read_text().splitlines()]
    samples = read_samples(Path("run/samples-words-contextual.jsonl"))
    for row, sample in zip(rows, samples, strict=True):
        question = Question(row["question"], row["choices"])
        logits, prior = (
            label_logits_alone(lm, question),
            label_logits_alone(lm, without_content(question)),
        )
        expected = (logits - prior).softmax(-1)
        assert sample.probabilities == pytest.approx(expected.tolist(), abs=1e-5)
        assert sample.groups is not None
        assert [group["choices"] for group in sample.groups] == [[0, 1, 2, 3]]


def test_a_users_method_is_fitted(work_folder: Path, model: Path, capsys) -> None:
    Path("mine.py").write_text(FITTED)
    assert evaluate(model, "./mine.py:Batch") == 0
    assert "batch" in capsys.readouterr().out
    assert list(results()["results"]["words"]) == ["standard", "batch"]  # which it needs
    standard, batch = (
        read_samples(Path(f"run/samples-words-{name}.jsonl")) for name in ("standard", "batch")
    )
    assert [sample.id for sample in batch] == [sample.id for sample in standard]
    mean = torch.tensor([s.probabilities for s in standard], dtype=torch.float64).mean(0)
    for original, fitted in zip(standard, batch, strict=True):
        p = torch.tensor(original.probabilities, dtype=torch.float64) / mean
        assert fitted.probabilities == pytest.approx((p / p.sum()).tolist())


def test_an_edited_file_is_read_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would use the bytecode of the old file if both have the same second and size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for value in (1, 2):
        path.write_text(f"value = {value}")
        os.utime(path, (10**9, 10**9))
        assert find_object(f"{path}:value") == value


def test_an_edited_file_cannot_resume_the_run(work_folder: Path, model: Path, capsys) -> None:
    Path("mine.py").write_text(ASKING)
    assert evaluate(model, "./mine.py:Contextual") == 0
    capsys.readouterr()
    assert evaluate(model, "./mine.py:Contextual", "--resume") == 0
    capsys.readouterr()
    Path("mine.py").write_text(ASKING.replace("strength: float = 1.0", "strength: float = 0.5"))
    status = evaluate(model, "./mine.py:Contextual", "--resume")
    assert_one_line(status, *capsys.readouterr(), parts=["run holds another run (variants.words"])
    Path("mine.py").write_text(ASKING.replace("said - self", "2 * said - self"))
    status = evaluate(model, "./mine.py:Contextual", "--resume")
    assert_one_line(status, *capsys.readouterr(), parts=["run holds another run (code_sha256"])


@pytest.mark.parametrize(
    ("source", "method", "parts"),
    [
        (ASKING, "./other.py:Contextual", ["other.py: no such file"]),
        (ASKING, "./mine.py:Other", ["mine.py: defines no Other"]),
        ("def (", "./mine.py:Mine", ["mine.py: could not be run (SyntaxError"]),
        ("1 / 0", "./mine.py:Mine", ["mine.py: could not be run (ZeroDivisionError"]),
        ("Mine = 3", "./mine.py:Mine", ["is no class with plan or fit"]),
        ("class Mine: pass", "./mine.py:Mine", ["is no class with plan or fit"]),
        (FITTED.replace('"standard",', '"oracle",'), "./mine.py:Batch", ['"oracle" is unknown']),
        (FITTED.replace('"batch"', '"a/b"'), "./mine.py:Batch", ['"a/b" is no name']),
        (FITTED.replace('"batch"', '"standard"'), "./mine.py:Batch,standard", ["a method twice"]),
        (ASKING.replace(" = 1.0", ""), "./mine.py:Contextual", ["could not be made", "strength"]),
    ],
)
def test_a_file_without_a_method_is_refused_in_one_line(
    work_folder: Path, model: Path, capsys, source: str, method: str, parts: list[str]
) -> None:
    Path("mine.py").write_text(source)
    status = evaluate(model, method)
    assert_one_line(status, *capsys.readouterr(), parts=parts)
    assert not Path("run").exists()


def test_a_fit_that_loses_samples_is_refused_in_one_line(
    work_folder: Path, model: Path, capsys
) -> None:
    Path("mine.py").write_text(
        FITTED.replace("for sample in standard]\n", "for sample in standard[1:]]\n")
    )
    status = evaluate(model, "./mine.py:Batch")
    assert_one_line(status, *capsys.readouterr(), parts=["batch: fit must give a sample for each"])


def test_an_error_in_a_users_method_is_its_own_traceback(work_folder: Path, model: Path) -> None:
    Path("mine.py").write_text(ASKING.replace("said, blank = logits", "1 / 0"))
    with pytest.raises(ZeroDivisionError):
        evaluate(model, "./mine.py:Contextual")


def test_a_class_with_slots_is_a_method(work_folder: Path, model: Path, capsys) -> None:
    slots = "@dataclass(frozen=True, slots=True)"
    Path("mine.py").write_text(ASKING.replace("@dataclass(frozen=True)", slots))
    assert evaluate(model, "./mine.py:Contextual") == 0


def without_content(question: Question) -> Question:
    return Question(question.text, ["N/A"] * len(question.choices))


def label_logits_alone(lm: LanguageModel, question: Question) -> torch.Tensor:
    prefix, (prompt,) = write_prompts(
        lm.tokenizer, DEFAULT_TEMPLATE, question.text, [question.choices]
    )
    return branch_logits(lm, prefix, [prompt.ids], "separate", prompt.label_ids)[0].double()
