"""Tokens that follow others go on from the states of chosen ones, as if all had run together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from minise import InputError, generate, pack
from minise.lab.recurrent.definition import Definition
from minise.lab.writing.cache import Cache, extend
from minise.layout import causal_mask
from tests.lab.recurrent.hybrid import TINY, load_hybrid, make_decoder, prompts_of

DECODER = make_decoder()


def run_alone(prefix: list[int], rows: list[int]) -> Cache:
    """The cache of a beginning, with the states of these tokens."""
    S = len(prefix)
    chosen = torch.tensor(rows)
    return extend(DECODER, torch.tensor(prefix), torch.arange(S), causal_mask(S), rows=chosen)[1]


@pytest.mark.parametrize("seed", range(8))
def test_a_tree_that_follows_a_beginning_has_the_numbers_of_the_whole(seed: int) -> None:
    """One state is kept, that of the beginning's last token, for all branches."""
    prefix, branches = prompts_of(seed)
    prefix = prefix or [5]
    S = len(prefix)
    tree = pack(prefix, branches, tree=True)
    whole = DECODER(tree.tokens, tree.positions, tree.mask)
    cache = run_alone(prefix, [S - 1])
    assert cache.kept is not None
    assert [len(states) for states in cache.kept.states] == [1, 1, 1]
    assert len(cache.keys) == 1  # of the only layer with attention
    hidden, _ = extend(DECODER, tree.tokens[S:], tree.positions[S:], tree.mask[S:], cache)
    assert (hidden - whole[S:]).abs().max() <= 1e-12


@pytest.mark.parametrize("fork", [1, 2, 9, 20])
def test_a_branch_goes_on_from_any_token_whose_state_was_kept(fork: int) -> None:
    """After fewer tokens than the convolution has taps, too; and token by token."""
    prefix, branch = list(range(40, 61)), [7, 8, 9, 10, 11]
    cache = run_alone(prefix, [fork - 1, 20])
    T = len(branch)
    sees = torch.ones(T, 21 + T, dtype=torch.bool).tril(21)
    sees[:, fork:21] = False
    tokens, positions = torch.tensor(branch), torch.arange(fork, fork + T)
    alone = DECODER(
        torch.tensor(prefix[:fork] + branch), torch.arange(fork + T), causal_mask(fork + T)
    )
    hidden, _ = extend(DECODER, tokens, positions, sees, cache)
    assert (hidden - alone[fork:]).abs().max() <= 1e-12
    steps: list[Tensor] = []
    for row in range(T):
        part = slice(row, row + 1)
        one, cache = extend(DECODER, tokens[part], positions[part], sees[part, : 22 + row], cache)
        steps.append(one)
    assert (torch.cat(steps) - hidden).abs().max() <= 1e-12


def test_what_no_kept_state_has_seen_is_refused_in_one_line() -> None:
    cache = run_alone(list(range(40, 61)), [20])
    sees = torch.ones(1, 22, dtype=torch.bool)
    sees[:, 9:21] = False
    with pytest.raises(InputError, match="row 0 of the mask goes on from a token whose state was"):
        extend(DECODER, torch.tensor([7]), torch.tensor([9]), sees, cache)
    both = torch.tensor([[7], [8]])
    with pytest.raises(InputError, match="goes on in one sequence"):
        extend(DECODER, both, torch.tensor([21]), torch.ones(1, 22, dtype=torch.bool), cache)
    cut = cache.only(torch.arange(9))
    assert cut.kept is not None
    assert len(cut.kept.sees_SP) == 0  # its state cannot forget what was cut off


def test_texts_are_those_of_the_definition_token_by_token(tmp_path: Path) -> None:
    """Prompts that share a beginning, one of which is the beginning of another."""
    lm = load_hybrid(tmp_path)
    stops = json.dumps({"eos_token_id": 287})
    (tmp_path / "generation_config.json").write_text(stops)
    definition = Definition(TINY, lm.decoder.state_dict())
    prompts = [[9, 8, 7], [9, 8, 7, 30, 31], [9, 8, 50], [61]]
    written = generate(lm, prompts, max_new_tokens=6)
    for prompt, text in zip(prompts, written, strict=True):
        ids = list(prompt)
        for token in text.tokens:
            T = len(ids)
            logits = definition.logits(torch.tensor(ids), torch.arange(T), causal_mask(T))
            assert token == int(logits[-1].argmax())
            ids.append(token)
        assert len(text.tokens) == 6 or text.finished
