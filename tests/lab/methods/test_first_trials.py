"""The first trials of a longer run equal a run of that many trials."""

from dataclasses import replace
from typing import Any

import pytest

from minise import InputError, LocalModel
from minise.lab.data.asked import Asked
from minise.lab.evaluation.pipeline import answers
from minise.lab.methods.first_trials import FirstTrials, saved_groups
from minise.lab.methods.fitted import check_needs
from minise.lab.methods.registry import make_methods
from minise.lab.methods.saved import SavedAnswer
from tests.lab.support.methods import method
from tests.reference.support.questions import QUESTION


def saved(lm: LocalModel, engine: str, trials: int, **settings: Any) -> SavedAnswer:
    """An answer of a run with this many trials, as an evaluation saves it."""
    one = method("self-ensemble", group_size=3, trials=trials, **settings)
    (answered,) = answers(lm.with_engine(engine), one, [Asked(QUESTION, 3)])
    answer = answered.answer
    return SavedAnswer(
        id="q",
        seed=3,
        question_hash="h",
        answer=2,
        prediction=answer.prediction,
        normalized=answer.normalized.tolist(),
        scores=answer.scores.tolist(),
        tokens=answered.tokens,
        seconds=1.0,
        groups=saved_groups(answer, answered.prompts, engine),
    )


@pytest.mark.parametrize(
    ("engine", "settings"),
    [("tree", {}), ("packed", {"null_option": False}), ("separate", {"grouping": "independent"})],
)
def test_they_equal_a_run_of_that_many_trials(
    lm: LocalModel, engine: str, settings: dict[str, Any]
) -> None:
    most = saved(lm, engine, 12, **settings)
    for trials in (5, 11, 12):
        fewer = FirstTrials("most", trials)
        assert fewer.needs == ("most",)
        (short,) = fewer.fit({"most": [most]})
        alone = saved(lm, engine, trials, **settings)
        for name in ("id", "seed", "question_hash", "answer", "tokens", "prediction"):
            assert getattr(short, name) == getattr(alone, name), name
        for name in ("scores", "normalized"):
            assert getattr(short, name) == pytest.approx(getattr(alone, name), abs=1e-12)
        assert short.seconds is short.groups is short.logits is None
    assert short.normalized == most.normalized  # all of them: to the last bit


@pytest.mark.parametrize(
    ("of", "refusal"),
    [
        ("standard", "standard has no trials"),
        ("dirichlet", "dirichlet has no trials"),
        ("first-trials(trials=2)", "has no trials"),
        ("self-ensemble(grouping=exact)", "has no trials"),
        ("self-ensemble", r"fewer than 9 trials \(8\)"),
        ("absent", '"absent"'),
    ],
)
def test_what_has_no_such_trials_is_refused_before_it_is_asked(of: str, refusal: str) -> None:
    others = ["standard", "dirichlet", "first-trials(trials=2)", "self-ensemble"]
    others.append("self-ensemble(grouping=exact)")
    methods = make_methods(others, {"trials": 8})
    methods["mine"] = FirstTrials(of, 9)
    with pytest.raises(InputError, match=refusal):
        check_needs(methods)


def test_more_trials_than_the_run_has_are_refused(qwen: LocalModel) -> None:
    two = saved(qwen, "tree", 2)
    with pytest.raises(InputError, match="most has fewer than 3 trials"):
        FirstTrials("most", 3).fit({"most": [two]})
    with pytest.raises(InputError, match="most keeps no groups"):
        FirstTrials("most", 2).fit({"most": [replace(two, groups=None)]})
