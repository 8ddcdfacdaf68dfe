"""Every experiment runs end to end on a shipped checkpoint and prints its table."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from minise.data.tasks import Task
from minise.evaluation.experiments import EXPERIMENTS
from minise.methods.build import build
from minise.methods.registry import METHODS
from tests.support.commands import assert_one_line, run
from tests.support.runs import no_drawing

for module in ("scipy", "sklearn", "matplotlib", "filelock"):
    pytest.importorskip(module)


# How many questions make each experiment quick here, and what its table must show.
CASES = {
    "choices": (3, ["miniature-k2", "miniature-k8", "standard", "self-ensemble"]),
    "main": (
        20,
        [
            "vector-scaling",
            "dirichlet",
            "cloze",
            "NLL",
            "ECE",
            "McNemar",
        ],
    ),
    "scale": (4, ["standard", "self-ensemble"]),
    "ablation": (2, ["without-mask", "without-positions"]),
    "sensitivity": (1, ["m=2", "m=5", "N=1", "N=80", "exact"]),
    "seeds": (4, ["±", "each seed"]),
    "confidence": (8, ["under", "over", "score"]),
    "efficiency": (4, ["multi-pass", "single-pass", "peak MiB", "decisions changed"]),
    "quantized": (4, ["full precision", "full precision + self-ensemble"]),
    "reasoning": (2, ["cot", "accuracy, as said", "names none", "new tokens"]),
    "null-option": (1, ["miniature-k4-none-right", "miniature-k4-none-wrong", "pride"]),
}
# Where the experiment's own numbers of choices and trials would take long.
FEWER: dict[str, tuple[object, ...]] = {
    "null-option": ("--cut-to", 4),
    "sensitivity": ("--cut-to", 5),
    **dict.fromkeys(("choices", "seeds", "ablation", "efficiency"), ("--trials", 4)),
    "main": ("--cut-to", 4, "--trials", 4),
    "reasoning": ("--trials", 4, "--limit", 1),  # it writes 256 tokens for each question
}
FEW = ("--task", "miniature", "--questions", 3, "--trials", 4)
FIGURES = {
    None: {"accuracy.png", "confidence-miniature.png", "reliability-miniature.png"},
    "choices": {
        *("accuracy-choices.png", "confidence-choices.png", "one-question.png"),
        *(f"reliability-miniature-k{k}.png" for k in (2, 4, 6, 8)),
    },
    "sensitivity": {"sensitivity.png"},
    "efficiency": {"efficiency.png"},
    "main": {f"{name}-miniature-k4.png" for name in ("confidence", "reliability")}
    | {"accuracy.png"},
    "null-option": {
        *(
            f"{name}-miniature-k4{kind}.png"
            for name in ("confidence", "reliability")
            for kind in ("", "-none-wrong", "-none-right")
        ),
        "accuracy.png",
    },
}


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture(autouse=True)
def rough_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/evaluation/test_metrics.py looks at what an interval is."""
    monkeypatch.setattr("minise.evaluation.metrics.RESAMPLES", 50)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_prints_its_table_and_report_redraws_it(
    experiment: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions, shown = CASES[experiment]
    folder = tmp_path / "run"
    options = ("--task", "miniature", "--questions", questions, "--output-path", folder)
    options += FEWER.get(experiment, ())
    # The figures of null-option are those of main, three times as many.
    with no_drawing() if experiment == "null-option" else nullcontext():
        status, out, err = run(capsys, "eval", "--experiment", experiment, *options)
    assert status == 0
    left_out = "minise: miniature: left out: reasoning (weights/tiny-llama: is no reasoning model"
    assert err.startswith(left_out) if experiment == "reasoning" else err == ""
    for text in ["tiny-llama", *shown]:
        assert text in out
    figures = {path.name for path in folder.glob("*.png")}
    assert figures == FIGURES.get(experiment, FIGURES[None])
    table = (folder / "report.md").read_text()
    assert all(f"]({name})" in table for name in figures)

    for path in [*folder.glob("*.png"), folder / "report.md"]:
        path.unlink()
    with no_drawing():
        assert run(capsys, "report", folder) == (0, out, "")
    assert (folder / "report.md").read_text() == table
    assert {path.name for path in folder.glob("*.png")} == figures


@pytest.mark.usefixtures("undrawn")
def test_the_engines_decide_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Multi-pass and single-pass, the paper's efficiency experiment: the same answers."""
    options = ("--task", "miniature", "--questions", 6, "--trials", 4, "--output-path", tmp_path)
    _, out, _ = run(capsys, "eval", "--experiment", "efficiency", *options)
    assert len(re.findall(r"\| 0 of 6 ", out)) == 2


@pytest.mark.usefixtures("undrawn")
def test_runs_of_several_models_make_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(experiment: str, model: str) -> Path:
        folder = tmp_path / f"{experiment}-{model}"
        task = (*FEW, "--model", f"weights/{model}")
        status, _, _ = run(
            capsys, "eval", "--experiment", experiment, *task, "--output-path", folder
        )
        assert status == 0
        return folder

    folders = [measure("scale", model) for model in ("tiny-llama", "tiny-qwen2")]
    _, both, _ = run(capsys, "report", *folders, "--output-path", tmp_path)
    (row_llama, row_qwen) = re.findall(r"^\| tiny-\w+ +\| miniature \|.*\d \[.*$", both, re.M)[:2]
    assert "tiny-llama" in row_llama
    assert "tiny-qwen2" in row_qwen
    other = measure("confidence", "tiny-llama")
    parts = ["different experiments (confidence, scale)"]
    assert_one_line(*run(capsys, "report", folders[0], other), parts)


@pytest.mark.usefixtures("undrawn")
def test_4_bit_and_full_precision_share_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(name: str, *options: str) -> Path:
        task = (*FEW, "--output-path", tmp_path / name)
        assert run(capsys, "eval", "--experiment", "quantized", *task, *options)[0] == 0
        return tmp_path / name

    full, nf4 = measure("full"), measure("nf4", "--quantize", "nf4-double")
    _, table, _ = run(capsys, "report", full, nf4, "--output-path", tmp_path)
    assert len(re.findall(r"^\| tiny-llama +\| miniature \|(?:.*\d \[.*){4}$", table, re.M)) == 1
    columns = ("full precision", "full precision + self-ensemble", "nf4-double")
    for text in (*columns, "nf4-double + self-ensemble", "- tiny-llama (nf4-double) (float32"):
        assert text in table
    # Another format of the same checkpoint is another run.
    again = ("eval", "--experiment", "quantized", *FEW)
    options = ("--resume", "--quantize", "nf4", "--output-path", nf4)
    assert_one_line(*run(capsys, *again, *options), ["quantize"])
    assert_one_line(*run(capsys, "report", full, full), ["two folders hold full precision"])


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("dataset", ["miniature", "qasc"])
def test_every_variant_of_every_experiment_can_be_built(name: str, dataset: str) -> None:
    """They follow from the task's facts, whatever the task is called."""
    tasks = [Task(called, dataset, [], {}, group_size=3, trials=6) for called in ("x", "qasc-k4")]
    variants, same = (EXPERIMENTS[name].variants(task) for task in tasks)
    assert variants == same
    assert len({variant.name for variant in variants}) == len(variants)
    for variant in variants:
        assert variant.method in METHODS
        for setting, value in variant.settings.items():
            assert setting == "grouping" or getattr(build(variant), setting, value) == value
    if name == "sensitivity":
        return
    for variant in variants:
        assert variant.settings.get("group_size", 3) == 3
        assert variant.settings.get("trials", 6) == 6


def test_sensitivity_runs_the_most_trials_and_reads_fewer_trials_from_them() -> None:
    variants = {v.name: v for v in EXPERIMENTS["sensitivity"].variants(Task("x", "qasc", [], {}))}
    assert len(variants) == 3 * 4
    ensembles = [v for v in variants.values() if v.method == "self-ensemble"]
    assert [v.settings for v in ensembles] == [{"group_size": m, "trials": 80} for m in (3, 4, 5)]
    for variant in variants.values():
        if variant.method == "first-trials":
            most = variants[variant.settings["of"]]
            assert most.settings["group_size"] == variant.settings["group_size"]
            assert most.settings["trials"] == 80
    task = Task("x", "miniature", [], {})
    exact = [
        variant.settings["group_size"]
        for variant in EXPERIMENTS["sensitivity"].variants(task)
        if variant.settings.get("grouping") == "exact"
    ]
    assert exact == [2, 3, 4]


def test_tables_are_printed_without_importing_torch() -> None:
    code = "import sys; from minise.{} import {}; sys.exit('torch' in sys.modules)"
    for room, module in (
        ("evaluation", "experiments"),
        *(("report", x) for x in ("results", "tables", "figures")),
    ):
        subprocess.run([sys.executable, "-c", code.format(room, module)], check=True)
