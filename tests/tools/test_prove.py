"""The trees that `python -m tools.prove` proves."""

from typing import Any

import pytest

import minise.equal_bits.attention as attention
import minise.equal_bits.run as run
from minise import pack
from minise.verify.proof import Prover
from tools.prove import model, plans, prove_all, random_plan


@pytest.mark.slow
def test_every_tree_of_up_to_4_tokens_is_proved() -> None:
    """`python -m tools.prove` proves those of up to 8."""
    assert [len(list(plans(n))) for n in range(1, 5)] == [2, 8, 26, 83]
    assert prove_all(3) == 26
    assert prove_all(4, block=2) == 83
    assert attention.BLOCK == 64


def test_a_fault_in_one_tree_is_found_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    real = run.tree_reader

    def reader(tree: Any, *rest: Any) -> Any:
        made = real(tree, *rest)
        if tree.parents.tolist() == [-1, 0, 0]:
            made.calls[0].keys[0, 0] = 1  # for its parent
        return made

    monkeypatch.setattr(run, "tree_reader", reader)
    with pytest.raises(AssertionError, match="tree differs first in layer 0"):
        prove_all(3)


def test_a_large_random_tree_is_proved() -> None:
    plan = random_plan(1500, seed=1)
    assert len(pack(plan.prefix, plan.branches, tree=True).tokens) == 1500
    prover = Prover(model((None, 20)))
    assert prover.prove(plan, engines=("tree",)).passed
