"""Tokens of a later call read those of earlier calls, as if all had run together.

`Decoder.extend` does so within rounding; with the refined layers the bits are equal.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from minise import LanguageModel, pack, record
from minise.cache import Cache
from minise.exact.run import extend, forward
from minise.layout import causal_mask
from tests.support.masks import MASKS, POSITIONS, T

PREFIX = list(range(40, 90))
BRANCHES = [[50, 51, 52], [50, 51, 60, 61], list(range(100, 170)), [7]]


def in_pieces(
    lm: LanguageModel, tokens: Tensor, positions: Tensor, mask: Tensor, cuts: list[int]
) -> tuple[Tensor, Cache]:
    """The hidden states of a sequence that runs in pieces, and the cache of all."""
    cache, states = None, []
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        part = mask[start:end, :end]
        hidden, cache = extend(lm.decoder, tokens[start:end], positions[start:end], part, cache)
        states.append(hidden)
    return torch.cat(states), cache


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tree", [False, True], ids=["packed", "tree"])
@pytest.mark.parametrize("cuts", [[1], [50], [49, 50, 51, 52, 53], [60, 100]], ids=str)
def test_a_packed_sequence_in_pieces_gives_the_same_bits(
    lm: LanguageModel, dtype: torch.dtype, tree: bool, cuts: list[int]
) -> None:
    lm = replace(lm, decoder=deepcopy(lm.decoder).to(dtype))
    layout = pack(PREFIX, BRANCHES, tree=tree)
    whole = forward(lm.decoder, layout.tokens, layout.positions, layout.mask)
    hidden, cache = in_pieces(lm, layout.tokens, layout.positions, layout.mask, cuts)
    assert torch.equal(hidden, whole)
    assert torch.equal(cache.positions, layout.positions)


@pytest.mark.parametrize("tree", [False, True], ids=["packed", "tree"])
def test_the_plain_decoder_extends_within_rounding(lm: LanguageModel, tree: bool) -> None:
    layout = pack(PREFIX, BRANCHES, tree=tree)
    whole = lm.decoder(layout.tokens, layout.positions, layout.mask)
    first, cache = lm.decoder.extend(
        layout.tokens[:60], layout.positions[:60], layout.mask[:60, :60]
    )
    prior = [x.clone() for x in (cache.positions, *cache.keys, *cache.values)]
    second, longer = lm.decoder.extend(
        layout.tokens[60:], layout.positions[60:], layout.mask[60:], cache
    )
    assert (torch.cat([first, second]) - whole).abs().max() <= 1e-10
    assert torch.equal(longer.positions, layout.positions)
    after = [cache.positions, *cache.keys, *cache.values]
    assert all(torch.equal(a, b) for a, b in zip(prior, after, strict=True))
    with pytest.raises(ValueError, match="the cache is of"):
        lm.decoder.extend(
            layout.tokens[60:].expand(3, -1), layout.positions[60:], layout.mask[60:], cache
        )


def test_each_token_equals_the_whole_run_at_every_layer(lm: LanguageModel) -> None:
    layout = pack(PREFIX, BRANCHES)
    with record(lm.decoder) as whole:
        forward(lm.decoder, layout.tokens, layout.positions, layout.mask)
    _, cache = in_pieces(lm, layout.tokens[:60], layout.positions[:60], layout.mask[:60, :60], [25])
    with record(lm.decoder) as later:
        extend(lm.decoder, layout.tokens[60:], layout.positions[60:], layout.mask[60:], cache)
    for layer, stream in later.residual.items():
        assert torch.equal(stream, whole.residual[layer][..., 60:, :])


@pytest.mark.parametrize("name", MASKS)
def test_pieces_under_any_mask_that_looks_back_equal_the_whole_run(
    lm: LanguageModel, name: str
) -> None:
    """Within rounding: the keys of a row may lie among others that are masked for it.
    tests/core/test_attention.py covers every order of positions."""
    mask, tokens = MASKS[name] & causal_mask(T), torch.arange(T) % 250 + 5
    for order in ("shuffled", "starting over"):
        positions = POSITIONS[order]
        whole = forward(lm.decoder, tokens, positions, mask)
        hidden, _ = in_pieces(lm, tokens, positions, mask, [64, 65, 100])
        assert (hidden - whole).abs().max() <= 1e-10


def test_a_batch_is_extended_as_each_of_its_items(lm: LanguageModel) -> None:
    tokens = torch.arange(24).reshape(2, 12) + 30
    positions = torch.stack([torch.arange(12), torch.arange(12) + 5])
    mask = causal_mask(12).expand(2, 12, 12)
    whole = forward(lm.decoder, tokens, positions, mask)
    first, cache = extend(lm.decoder, tokens[:, :7], positions[:, :7], mask[:, :7, :7])
    second, cache = extend(lm.decoder, tokens[:, 7:], positions[:, 7:], mask[:, 7:], cache)
    assert torch.equal(torch.cat([first, second], dim=1), whole)
    assert torch.equal(cache.positions, positions)


def test_a_cache_can_be_extended_twice_and_cut_into_parts(lm: LanguageModel) -> None:
    """Several branches extend one trunk, and a branch can be cut off again."""
    trunk = torch.tensor(PREFIX)
    at = torch.arange(len(PREFIX))
    _, cache = extend(lm.decoder, trunk, at, causal_mask(len(PREFIX)))
    S = len(PREFIX)

    def below(cache: Cache, branch: list[int]) -> tuple[Tensor, Cache]:
        mask = torch.ones(len(branch), S + len(branch), dtype=torch.bool).tril(S)
        positions = torch.arange(S, S + len(branch))
        return extend(lm.decoder, torch.tensor(branch), positions, mask, cache)

    first, longer = below(cache, BRANCHES[0])
    second, _ = below(cache, BRANCHES[1])
    again, _ = below(longer.only(torch.arange(S)), BRANCHES[1])
    assert torch.equal(second, again)
    layout = pack(PREFIX, BRANCHES[:2])
    whole = forward(lm.decoder, layout.tokens, layout.positions, layout.mask)
    assert torch.equal(torch.cat([first, second]), whole[S:])


def test_extending_does_not_change_its_arguments(lm: LanguageModel) -> None:
    layout = pack(PREFIX, BRANCHES)
    _, cache = extend(
        lm.decoder, layout.tokens[:50], layout.positions[:50], layout.mask[:50, :50].clone()
    )
    before = [x.clone() for x in (layout.mask, cache.positions, *cache.keys, *cache.values)]
    extend(lm.decoder, layout.tokens[50:], layout.positions[50:], layout.mask[50:], cache)
    after = [layout.mask, cache.positions, *cache.keys, *cache.values]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_mask_of_the_wrong_shape_or_kind_is_refused(lm: LanguageModel) -> None:
    tokens, at = torch.tensor([5, 6]), torch.arange(2)
    _, cache = extend(lm.decoder, tokens, at, causal_mask(2))
    with pytest.raises(ValueError, match=r"expected T, T and \(2, 4\)"):
        extend(lm.decoder, tokens, at + 2, causal_mask(2), cache)
    with pytest.raises(ValueError, match="its own token"):
        extend(lm.decoder, tokens, at + 2, torch.ones(2, 4, dtype=torch.bool).tril(1), cache)
    with pytest.raises(TypeError, match="bool"):
        extend(lm.decoder, tokens, at + 2, torch.ones(2, 4), cache)
    with pytest.raises(ValueError, match="cache"):
        extend(lm.decoder, tokens.expand(3, 2), at + 2, causal_mask(2), cache)
