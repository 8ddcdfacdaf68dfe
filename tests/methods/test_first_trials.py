"""The first trials of a longer run equal a run of that many trials."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from minise import InputError, LanguageModel, SelfEnsemble
from minise.method import Answer, label_logits
from minise.methods.build import build
from minise.methods.first_trials import FirstTrials, group_records
from minise.methods.registry import Variant
from minise.methods.sample import Sample
from minise.names import ENGINES
from tests.support.methods import QUESTION, plan


def test_its_defaults_are_those_of_self_ensemble() -> None:
    fewer, ensemble = FirstTrials("another"), SelfEnsemble()
    assert (fewer.group_size, fewer.trials) == (ensemble.group_size, ensemble.trials)


class TestFirstTrials:
    def sample(self, lm: LanguageModel, engine: str, trials: int, **settings: Any) -> Sample:
        """A sample of a run with this many trials, as `evaluate` stores it."""
        full_plan = plan(lm, "self-ensemble", QUESTION, group_size=3, trials=trials, **settings)
        method = build(Variant("x", "self-ensemble"))
        answer: Answer = method.answer(full_plan, label_logits(lm, full_plan, engine))
        return Sample(
            id="q",
            seed=3,
            question_hash=QUESTION.content_hash,
            answer=2,
            prediction=answer.prediction,
            probabilities=answer.probabilities.tolist(),
            scores=answer.scores.tolist(),
            tokens=full_plan.tokens(engine),
            seconds=1.0,
            groups=json.loads(json.dumps(group_records(full_plan, answer, engine))),
        )

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("settings", [{}, {"null_option": False}, {"grouping": "independent"}])
    def test_they_equal_a_run_of_that_many_trials(
        self, lm: LanguageModel, engine: str, settings: dict[str, Any]
    ) -> None:
        most = self.sample(lm, engine, 12, **settings)
        for trials in (1, 2, 5, 11, 12):
            method = FirstTrials("most", group_size=3, trials=trials)
            assert method.needs == ("most",)
            (short,) = method.fit({"most": [most]})
            alone = self.sample(lm, engine, trials, **settings)
            assert short.tokens == alone.tokens
            assert short.prediction == alone.prediction
            assert short.scores == pytest.approx(alone.scores, abs=1e-12, nan_ok=True)
            assert short.probabilities == pytest.approx(alone.probabilities, abs=1e-12, nan_ok=True)
            assert (short.id, short.seed, short.answer) == ("q", 3, 2)
            assert short.seconds is short.groups is short.logits is None
        assert short.probabilities == most.probabilities  # all of them: to the last bit

    def test_more_trials_than_the_run_has_are_refused_in_one_line(self, lm: LanguageModel) -> None:
        most = self.sample(lm, "tree", 2)
        for samples in ([most], [replace(most, groups=None)]):
            with pytest.raises(InputError, match="most has fewer than 3 trials"):
                FirstTrials("most", trials=3).fit({"most": samples})
