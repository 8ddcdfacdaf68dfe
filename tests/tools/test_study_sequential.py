"""The study finds the same number of trials at which the method itself stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("scipy")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("filelock")

from minise import InputError, LanguageModel, Question, self_ensemble
from minise.groupings.registry import GROUPINGS
from minise.method import label_logits
from minise.methods.sample import Sample
from minise.methods.sequential import UntilDecided
from minise.report.results import Results
from minise.report.tables import render_parts
from minise.rounds import run_plan
from tests.support.commands import run as run_command
from tests.support.results import cell as made_cell
from tests.support.results import make
from tests.support.runs import no_drawing
from tools.studies import sequential
from tools.studies.sequential import (
    Cells,
    SequentialStudy,
    errors,
    summarise_sequential,
    table_of,
)

Cell = dict[str, Any]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential, "FIXED", (2, 9))
    monkeypatch.setattr(sequential, "BALANCED", (3,))
    monkeypatch.setattr(sequential, "BLOCKS", (3, 4))
    monkeypatch.setattr(sequential, "MOST_TRIALS", (13, 17))
    monkeypatch.setattr(sequential, "LEVELS", {"alpha": (0.4, 0.01), "z": (0.5, 2)})
    monkeypatch.setattr(sequential, "REPETITIONS", 2)


def test_runs_from_the_table_of_groups_equal_those_of_the_method(
    lm: LanguageModel, question: Question
) -> None:
    answered = Question(question.text, question.choices, id="q", answer=1)
    study = SequentialStudy(2)
    plan = study.plan(lm, answered, 5)
    answer = study.answer(plan, label_logits(lm, plan))
    notes = study.notes(lm, plan, answer, 5)
    exact = int(answer.scores.argmax())
    nll = -float(answer.probabilities[1].log())
    assert notes["exact"] == {"accuracy": float(exact == 1), "nll": pytest.approx(nll)}
    stopped = set()
    assert len(notes["cells"]) == 3 + 2 * 3 * 4
    sizes = {(cell["block"], cell["max_trials"]) for cell in notes["cells"][3:]}
    assert sizes == {(3, 13), (4, 13), (4, 17)}  # the last: the default block, 2m
    fixed = notes["cells"][:3]
    sizes = [(cell["rule"], cell["grouping"], cell["level"]) for cell in fixed]
    assert sizes == [("fixed", "random", 2), ("fixed", "random", 9), ("fixed", "balanced", 3)]
    for cell in fixed:
        N, grouping = cell["level"], cell["grouping"]
        alone = [replace(answered, id=f"q/{number}") for number in range(2)]
        sampled = [self_ensemble(lm, one, 2, N, seed=5, grouping=grouping) for one in alone]
        assert (cell["trials"], cell["decided"], cell["error"]) == ([N, N], 0, 0)
        assert cell["same"] == sum(one.prediction == exact for one in sampled) / 2
        assert cell["nll"] == pytest.approx(
            sum(-float(p.probabilities[1].log()) for p in sampled) / 2
        )
    for cell in notes["cells"][3:]:
        settings = {name: cell[name] for name in ("grouping", "block", "max_trials")}
        settings["grouping"] = GROUPINGS[cell["grouping"]]
        method = UntilDecided(2, **{cell["rule"]: cell["level"]}, **settings)
        same = decided = error = 0
        nll, bias = [], []
        for number in range(2):
            one = replace(answered, id=f"q/{number}")
            run, logits = run_plan(lm, method, method.plan(lm, one, 5), 5)
            sampled = method.answer(run, logits)
            run_notes = method.notes(lm, run, sampled, 5)
            assert cell["trials"][number] == run_notes["trials"]
            assert cell["tokens"][number] == run.tokens("tree")
            is_decided = run_notes["decided"]
            same += sampled.prediction == exact
            decided += is_decided
            error += is_decided and sampled.prediction != exact
            nll.append(-float(sampled.probabilities[1].log()))
            best = sampled.prediction
            bias.append(float(sampled.probabilities[best] - answer.probabilities[best]))
            stopped.add((is_decided, run_notes["trials"]))
        shares = (cell["same"], cell["decided"], cell["error"])
        assert shares == (same / 2, decided / 2, error / 2)
        assert cell["nll"] == pytest.approx(sum(nll) / 2)
        assert cell["bias"] == pytest.approx(sum(bias) / 2)
    assert len(stopped) > 2  # so that it does test something


def noted_sample(number: int, **change: Any) -> Sample:
    def cell(rule: str, level: float, grouping: str, tokens: int, same: float) -> Cell:
        key = {"rule": rule, "level": level, "grouping": grouping, "block": 4, "max_trials": 8}
        error = (1 - same) * (rule != "fixed")
        means = {"decided": 0.5, "same": same, "error": error, "accuracy": 1.0, "nll": 2.0}
        return {**key, "trials": [4, 8], "tokens": [tokens, tokens], **means, "bias": 0.1, **change}

    cells = [
        cell("fixed", 2, "random", 100, 0.5),
        cell("fixed", 4, "random", 200, 0.9),
        cell("fixed", 8, "random", 400, 0.9),
        cell("alpha", 0.1, "random", 120, 0.7),
        cell("z", 2, "balanced", 120, 1.0),
    ]
    exact = {"accuracy": 1.0, "nll": 1.5}
    notes = {"group_size": 2, "repetitions": 2, "exact": exact, "cells": cells}
    return Sample(str(number), 0, "", 0, 0, [0.5, 0.5], [0.5, 0.5], 9, notes=notes)


def test_a_rule_is_compared_at_equal_shares() -> None:
    summary = summarise_sequential([noted_sample(n) for n in range(10)])
    assert (summary["questions"], summary["repetitions"], summary["group_size"]) == (10, 2, 2)
    assert summary["exact"] == {"accuracy": 1.0, "nll": 1.5}
    *fixed, alpha, z = summary["cells"]
    assert [cell["tokens_of_fixed"] for cell in fixed] == [100, 200, 200]
    assert alpha["tokens_of_fixed"] == pytest.approx(150)
    assert z["tokens_of_fixed"] is None
    assert (alpha["trials"], alpha["trials_quantiles"]) == (6, [4, 6, 8])
    assert alpha["error"] == pytest.approx(0.3)
    low, high = alpha["error_interval"]  # 3 of 10
    assert (low, high) == (pytest.approx(0.0667, abs=1e-4), pytest.approx(0.6525, abs=1e-4))
    assert alpha["same_interval"] == pytest.approx([0.7, 0.7])  # no question differs from another
    mixed = [noted_sample(n, same=float(n % 2)) for n in range(10)]
    low, high = summarise_sequential(mixed)["cells"][0]["same_interval"]
    assert (low, high) == (pytest.approx(0.2), pytest.approx(0.8))
    assert z["error_interval"][0] == 0
    assert z["error_interval"][1] == pytest.approx(0.3085, abs=1e-4)


def test_a_second_question_about_each_fact_makes_no_interval_narrower() -> None:
    samples = [noted_sample(n, same=float(n % 2), error=0.1) for n in range(10)]
    alone = summarise_sequential(samples)
    of_facts = [replace(one, cluster=one.id) for one in samples]
    more = [replace(one, id=f"{one.id} again") for one in of_facts]
    both = summarise_sequential(of_facts + more)
    assert (both["questions"], both["facts"]) == (20, alone["facts"]) == (20, 10)
    for name in ("same_interval", "error_interval"):
        intervals = [cell[name] for cell in both["cells"]]
        assert intervals == [cell[name] for cell in alone["cells"]]
        assert len(set(map(tuple, intervals))) == 1  # of the same numbers in each cell


def test_a_fact_counts_once_in_the_interval_of_the_errors_of_all_runs() -> None:
    def run(questions: int, facts: int, error: float) -> Any:
        cell = {"rule": "z", "level": 1, "grouping": "balanced", "block": 4, "max_trials": 80}
        study = {"questions": questions, "facts": facts, "group_size": 2, "exact": {}}
        results = SimpleNamespace(raw={"config": {"model": "weights/tiny"}})
        return Cells(results, {"q": study | {"cells": [cell | {"error": error}]}})  # type: ignore[arg-type]

    text = errors([run(20, 10, 0.2), run(20, 10, 0.4)], "z", 1, "balanced")
    assert text == "30.00 [6.67, 65.25] of 40"  # as 3 of 10


@pytest.mark.parametrize("notes", [{}, {"cells": 3}, {**(noted_sample(0, tokens="x").notes or {})}])
def test_damaged_notes_are_one_line(notes: dict[str, Any]) -> None:
    damaged = replace(noted_sample(0), notes=notes)
    with pytest.raises(InputError, match=r"the notes are damaged .*; delete the samples file"):
        summarise_sequential([damaged])


def test_the_study_has_these_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert sequential.BLOCKS == (3, 4, 5, 6, 7, 8, 10)
    assert sequential.LEVELS["alpha"] == (0.1, 0.05, 0.01)
    assert sequential.LEVELS["z"] == (0.5, 0.75, 1, 1.5, 2)
    fixed = (3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 640, 1280)
    assert (fixed, (8, 20, 40, 80)) == (sequential.FIXED, sequential.BALANCED)
    assert sequential.MOST_TRIALS == (80, 320)
    assert sequential.REPETITIONS == 4


def test_stopping_is_compared_with_fixed_trials_in_the_table() -> None:
    def stopped(rule: str, level: float, block: int, **more: Any) -> dict[str, Any]:
        key = {"rule": rule, "level": level, "grouping": "random", "block": block}
        cost = {"trials": 12.5, "trials_quantiles": [8, 10, 24], "max_trials": 80}
        cost |= {"tokens": 500, "tokens_quantiles": [300.2, 450, 1000], "tokens_of_fixed": 1000}
        shares = {"decided": 0.875, "same": 0.96, "error": 0.01, "accuracy": 0.7}
        spread = {"same_interval": [0.9, 0.99], "error_interval": [0.0, 0.03]}
        return {**key, **cost, **shares, **spread, "nll": 0.8, "bias": 0.021, **more}

    cells = [
        stopped("fixed", 20, 20, tokens_of_fixed=None),
        stopped("alpha", 0.1, 8),  # block 8, twice m, is the default: all levels
        stopped("alpha", 0.1, 4),
        stopped("alpha", 0.05, 4),
        stopped("z", 1, 4),
        stopped("z", 2, 4),
    ]
    study = {"group_size": 4, "questions": 9, "facts": 8, "repetitions": 3, "cells": cells}
    study["exact"] = {"accuracy": 0.75, "nll": 0.6}
    run = Results.from_json(make(None, {"q": {"sequential-study": made_cell("./x.py:Study")}}))
    text = render_parts([run], [table_of(run, {"q": study})])
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    head, *lines = [[part.strip() for part in line.strip("|").split(" | ")] for line in lines]
    table = [dict(zip(head, line, strict=True)) for line in lines]
    assert (
        "q, m = 4, 9 questions of 8 facts x 3 repetitions; exact: accuracy 75.0, NLL 0.600. As"
        in text
    )
    stops = [(row["stop at"], row["block"]) for row in table]
    assert stops == [
        ("N = 20", "-"),
        ("alpha = 0.1", "8"),
        ("alpha = 0.05", "4"),
        ("z = 1", "4"),
    ]
    assert list(table[1].values()) == [
        *("random", "alpha = 0.1", "8", "80", "12.5", "10", "500", "300, 450, 1000", "12.5"),
        *("96.0 [90.0, 99.0]", "1.00 [0.00, 3.00]", "0.50", "70.0", "0.800", "+2.1"),
    ]
    assert (table[0]["undecided"], table[0]["of fixed"]) == ("-", "-")


def test_a_run_of_the_method_prints_its_table_and_those_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    where = f"{Path(sequential.__file__)}:SequentialStudy"
    options = ("--task", "miniature", "--questions", 1, "--cut-to", 4)
    with no_drawing():
        command = ("eval", *options, "--method", where, "--output-path", tmp_path)
        status, _, err = run_command(capsys, *command)
    assert (status, err) == (0, "")
    monkeypatch.setattr("sys.argv", ["sequential", str(tmp_path)])
    sequential.main()
    out = capsys.readouterr().out
    for text in ("undecided", "decided wrongly", "| alpha = 0.05, random |", "| 95% |"):
        assert text in out
    for text in ("alpha = 0.01", "z = 1, balanced", "N = 20"):
        assert text in out
