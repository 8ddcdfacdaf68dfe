"""Every method asks and answers as before the house was made small: tools/same_numbers.py."""

import json

import pytest

from minise import load
from minise.data.tasks import Selection, load_tasks
from tools.same_numbers import GOLDEN, SHIPPED, SIZES, WAYS, cases, close, numbers

CASES = json.loads(GOLDEN.read_text())["cases"]
FAST = ("standard", "self-ensemble", "self-ensemble authors-code", "cyclic", "presence")


@pytest.mark.parametrize("model", SHIPPED)
def test_the_main_methods_ask_and_answer_as_recorded(model: str) -> None:
    lm, (m, trials) = load(model, dtype="float32"), SIZES["miniature"]
    questions = load_tasks(["miniature"], Selection(limit=40))[0].questions
    for name in FAST:
        text = WAYS[name].replace("SIZES", f"group_size={m},trials={trials}")
        case, _ = numbers(lm, name, text, questions, "tree")
        golden = CASES[f"{model.removeprefix('weights/')} / float32 / miniature / {name}"]
        assert (case["ids"], case["tokens"]) == (golden["ids"], golden["tokens"]), name
        assert close(case["first"], golden["first"]), name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", SHIPPED)
def test_every_way_of_asking_asks_as_recorded(model: str, dtype: str) -> None:
    """Bits are compared by the tool, on the machine that recorded them."""
    for name, case in cases(model, dtype, None, small=False):
        golden = CASES[name]
        assert {k: case.get(k) for k in ("ids", "tokens", "refused")} == {
            k: golden.get(k) for k in ("ids", "tokens", "refused")
        }, name
        if dtype == "float32" and "first" in golden:
            assert close(case["first"], golden["first"]), name


def test_a_difference_is_seen() -> None:
    assert not close([0.5, 0.5], [0.5, 0.4])
