"""Paired differences between runs that asked the same questions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minise.commands.cli import main
from minise.evaluation.samples import append_lines, samples_path
from minise.methods.sample import Sample
from minise.report.across import across
from minise.report.results import Results
from tests.support.results import cell, make
from tests.support.runs import arguments

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)

pytestmark = pytest.mark.usefixtures("undrawn")


def test_runs_are_compared_on_their_common_questions(
    model: Path, whole: Path, independent: Path, tmp_path: Path, capsys
) -> None:
    capsys.readouterr()
    folders = [str(whole), str(independent)]
    assert main(["report", *folders, "-o", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [len(run["results"]["words"]) for run in report["runs"]] == [4, 2]
    name = model.name
    names = [tuple(d[x].removeprefix(f"{name}: ") for x in "ab") for d in report["differences"]]
    # standard answered alike in both; cyclic and vector-scaling are in the first alone.
    assert names == [
        ("standard", "cyclic"),
        ("standard", "vector-scaling"),
        ("self-ensemble (grouping=independent)", "self-ensemble (grouping=random)"),
        ("self-ensemble (grouping=independent)", "cyclic"),
        ("self-ensemble (grouping=independent)", "vector-scaling"),
    ]
    ours = report["differences"][2]
    accuracy = [run["results"]["words"]["self-ensemble"]["accuracy"] for run in report["runs"]]
    assert ours["accuracy"] == pytest.approx(accuracy[1] - accuracy[0])
    assert (ours["task"], ours["questions"]) == ("words", 30)
    assert "Paired differences between runs" in (tmp_path / "report.md").read_text()


def test_runs_are_not_compared_on_other_questions(
    model: Path, data: Path, whole: Path, tmp_path: Path, capsys
) -> None:
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    for row in rows[:10]:
        row["question"] = f"Not {row['question']}"
    changed = tmp_path / "words.jsonl"
    changed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "changed"
    assert main(arguments(model, changed, folder, "--method", "cyclic", "--trials", 2)) == 0
    capsys.readouterr()
    assert main(["report", str(whole), str(folder), "-o", str(tmp_path), "--json"]) == 0
    differences = json.loads(capsys.readouterr().out)["differences"]
    # The twenty that are the same were answered alike by cyclic in both.
    assert {d["questions"] for d in differences} == {20}
    assert {d["a"].split(": ")[1] for d in differences} == {"cyclic"}
    assert not any(d["b"].endswith("cyclic") for d in differences)


def sample(id: str, prediction: int = 0, seed: int = 0, **changes: Any) -> Sample:
    """60% on its prediction; the first choice is right."""
    p = [0.6 if i == prediction else 0.4 for i in range(2)]
    fields = {"answer": 0, "question_hash": f"hash of {id}", **changes}
    return Sample(id, seed, prediction=prediction, probabilities=p, scores=p, tokens=9, **fields)


def finished(folder: Path, model: str, **methods: list[Sample]) -> tuple[Path, Results]:
    """A run of the task "birds": the samples of each method, whose name is also its kind."""
    folder.mkdir()
    for name, samples in methods.items():
        append_lines(samples_path(folder, "birds", name), [one.line() for one in samples])
    raw = make("main", {"birds": {name: cell(name) for name in methods}}, model=model)
    return folder, Results.from_json(raw)


def compared(*runs: tuple[Path, Results]) -> list[tuple[str, str, int]]:
    differences = across(*map(list, zip(*runs, strict=True)))
    assert {d["task"] for d in differences} <= {"birds"}
    return [(d["a"], d["b"], d["questions"]) for d in differences]


def test_a_later_run_is_compared_with_each_earlier_one_by_methods_of_one_name(
    tmp_path: Path,
) -> None:
    """Of two models, each method with itself; what one of them lacks is compared with nothing."""
    right, wrong = [sample("x"), sample("y")], [sample("x", 1), sample("y", 1)]
    one = finished(tmp_path / "1", "one", standard=right, cyclic=wrong)
    two = finished(tmp_path / "2", "two", standard=wrong)
    three = finished(tmp_path / "3", "three", standard=[sample("y"), sample("z")])
    assert compared(one, two, three) == [
        ("two: standard", "one: standard", 2),
        ("three: standard", "two: standard", 1),  # three and one answer y alike
    ]


def test_in_runs_of_one_model_a_method_of_one_run_is_compared_with_all_of_the_other(
    tmp_path: Path,
) -> None:
    right, wrong = [sample("x")], [sample("x", 1)]
    one = finished(tmp_path / "1", "m", standard=right, cyclic=wrong)
    two = finished(tmp_path / "2", "m", standard=right, ours=[sample("x", 1, text=None)])
    assert compared(one, two) == [("m: standard", "m: cyclic", 1), ("m: ours", "m: standard", 1)]


def test_the_cells_of_a_sweep_are_compared_each_with_its_own(tmp_path: Path) -> None:
    """Each with all would be hundreds of rows, and Holm's correction would be for all of them."""
    runs = []
    for number, (name, answer) in enumerate((("one", 0), ("two", 1), ("three", 1))):
        cells = ("m2", "m3") if number < 2 else ("m2", "m4")
        samples = {cell: [sample("x", answer), sample("y")] for cell in cells}
        folder, run = finished(tmp_path / name, name, **samples)
        runs.append((folder, replace(run, cells=[replace(c, method="se") for c in run.cells])))
    one, two, three = runs
    assert compared(one, two) == [("two: m2", "one: m2", 2), ("two: m3", "one: m3", 2)]
    # What only one of them has is compared with what only the other has.
    assert compared(one, three) == [("three: m2", "one: m2", 2), ("three: m4", "one: m3", 2)]


def test_two_models_are_not_compared_with_weights_that_are_packed_differently(
    tmp_path: Path,
) -> None:
    def run(model: str, quantize: str | None, *answers: int) -> tuple[Path, Results]:
        samples = [sample(id, answer) for id, answer in zip("xy", answers, strict=True)]
        folder, run = finished(tmp_path / f"{model}{quantize}", model, standard=samples)
        return folder, replace(run, cells=[replace(c, quantize=quantize) for c in run.cells])

    full = run("a", None, 0, 0), run("b", None, 0, 1)
    assert compared(*full, run("a", "nf4", 1, 0), run("b", "nf4", 1, 1)) == [
        ("b: standard", "a: standard", 2),
        ("a (nf4): standard", "a: standard", 2),
        ("b (nf4): standard", "b: standard", 2),
        ("b (nf4): standard", "a (nf4): standard", 2),
    ]


@pytest.mark.parametrize("changes", [{"seed": 1}, {"question_hash": "another"}, {"answer": 1}])
def test_a_question_is_the_same_under_one_seed_with_one_text_and_one_answer(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    one = finished(tmp_path / "1", "m", standard=[sample("x"), sample("y")])
    two = finished(tmp_path / "2", "m", standard=[sample("x", 1, **changes), sample("y", 1)])
    assert compared(one, two) == [("m: standard", "m: standard", 1)]


def test_a_run_whose_samples_are_lost_is_compared_with_nothing(tmp_path: Path) -> None:
    one = finished(tmp_path / "1", "m", standard=[sample("x")])
    assert compared(one, finished(tmp_path / "2", "m", standard=[])) == []
