"""What every method asks and answers is what it was before: the golden of tools/same_numbers.py.

Its ids and token counts are equal to those of the code before the rebuild of the package, and its
first probabilities within 3e-6. Its bits are those of the bitwise arithmetic (minise/attention.py).
Here ids, groups and label ids are compared exactly, for all questions, and probabilities within
rounding, for the first two: other processors round the last digits differently. To the last bit,
and on real questions, `python -m tools.same_numbers check` compares them on the machine that
recorded them.
"""

from __future__ import annotations

import json

import pytest

from minise import load
from minise.evaluation.tasks import load_tasks
from tools.same_numbers import GOLDEN, MODELS, SIZES, numbers, ways

CASES = json.loads(GOLDEN.read_text())["cases"]


@pytest.mark.parametrize("model", MODELS)
def test_every_way_of_asking_is_what_it_was(model: str) -> None:
    lm = load(f"weights/{model}")
    questions = load_tasks(["miniature"], questions=60)[0].questions
    for name, way in ways(*SIZES["miniature"]).items():
        golden = CASES[f"{model} / miniature / {name}"]
        found, _ = numbers(lm, way, questions, answered=2)
        assert found["ids"] == golden["ids"], name
        assert found["tokens"] == golden["tokens"], name
        for here, there in zip(found["first"], golden["first"], strict=True):
            assert here == pytest.approx(there, abs=1e-4), name
