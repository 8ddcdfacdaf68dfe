"""The first trials of a longer run equal a run of that many trials."""

import json
from typing import Any

import pytest

from minise import InputError, LocalModel
from minise.methods.first_trials import FirstTrials, group_records
from minise.methods.fitted import Row
from minise.pipeline import answers
from minise.question import Asked
from tests.support.methods import QUESTION, method


def row(lm: LocalModel, engine: str, trials: int, **settings: Any) -> Row:
    """An answer of a run with this many trials, as an evaluation saves it."""
    one = method("self-ensemble", group_size=3, trials=trials, **settings)
    (answered,) = answers(lm.with_engine(engine), one, [Asked(QUESTION, 3)])
    answer = answered.answer
    records = group_records(answer, answered.prompts, engine)
    return {
        **{"id": "q", "seed": 3, "question_hash": "h", "answer": 2, "seconds": 1.0},
        "prediction": answer.prediction,
        "probabilities": answer.probabilities.tolist(),
        "scores": answer.scores.tolist(),
        "tokens": answered.tokens,
        "groups": json.loads(json.dumps(records)),
    }


@pytest.mark.parametrize(
    ("engine", "settings"),
    [("tree", {}), ("packed", {"null_option": False}), ("separate", {"grouping": "independent"})],
)
def test_they_equal_a_run_of_that_many_trials(
    lm: LocalModel, engine: str, settings: dict[str, Any]
) -> None:
    most = row(lm, engine, 12, **settings)
    for trials in (5, 11, 12):
        fewer = FirstTrials("most", trials)
        assert fewer.needs == ("most",)
        (short,) = fewer.fit({"most": [most]})
        alone = row(lm, engine, trials, **settings)
        for name in ("id", "seed", "question_hash", "answer", "tokens", "prediction"):
            assert short[name] == alone[name], name
        for name in ("scores", "probabilities"):
            assert short[name] == pytest.approx(alone[name], abs=1e-12)
        assert not {"seconds", "groups", "logits"} & short.keys()
    assert short["probabilities"] == most["probabilities"]  # all of them: to the last bit


def test_more_trials_than_the_run_has_are_refused(qwen: LocalModel) -> None:
    with pytest.raises(InputError, match="most has fewer than 3 trials"):
        FirstTrials("most", 3).fit({"most": [row(qwen, "tree", 2)]})
