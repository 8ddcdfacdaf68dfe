"""Every method asks and answers the same as before: the golden of tools/same_numbers.py.

Its ids and token counts are equal to those of the code before the rebuild of the package, and its
first probabilities within 3e-6. Its bits are those of minise/exact/ on the machine that it names.
Here ids, groups and label ids are compared exactly, for all questions, and probabilities within
rounding, for the first: other processors round the last digits differently. To the last bit,
and on real questions, `python -m tools.same_numbers check` compares them on the machine that
recorded them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from minise import load
from minise.data.tasks import Selection, load_tasks
from tools.same_numbers import GOLDEN, MODELS, SIZES, close, numbers, ways

CASES = json.loads(GOLDEN.read_text())["cases"]


def remembering(encode: Callable[[list[str]], list[list[int]]]) -> Callable[..., list[list[int]]]:
    """Most ways ask the same prompts, and encoding them takes most of the time."""
    ids_of: dict[str, list[int]] = {}

    def ids(texts: list[str]) -> list[list[int]]:
        new = [text for text in texts if text not in ids_of]
        ids_of.update(zip(new, encode(new), strict=True))
        return [list(ids_of[text]) for text in texts]

    return ids


@pytest.mark.parametrize("model", MODELS)
def test_every_way_of_asking_has_the_recorded_numbers(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load(f"weights/{model}")
    monkeypatch.setattr(lm.tokenizer, "encode", remembering(lm.tokenizer.encode))
    questions = load_tasks(["miniature"], Selection(questions=60))[0].questions
    for name, way in ways(*SIZES["miniature"]).items():
        golden = CASES[f"{model} / miniature / {name}"]
        case, _ = numbers(lm, way, questions, answered=1)
        assert case["ids"] == golden["ids"], name
        assert case["tokens"] == golden["tokens"], name
        assert case["first"][0] == pytest.approx(golden["first"][0], abs=1e-4), name


def test_on_another_machine_probabilities_are_compared_within_rounding() -> None:
    first = [[0.1, 0.9], [0.4, 0.6]]
    assert close(first, [[0.10009, 0.89991], [0.4, 0.6]])
    assert not close(first, [[0.1, 0.9], [0.4, 0.6002]])
