"""The trees that `python -m tools.prove` proves."""

from dataclasses import replace
from typing import Any

import pytest

import minise.attention as core
import minise.lab.equal_bits.attention as fixed
from minise import pack
from minise.lab.equal_bits import decoder
from minise.lab.proof.proof import Prover
from tools.prove import config, prove_all, random_prompts, sets_of_prompts


@pytest.mark.slow
def test_every_tree_of_up_to_4_tokens_is_proved() -> None:
    """`python -m tools.prove` proves those of up to 8."""
    assert [len(list(sets_of_prompts(n))) for n in range(1, 5)] == [2, 8, 26, 83]
    usual = core.CHUNK, fixed.BLOCK
    assert prove_all(3) == 26
    assert prove_all(4, queries=2) == 83
    now = core.CHUNK, fixed.BLOCK
    assert now == usual


def test_a_fault_in_one_tree_is_found_among_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tree of a first token and two that follow it: of the plain decoder, or of equal
    bits."""
    fork = [[True, False, False], [True, True, False], [True, False, True]]
    real_reader, real_chunks = decoder.reader_of, core.chunks_of

    def reader_of(mask: Any, *rest: Any) -> Any:
        made = real_reader(mask, *rest)
        if mask.tolist() == fork:
            made.calls[0].keys[0, 0] = 1  # for its parent
        return made

    def chunks_of(mask: Any, *rest: Any) -> Any:
        chunks = real_chunks(mask, *rest)
        if mask[0].tolist() == fork:
            chunks[0] = replace(chunks[0], keys_S=chunks[0].keys_S.flip(0))
        return chunks

    with monkeypatch.context() as patch:
        patch.setattr(decoder, "reader_of", reader_of)
        with pytest.raises(AssertionError, match="tree, equal bits differs first in layer 0"):
            prove_all(3)
    monkeypatch.setattr(core, "chunks_of", chunks_of)
    with pytest.raises(AssertionError, match="tree differs first in layer 0"):
        prove_all(3)


def test_a_large_random_tree_is_proved() -> None:
    prompts = random_prompts(1500, seed=1)
    assert len(pack(prompts.prefix, prompts.branches, tree=True).tokens) == 1500
    prover = Prover(config((None, 20)))
    assert prover.prove(prompts, ["tree", "tree, equal bits"]).passed
