"""Every method asks and answers as before the house was made small: tools/same_numbers.py."""

import json

import pytest

from tools.same_numbers import GOLDEN, SHIPPED, cases, close

CASES = json.loads(GOLDEN.read_text())["cases"]


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
