"""Where rules of stopping would have stopped is looked up, and is where the method stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minise import InputError, LanguageModel, Question, self_ensemble
from minise.evaluation import sequential_study
from minise.evaluation.sequential_study import SequentialStudy, summarise_sequential
from minise.groupings.registry import GROUPINGS
from minise.method import label_logits
from minise.methods.sample import Sample
from minise.methods.sequential import UntilDecided
from minise.rounds import run_plan

pytest.importorskip("scipy")
Cell = dict[str, Any]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequential_study, "FIXED", (2, 9))
    monkeypatch.setattr(sequential_study, "BALANCED", (3,))
    monkeypatch.setattr(sequential_study, "BLOCKS", (3, 4))
    monkeypatch.setattr(sequential_study, "MOST_TRIALS", (13, 17))
    monkeypatch.setattr(sequential_study, "LEVELS", {"alpha": (0.4, 0.01), "z": (0.5, 2)})
    monkeypatch.setattr(sequential_study, "REPETITIONS", 2)


def test_looked_up_runs_are_those_of_the_method(lm: LanguageModel, question: Question) -> None:
    asked = Question(question.text, question.choices, id="q", answer=1)
    study = SequentialStudy(2)
    plan = study.plan(lm, asked, 5)
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
        alone = [replace(asked, id=f"q/{number}") for number in range(2)]
        found = [self_ensemble(lm, one, 2, N, seed=5, grouping=grouping) for one in alone]
        assert (cell["trials"], cell["decided"], cell["error"]) == ([N, N], 0, 0)
        assert cell["same"] == sum(one.prediction == exact for one in found) / 2
        assert cell["nll"] == pytest.approx(
            sum(-float(p.probabilities[1].log()) for p in found) / 2
        )
    for cell in notes["cells"][3:]:
        settings = {name: cell[name] for name in ("grouping", "block", "max_trials")}
        settings["grouping"] = GROUPINGS[cell["grouping"]]
        method = UntilDecided(2, **{cell["rule"]: cell["level"]}, **settings)
        same = decided = error = 0
        nll, bias = [], []
        for number in range(2):
            one = replace(asked, id=f"q/{number}")
            run, logits = run_plan(lm, method, method.plan(lm, one, 5), 5)
            found = method.answer(run, logits)
            told = method.notes(lm, run, found, 5)
            assert cell["trials"][number] == told["trials"]
            assert cell["tokens"][number] == run.tokens("tree")
            said = told["decided"]
            same += found.prediction == exact
            decided += said
            error += said and found.prediction != exact
            nll.append(-float(found.probabilities[1].log()))
            best = found.prediction
            bias.append(float(found.probabilities[best] - answer.probabilities[best]))
            stopped.add((said, told["trials"]))
        shares = (cell["same"], cell["decided"], cell["error"])
        assert shares == (same / 2, decided / 2, error / 2)
        assert cell["nll"] == pytest.approx(sum(nll) / 2)
        assert cell["bias"] == pytest.approx(sum(bias) / 2)
    assert len(stopped) > 2  # so that it does test something


def made(number: int, **change: Any) -> Sample:
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
    found = summarise_sequential({"exact": [made(n) for n in range(10)]}, resamples=50)
    assert (found["questions"], found["repetitions"], found["group_size"]) == (10, 2, 2)
    assert found["exact"] == {"accuracy": 1.0, "nll": 1.5}
    *fixed, alpha, z = found["cells"]
    assert [cell["tokens_of_fixed"] for cell in fixed] == [100, 200, 200]
    assert alpha["tokens_of_fixed"] == pytest.approx(150)
    assert z["tokens_of_fixed"] is None
    assert (alpha["trials"], alpha["trials_quantiles"]) == (6, [4, 6, 8])
    assert alpha["error"] == pytest.approx(0.3)
    low, high = alpha["error_interval"]  # 3 of 10
    assert (low, high) == (pytest.approx(0.0667, abs=1e-4), pytest.approx(0.6525, abs=1e-4))
    assert alpha["same_interval"] == pytest.approx([0.7, 0.7])  # no question differs from another
    mixed = [made(n, same=float(n % 2)) for n in range(10)]
    low, high = summarise_sequential({"exact": mixed})["cells"][0]["same_interval"]
    assert (low, high) == (pytest.approx(0.2), pytest.approx(0.8))
    assert z["error_interval"][0] == 0
    assert z["error_interval"][1] == pytest.approx(0.3085, abs=1e-4)


@pytest.mark.parametrize("notes", [{}, {"cells": 3}, {**(made(0, tokens="x").notes or {})}])
def test_damaged_notes_are_one_line(notes: dict[str, Any]) -> None:
    spoilt = replace(made(0), notes=notes)
    with pytest.raises(InputError, match=r"exact: notes are damaged .*; delete its samples file"):
        summarise_sequential({"exact": [spoilt]})


def test_the_study_is_of_these_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert sequential_study.BLOCKS == (3, 4, 5, 6, 7, 8, 10)
    assert sequential_study.LEVELS["alpha"] == (0.1, 0.05, 0.01)
    assert sequential_study.LEVELS["z"] == (0.5, 0.75, 1, 1.5, 2)
    fixed = (3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 640, 1280)
    assert (fixed, (8, 20, 40, 80)) == (sequential_study.FIXED, sequential_study.BALANCED)
    assert sequential_study.MOST_TRIALS == (80, 320)
    assert sequential_study.REPETITIONS == 4
