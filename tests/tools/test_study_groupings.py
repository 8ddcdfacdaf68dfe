"""Sampled groupings are compared with the exact expectation by looking their groups up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import InputError, LanguageModel, Question, self_ensemble
from minise.data.tasks import Task
from minise.evaluation.run import Run, evaluate
from minise.groupings.registry import GROUPINGS
from minise.method import SelfEnsemble, label_logits
from minise.methods.registry import Variant
from minise.methods.sample import Sample
from minise.report.drawing import style
from minise.report.results import Results
from minise.report.tables import render_parts
from tests.support.commands import run as run_command
from tests.support.results import cell, make
from tests.support.runs import no_drawing
from tools.studies import groupings
from tools.studies.groupings import (
    GroupingStudy,
    draw,
    read_runs,
    read_studies,
    summarise_study,
    table_of,
)

Cells = dict[tuple[str, int], dict[str, Any]]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupings, "TRIALS", (1, 3))
    monkeypatch.setattr(groupings, "REPETITIONS", 4)


@pytest.fixture
def answered(question: Question) -> Question:
    return Question(question.text, question.choices, id="q", answer=3)


def by_kind(cells: list[dict[str, Any]]) -> Cells:
    return {(cell["grouping"], cell["trials"]): cell for cell in cells}


def test_scores_from_the_table_of_groups_equal_those_of_a_run(
    lm: LanguageModel, answered: Question
) -> None:
    method = GroupingStudy(2)
    plan = method.plan(lm, answered, 5)
    answer = method.answer(plan, label_logits(lm, plan))
    notes = method.notes(lm, plan, answer, 5)
    assert (notes["group_size"], notes["repetitions"]) == (2, 4)
    cells = by_kind(notes["cells"])
    assert list(cells) == [
        ("random", 1),
        ("random", 3),
        ("balanced", 1),
        ("balanced", 3),
        ("exact", 0),
    ]
    exact = self_ensemble(lm, answered, 2, grouping="exact")
    assert torch.equal(answer.scores, exact.scores)
    assert cells["exact", 0]["nll"] == pytest.approx(-float(exact.probabilities[3].log()))
    assert cells["exact", 0]["variance"] == 0
    assert cells["exact", 0]["accuracy"] == float(exact.prediction == 3)
    for grouping in ("random", "balanced"):
        variance, nll, right = [], [], []
        for repetition in range(4):
            q = Question(answered.text, answered.choices, id=f"q/{repetition}")
            of_run = self_ensemble(lm, q, 2, 3, seed=5, grouping=grouping)
            variance.append(((of_run.scores - exact.scores) ** 2).mean())
            nll.append(-of_run.probabilities[3].log())
            right.append(float(of_run.prediction == 3))
        cell = cells[grouping, 3]
        assert cell["variance"] == pytest.approx(float(torch.stack(variance).mean()))
        assert cell["nll"] == pytest.approx(float(torch.stack(nll).mean()))
        assert cell["accuracy"] == pytest.approx(sum(right) / 4)


def test_the_tokens_are_those_that_the_model_runs(lm: LanguageModel, answered: Question) -> None:
    class TrunkOnly(LanguageModel):
        def counted_as(self, engine: str) -> str:
            return "dense"

    method = GroupingStudy(2)
    plan = method.plan(lm, answered, 5)
    answer = method.answer(plan, label_logits(lm, plan))
    for model, engine in (
        (lm, "tree"),
        (TrunkOnly(lm.name, lm.config, lm.decoder, lm.tokenizer), "dense"),
    ):
        cells = by_kind(method.notes(model, plan, answer, 5)["cells"])
        assert cells["exact", 0]["tokens"] == plan.tokens(engine)
        one = SelfEnsemble(2, trials=3, grouping=GROUPINGS["balanced"]).plan(lm, answered, 5)
        assert cells["balanced", 3]["tokens"] == one.tokens(engine)


def test_a_balanced_number_is_worth_the_random_trials_of_the_same_variance() -> None:
    def sample(number: int, seed: int = 0) -> Sample:
        spread = 1 + number % 3
        cells = [
            {"grouping": grouping, "trials": trials, "variance": variance * spread}
            | {"tokens": tokens, "accuracy": 0.5, "nll": 1.0}
            for grouping, trials, variance, tokens in [
                ("random", 1, 6.0, 10),
                ("random", 3, 2.0, 30),
                ("balanced", 1, 3.0, 11),
                ("balanced", 3, 0.5, 33),
                ("exact", 0, 0.0, 99),
            ]
        ]
        notes = {"group_size": 2, "repetitions": 4, "cells": cells}
        return Sample(str(number), seed, "", 0, 0, [0.5, 0.5], [0.5, 0.5], 99, notes=notes)

    samples = [sample(number) for number in range(30)]
    summary = summarise_study(samples)
    assert (summary["group_size"], summary["questions"], summary["repetitions"]) == (2, 30, 4)
    cells = by_kind(summary["cells"])
    assert cells["balanced", 1]["worth"] == pytest.approx(2)
    assert cells["balanced", 1]["worth_interval"] == pytest.approx([2, 2])
    assert cells["balanced", 1]["tokens_of_worth"] == pytest.approx(20)
    assert cells["balanced", 3]["worth"] == pytest.approx(12)
    assert cells["balanced", 3]["tokens_of_worth"] is None
    assert cells["random", 3]["variance"] == pytest.approx(4)
    assert cells["exact", 0]["tokens"] == 99
    assert {type(cell["trials"]) for cell in summary["cells"]} == {int}  # a number, not a mean
    for kind in (("random", 1), ("exact", 0)):
        assert set(cells[kind]) == {
            "grouping",
            "trials",
            "variance",
            "accuracy",
            "nll",
            "tokens",
        }
    # Another seed has other samples of groups: it does not make more questions.
    again = [sample(number, seed=1) for number in range(7)]
    assert summarise_study(samples + again) == summary
    # A second question about each fact makes no more facts, and its interval no narrower.
    more = [replace(one, id=f"{one.id} again", cluster=one.id) for one in samples]
    of_facts = summarise_study([*(replace(one, cluster=one.id) for one in samples), *more])
    assert (of_facts.pop("questions"), of_facts["facts"]) == (60, 30)
    assert summary.pop("questions") == 30
    assert of_facts == summary


def studied(number: int, **change: Any) -> Sample:
    cells = [
        {
            "grouping": grouping,
            "trials": 1,
            "variance": 0.0,
            "accuracy": 1.0,
            "nll": 0.0,
            "tokens": 9,
        }
        | change
        for grouping in ("random", "balanced", "exact")
    ]
    notes = {"group_size": 2, "repetitions": 4, "cells": cells}
    return Sample(str(number), 0, "", 0, 0, [0.5, 0.5], [0.5, 0.5], 9, notes=notes)


def test_groups_that_are_all_the_same_have_no_worth() -> None:
    """With two choices in groups of two nothing varies: 0 / 0 is no number."""
    summary = summarise_study([studied(0), studied(1)])
    assert all("worth" not in cell for cell in summary["cells"])
    assert summarise_study([studied(0)])["questions"] == 1
    # One question without variance: a resample of it alone has no ratio.
    summary = summarise_study([studied(0), studied(1, variance=2.0)])
    assert by_kind(summary["cells"])["balanced", 1]["worth_interval"] == [1.0, 1.0]


@pytest.mark.parametrize(
    "notes", [{}, {"cells": 3}, {"cells": [[]]}, {**(studied(0, tokens="x").notes or {})}]
)
def test_damaged_notes_are_one_line(notes: dict[str, Any]) -> None:
    damaged = replace(studied(0), notes=notes)
    with pytest.raises(InputError, match=r"the notes are damaged .*; delete the samples file"):
        summarise_study([damaged])


def sampled(grouping: str, trials: int, tokens: int, **more: Any) -> dict[str, Any]:
    shared = {"variance": 1e-3, "accuracy": 0.5, "nll": 0.7}
    return {"grouping": grouping, "trials": trials, "tokens": tokens, **shared, **more}


WORTH = {"worth": 2.5, "worth_interval": [2.0, 3.0]}
STUDY = {
    "group_size": 4,
    "questions": 9,
    "facts": 8,
    "repetitions": 16,
    "cells": [
        sampled("random", 1, 100),
        sampled("random", 5, 300),
        sampled("balanced", 1, 110, **WORTH, tokens_of_worth=250),
        sampled("balanced", 5, 330, **WORTH, tokens_of_worth=None),
        sampled("exact", 0, 9999, variance=0.0),
    ],
}


def results() -> Results:
    return Results.from_json(make(None, {"q": {"grouping-study": cell("./x.py:Study")}}))


def test_groupings_are_compared_in_one_table() -> None:
    run = results()
    text = render_parts([run], [table_of(run, {"q": STUDY})])
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert "q, m = 4, 9 questions of 8 facts x 16 repetitions: mean squared" in text
    rows = [[part.strip() for part in line.strip("|").split(" | ")] for line in lines]
    columns = ("tokens", "variance", "accuracy", "NLL")
    assert rows[0] == [
        *["N", *(f"random: {c}" for c in columns), *(f"balanced: {c}" for c in columns)],
        *["worth random trials", "which take tokens"],
    ]
    numbers = ["100", "1.00e-03", "50.0", "0.700"]
    assert rows[1] == ["1", *numbers, "110", *numbers[1:], "2.5 [2.0, 3.0]", "250"]
    assert rows[2][-2:] == ["2.5 [2.0, 3.0]", "over 300"]
    assert rows[3] == ["exact", "9,999", "0", "50.0", "0.700", *["-"] * 6]


def test_the_figure_shows_the_variance_and_what_balanced_trials_are_worth() -> None:
    pytest.importorskip("matplotlib")
    with style():
        figure = draw([(results(), {"q": STUDY})])
    above, below = figure.axes
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes] == [
        ("tokens a question", "variance of the scores"),
        ("trials N", "worth random trials"),
    ]
    assert [line.get_label() for line in above.lines] == ["random", "balanced"]
    assert [text.get_text() for text in above.texts] == ["1", "5", "1", "5"]
    (worth,) = below.containers
    segments = worth.lines[2][0].get_segments()
    assert [list(one[:, 1]) for one in segments] == [pytest.approx([2, 3])] * 2
    assert "m=4" in above.get_title()
    figure.draw_without_rendering()
    for ax in (above, below):  # no formula, which is not drawn as one
        assert not any("$" in tick.get_text() for tick in ax.get_xticklabels())
    caption = " ".join(figure.get_supxlabel().split())
    for words in ("N: partitions", "groups of m", "95% bootstrap intervals"):
        assert words in caption


def test_a_run_of_the_method_is_printed_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("scipy", "sklearn", "matplotlib", "filelock"):
        pytest.importorskip(module)
    where = f"{Path(groupings.__file__)}:GroupingStudy"
    options = ("--task", "miniature", "--questions", 1, "--cut-to", 4, "--group-size", 2)
    with no_drawing():
        command = ("eval", *options, "--method", where, "--output-path", tmp_path)
        status, _, err = run_command(capsys, *command)
    assert (status, err) == (0, "")
    monkeypatch.setattr("sys.argv", ["groupings", str(tmp_path)])
    groupings.main()
    out = capsys.readouterr().out
    for text in (
        "tiny-llama, miniature",
        "m = 2, 1 questions of 1 facts x 16 repetitions",
        "| exact ",
    ):
        assert text in out
    assert (tmp_path / "groupings.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_of_several_methods_is_refused(tmp_path: Path) -> None:
    run = Results.from_json(make(None, {"q": {"a": cell(), "b": cell()}}))
    with pytest.raises(InputError, match="has 2 methods; give a run of the study alone"):
        read_studies(tmp_path, run, summarise_study)


def test_a_resumed_run_repeats_only_a_torn_line(
    lm: LanguageModel, answered: Question, tmp_path: Path
) -> None:
    pytest.importorskip("filelock")
    pytest.importorskip("scipy")
    questions = [Question(f"{answered.text} {n}", answered.choices, answer=n) for n in range(3)]
    task = Task("birds", "birds", questions, {})
    run = Run(
        {0: [task]},
        {"birds": [Variant("exact", f"{groupings.__file__}:GroupingStudy", {"group_size": 2})]},
        {"model": "tiny"},
    )
    whole = evaluate(lm, run, tmp_path)
    assert whole["results"]["birds"]["exact"]["settings"] == {"group_size": 2}
    path = tmp_path / "samples-birds-exact.jsonl"
    text = path.read_text()
    path.write_text(text[:-9])
    again = evaluate(lm, run, tmp_path, resume=True)
    assert again["results"] == whole["results"]

    def without_time(text: str) -> list[Any]:
        return [json.loads(line) | {"seconds": None} for line in text.splitlines()]

    assert without_time(path.read_text()) == without_time(text)
    assert path.read_text().splitlines()[:2] == text.splitlines()[:2]


def test_a_folder_without_results_is_one_line(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        read_runs([tmp_path], summarise_study)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
