"""Self-Ensemble until it is decided: its error rates hold, and rounds do not change the numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minise import InputError, LanguageModel, Question, SelfEnsemble, ask, self_ensemble
from minise.grouping import Group, Groups
from minise.groupings.registry import GROUPINGS
from minise.methods.sequential import (
    LEAST_SPREAD,
    MOST_BET,
    Round,
    UntilDecided,
    log_wealth,
    standard_leads,
)
from minise.names import ENGINES
from minise.rounds import join, run_plan
from tests.support.commands import assert_one_line, run
from tests.support.runs import arguments

SHORT = Question("Which is a metal?", ["oak", "wren", "zinc", "silk", "rain"], answer=2, id="a")


def stops(values: np.ndarray, excluded: np.ndarray) -> int | None:
    """The choice that is left when the rule first stops, checked after every value; None if it
    never stops. excluded: (N, K), True where a choice is excluded at that time."""
    leaders = (np.cumsum(values, axis=0)).argmax(axis=1)
    for leader, out in zip(leaders, excluded, strict=True):
        if not out[leader] and out.sum() == len(out) - 1:
            return int(leader)
    return None


def by_alpha(values: np.ndarray, alpha: float) -> int | None:
    return stops(values, np.maximum.accumulate(log_wealth(values)) >= -log(alpha))


def by_z(values: np.ndarray, z: float) -> int | None:
    looks = range(1, len(values) + 1)
    return stops(values, np.stack([standard_leads(values[:n]) > z for n in looks]))


class TestTheValidRule:
    def test_a_bet_against_the_best_choice_gains_nothing_on_average(self) -> None:
        """Two choices of equal expectation: over all sequences the mean wealth is 1, exactly."""
        for N in (2, 5, 9):
            outcomes = product([(1.0, 0.0), (0.0, 1.0)], repeat=N)
            wealth = np.exp([log_wealth(np.array(one))[-1] for one in outcomes])
            assert wealth.mean(axis=0) == pytest.approx([1, 1])
            assert wealth.max() > 1

    @pytest.mark.parametrize("kind", ["opposite", "three"])
    def test_it_is_rarely_wrong_even_if_it_is_checked_after_every_value(self, kind: str) -> None:
        """Near ties, checked after each of 300 values. The plain rule errs more often, with the z
        that errs in 10% of cases if it is checked once."""
        draw = np.random.Generator(np.random.PCG64(1))
        wrong = plain = 0
        for _ in range(400):
            u = draw.random((300, 3))
            if kind == "opposite":
                one = np.hstack([u[:, :1] < 0.51, u[:, :1] >= 0.51]).astype(float)
            else:
                one = (u < [0.5, 0.48, 0.48]).astype(float)
            wrong += by_alpha(one, 0.1) not in (None, 0)
            plain += by_z(one[:40], 1.3) not in (None, 0)
        assert wrong <= 0.1 * 400
        assert plain > 0.1 * 400

    def test_a_clear_case_is_decided_as_early_as_possible(self) -> None:
        clear = np.tile([0.0, 0.98, 0.01], (20, 1))
        for alpha, first in ((0.1, 5), (0.05, 6), (0.01, 8)):
            assert by_alpha(clear[:first], alpha) == 1
            assert by_alpha(clear[: first - 1], alpha) is None

    def test_a_value_at_most_doubles_the_wealth_and_none_ends_the_betting(self) -> None:
        draw = np.random.Generator(np.random.PCG64(2))
        for _ in range(50):
            steps = np.diff(log_wealth(draw.integers(2, size=(30, 4)).astype(float)), axis=0)
            assert steps.max() <= log(1 + MOST_BET) + 1e-12
            assert steps.min() >= log(1 - MOST_BET) - 1e-12

    def test_the_first_bets_by_hand(self) -> None:
        wealth = log_wealth(np.array([[0.6, 0.1], [0.4, 0.2], [0.7, 0.3]]))
        assert wealth[0].tolist() == [0, 0]
        stake = min(MOST_BET, 1.5 / 1.25)
        assert wealth[1, 1] == pytest.approx(log(1 + stake * 0.2))
        stake = 0.5 / 1.25  # against the leader: the second gained -0.5
        assert wealth[1, 0] == pytest.approx(log(1 - stake * 0.2))

    def test_one_choice_needs_no_bet(self) -> None:
        assert log_wealth(np.ones((3, 1))).tolist() == [[0], [0], [0]]


def test_the_plain_rule_by_hand() -> None:
    assert standard_leads(np.array([[0.5, 0.4]])) == pytest.approx([0, 0.1 / LEAST_SPREAD])
    leads = standard_leads(np.array([[0.5, 0.4, 0.5], [0.9, 0.2, 0.7]]))
    assert leads == pytest.approx([0, 4 / 3, 1])


class TestTheMethod:
    def test_rounds_are_independent_blocks(self) -> None:
        for grouping in ("random", "balanced"):
            method = UntilDecided(2, block=4, grouping=GROUPINGS[grouping])
            drawn = [method.draw(5, number, 7, "q") for number in range(3)]
            assert all(len(groups.trials) == 4 for groups in drawn)
            assert all(groups.independent == (grouping == "random") for groups in drawn)
            assert len({groups.trials for groups in drawn}) == 3
            assert method.draw(5, 1, 7, "q") == drawn[1]
        assert len(UntilDecided(3).draw(7, 0, 0, "").trials) == 6
        assert len(UntilDecided(4).draw(3, 0, 0, "").trials) == 6
        assert len(UntilDecided(4, max_trials=5).draw(8, 0, 0, "").trials) == 5

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("settings", [{}, {"z": 9.0}, {"grouping": GROUPINGS["balanced"]}])
    def test_the_answer_is_that_of_self_ensemble_over_the_same_groups(
        self, lm: LanguageModel, engine: str, settings: dict[str, Any]
    ) -> None:
        method = UntilDecided(2, max_trials=11, block=4, **settings)
        plan, logits = run_plan(lm, method, method.plan(lm, SHORT, 3), 3, engine)
        answer = method.answer(plan, logits)
        drawn = [method.draw(5, number, 3, "a") for number in range(2)]
        trials = tuple(trial for groups in drawn for trial in groups.trials)
        same = SelfEnsemble(2, 8, lambda *_: Groups(trials))
        expected = ask(lm, same, SHORT, 3, engine)
        assert plan.groups.flat == list(dict.fromkeys(g for trial in trials for g in trial))
        assert torch.allclose(answer.probabilities, expected.probabilities, rtol=1e-14, atol=0)
        assert torch.allclose(answer.scores, expected.scores, rtol=1e-14, atol=0)
        notes = method.notes(lm, plan, answer, 3)
        assert notes.pop("rivals")
        assert notes == {"decided": False, "rounds": 2, "trials": 8, "max_trials": 11}

    def test_rivals_are_all_choices_that_could_still_be_the_best(self, lm: LanguageModel) -> None:
        method = UntilDecided(2, max_trials=4, block=4)
        plan, logits = run_plan(lm, method, method.plan(lm, SHORT), 0)
        answer = method.answer(plan, logits)
        rivals = method.notes(lm, plan, answer, 0)["rivals"]
        order = sorted(range(5), key=lambda i: -float(answer.scores[i]))
        assert rivals == order[1:]  # four trials cannot exclude anything at 0.01

    def test_if_the_predicted_choice_is_itself_excluded_nothing_is_decided(self) -> None:
        """12 trials for choice 0 exclude 1 and 2. Then 40 trials for choice 1 exclude 0, and 1 is
        the prediction: the bets have excluded every choice, so each could still be the best."""
        groups: list[Group] = [(0, 1, 2), (1, 0, 2)]  # the first of a group is the most probable
        drawn = ((groups[0],),) * 12 + ((groups[1],),) * 40
        question = Question("Which?", ["a", "b", "c"])
        plan = Round(question, Groups(((groups[0],), (groups[1],))), [], [], drawn=drawn)
        method = UntilDecided(3, null_option=False)
        answer = method.answer(plan, [torch.tensor([9.0, 0, 0], dtype=torch.float64)] * 2)
        assert answer.prediction == 1
        assert method.rivals(plan, answer) == [0, 2]
        alone = replace(plan, drawn=drawn[:12])
        assert method.rivals(alone, method.answer(alone, [torch.tensor([9.0, 0, 0])] * 2)) == []

    def test_the_plain_rule_takes_the_spread_over_all_trials(self, lm: LanguageModel) -> None:
        """Also for balanced rounds, whose trials are not independent."""
        method = UntilDecided(2, max_trials=8, block=4, z=9.0)
        plan, logits = run_plan(lm, method, method.plan(lm, SHORT), 0)
        answer = method.answer(plan, logits)
        probabilities = {group.choices: group.probabilities.numpy() for group in answer.groups}
        values = np.zeros((8, 5))
        drawn = [trial for number in range(2) for trial in method.draw(5, number, 0, "a").trials]
        for number, trial in enumerate(drawn):
            for group in trial:
                values[number, list(group)] = probabilities[group]
        leads = standard_leads(values)
        near, far = sorted(leads)[1:3]
        (rival,) = np.flatnonzero(leads == near)
        between = UntilDecided(2, max_trials=8, block=4, z=(near + far) / 2)
        assert between.rivals(plan, answer) == [rival]
        assert UntilDecided(2, max_trials=8, block=4, z=near / 2).rivals(plan, answer) == []

    def test_a_clear_answer_stops_the_rounds(self, lm: LanguageModel) -> None:
        """Logits that always favour one choice, under each label."""
        for settings, trials in (({}, 12), ({"alpha": 0.1}, 8), ({"z": 2.0}, 4)):
            method = UntilDecided(2, block=4, **settings)
            plan = method.plan(lm, SHORT)
            while True:
                pairs = zip(plan.prompts, plan.groups.flat, strict=True)
                logits = [
                    torch.tensor([9.0 * (i == 2) for i in group] + [6.0], dtype=torch.float64)
                    for _, group in pairs
                ]
                if (following := method.more(lm, plan, logits, 0)) is None:
                    break
                plan = join([plan, following])
            notes = method.notes(lm, plan, method.answer(plan, logits), 0)
            assert (notes["decided"], notes["trials"], notes["rivals"]) == (True, trials, [])

    def test_the_function_self_ensemble_has_the_option(self, lm: LanguageModel) -> None:
        results = set()
        for options in ({}, {"grouping": GROUPINGS["balanced"]}, {"null_option": False}):
            answer = self_ensemble(lm, SHORT, 2, seed=5, until_decided=0.1, max_trials=8, **options)
            expected = ask(lm, UntilDecided(2, 0.1, 8, **options), SHORT, 5)
            assert torch.equal(answer.probabilities, expected.probabilities)
            results.add(tuple(answer.probabilities.tolist()))
        assert len(results) == 3
        with pytest.raises(InputError, match=r"alpha 1 is not between 0 and 1"):
            self_ensemble(lm, SHORT, until_decided=1)

    @pytest.mark.parametrize("settings", [{"max_trials": 1}, {"max_trials": 1000, "block": 1}])
    def test_the_smallest_and_the_largest_numbers_of_trials_are_allowed(
        self, settings: dict[str, Any]
    ) -> None:
        assert UntilDecided(**settings).max_trials == settings["max_trials"]

    @pytest.mark.parametrize(
        ("settings", "complaint"),
        [
            ({"alpha": 0.0}, "alpha 0.0 is not between 0 and 1"),
            ({"alpha": float("nan")}, "alpha NaN is not between 0 and 1"),
            ({"max_trials": 0}, "rounds of 1 trials, at most 0 trials; give 1 <= block"),
            (
                {"block": 9, "max_trials": 7},
                "rounds of 9 trials, at most 7 trials; give 1 <= block",
            ),
            ({"block": 0}, "rounds of 0 trials, at most 80 trials"),
            ({"max_trials": 1001}, "max_trials <= 1,000"),
            ({"z": 0.0}, "z 0.0 is not above 0"),
            ({"grouping": GROUPINGS["exact"]}, '"exact" gives no rounds of independent trials'),
        ],
    )
    def test_impossible_settings_are_refused(
        self, settings: dict[str, Any], complaint: str
    ) -> None:
        with pytest.raises(InputError) as error:
            UntilDecided(**settings)
        assert complaint in str(error.value)


class TestAsk:
    def test_ask_reports_a_decision(self, capsys: pytest.CaptureFixture[str]) -> None:
        status, out, err = run(capsys, "ask", "--until-decided", 0.05)
        assert (status, err) == (0, "")
        assert "  decided after 8 trials (of at most 80): Ottawa leads by 0.81\n" in out
        assert "Self-Ensemble until decided answers: Ottawa (right)" in out
        assert "Standard inference answers" in out
        assert "precision:" not in out
        status, out, _ = run(capsys, "ask", "--until-decided", 0.05, "--json")
        report = json.loads(out)
        assert (report["method"], report["decided"], report["rivals"]) == (
            "until-decided",
            True,
            [],
        )
        assert (report["trials"], report["max_trials"], report["rounds"]) == (8, 80, 1)
        assert len(report["groups"]) == 16

    def test_ask_reports_that_nothing_is_decided(self, capsys: pytest.CaptureFixture[str]) -> None:
        command = ("ask", "--method", "until-decided(block=2,max_trials=4)")
        _, out, _ = run(capsys, *command)
        assert "= 8 prompts in 2 rounds," in out
        assert "  undecided after 4 trials (of at most 4): Ottawa leads by 0." in out
        assert "; it could still be " in out
        tokens = [json.loads(run(capsys, *command, "--json", "--engine", e)[1]) for e in ENGINES]
        assert tokens[0]["tokens"] == tokens[2]["tokens"]

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            (["--until-decided", "0"], "--until-decided: 0: give a number between 0 and 1"),
            (["--until-decided", "x"], "--until-decided: x: give a number between 0 and 1"),
            (["--method", "until-decided(max_trials=1001)"], "<= max_trials <= 1,000"),
            (["--method", "until-decided(block=9,max_trials=3)"], "at most 3 trials"),
            (["--until-decided", "0.1", "--method", "standard"], "is for the method until-decided"),
            (["--until-decided", "0.1", "--grouping", "exact"], "use random or balanced"),
        ],
    )
    def test_bad_options_are_one_line(
        self, options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert_one_line(*run(capsys, "ask", *options), [complaint])


@pytest.mark.usefixtures("undrawn")
class TestEval:
    NAME = "until-decided(max_trials=12)"
    METHODS = ("--method", "standard,self-ensemble(max_trials=12)", "--until-decided", 0.1)

    def run_all(self, model: Path, data: Path, folder: Path, *more: Any) -> Path:
        pytest.importorskip("sklearn")
        from minise.commands.cli import main

        assert main(arguments(model, data, folder, *self.METHODS, *more)) == 0
        return folder

    def test_eval_runs_it_in_place_of_self_ensemble_and_resumes(
        self, model: Path, data: Path, tmp_path: Path
    ) -> None:
        folder = self.run_all(model, data, tmp_path / "whole")
        results = json.loads((folder / "results.json").read_text())["results"]["words"]
        assert list(results) == ["standard", self.NAME]
        settings = results[self.NAME]["settings"]
        assert (settings["alpha"], settings["max_trials"], settings["group_size"]) == (0.1, 12, 2)
        path = folder / f"samples-words-{self.NAME}.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        samples = [json.loads(line) for line in lines]
        assert {sample["notes"]["trials"] for sample in samples} <= {4, 8, 12}
        assert all(s["notes"]["decided"] or s["notes"]["trials"] == 12 for s in samples)
        # Cut off after ten questions; questions that share a pass go on together.
        (folder / "results.json").unlink()
        path.write_text("".join(lines[:10]))
        self.run_all(model, data, folder, "--resume", "--tokens-per-pass", 3000)
        again = [json.loads(line) for line in path.read_text().splitlines()]
        for one in (*samples, *again):
            del one["seconds"]
        assert again == samples
        assert json.loads((folder / "results.json").read_text())["results"]["words"] == results

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            (["--method", "standard", "--until-decided", 0.1], "is for the method until-decided"),
            (["--experiment", "scale", "--until-decided", 0.1], "is for the method until-decided"),
            (["--method", "until-decided(alpha=2)"], "alpha 2 is not between 0 and 1"),
            (["--method", "until-decided,self-ensemble", "--until-decided", 0.1], "twice"),
        ],
    )
    def test_bad_options_are_one_line(
        self,
        options: list[Any],
        complaint: str,
        model: Path,
        data: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        pytest.importorskip("sklearn")
        command = arguments(model, data, tmp_path / "x", *options)
        assert_one_line(*run(capsys, *command), [complaint])


@pytest.mark.parametrize("grouping", ["random", "balanced"])
def test_no_group_is_asked_twice_while_others_are_new(lm: LanguageModel, grouping: str) -> None:
    """Three choices in groups of two have nine ordered groups; 20 trials hold 40."""
    question = Question("Which grows?", ["salt", "oak", "clay"], answer=1, id="c")
    method = UntilDecided(2, 1e-9, 20, 4, grouping=GROUPINGS[grouping])
    plan, logits = run_plan(lm, method, method.plan(lm, question), 0)
    answer = method.answer(plan, logits)
    assert method.notes(lm, plan, answer, 0)["trials"] == 20
    assert len(plan.rounds[0].prompts) <= 8
    assert len(set(plan.groups.flat)) <= 9
    assert sum(group.weight for group in answer.groups) == 40
    drawn = tuple(t for n in range(5) for t in method.draw(3, n, 0, "c").trials)
    whole = ask(lm, SelfEnsemble(2, 20, lambda *_: Groups(drawn)), question)
    assert torch.allclose(answer.scores, whole.scores, rtol=1e-14, atol=0)
    earlier = set[tuple[int, ...]]()
    for one in plan.rounds:
        groups = one.groups.flat
        assert len(set(groups)) == len(groups)
        assert not earlier & set(groups) or earlier >= set(groups)  # all again, where all are known
        earlier |= set(groups)
