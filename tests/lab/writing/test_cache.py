"""Tokens of a later call read those of earlier calls, as if all had run together."""

import pytest
import torch
from torch import Tensor

from minise import Decoder, pack, record
from minise.lab.writing.cache import Cache, extend
from minise.layout import causal_mask
from tests.reference.support.equal import both
from tests.reference.support.masks import MASKS, POSITIONS, T
from tests.reference.support.tiny import ALL_FAMILIES, make_decoder

PREFIX = list(range(40, 90))
BRANCHES = [[50, 51, 52], [50, 51, 60, 61], list(range(100, 170)), [7]]
DECODERS = {family: make_decoder(raw) for family, raw in ALL_FAMILIES.items()}


def in_pieces(
    decoder: Decoder, tokens: Tensor, positions: Tensor, mask: Tensor, cuts: list[int]
) -> tuple[Tensor, Cache | None]:
    """The hidden states of a sequence that runs in pieces, and the cache of all."""
    cache, states = None, []
    for start, end in zip([0, *cuts], [*cuts, tokens.shape[-1]], strict=True):
        part = mask[start:end, :end]
        run, at = tokens[..., start:end], positions[..., start:end]
        hidden, cache = extend(decoder, run, at, part, cache)
        states.append(hidden)
    return torch.cat(states, dim=-2), cache


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("tree", [False, True], ids=["packed", "tree"])
@pytest.mark.parametrize("cuts", [[1], [49, 50, 51, 52, 53], [60, 100]], ids=str)
def test_a_packed_sequence_in_pieces_gives_the_same_numbers(
    family: str, tree: bool, cuts: list[int]
) -> None:
    layout = pack(PREFIX, BRANCHES, tree=tree)
    whole = DECODERS[family](layout.tokens, layout.positions, layout.mask)
    inputs = (layout.tokens, layout.positions, layout.mask)
    hidden, cache = in_pieces(DECODERS[family], *inputs, cuts)
    assert (hidden - whole).abs().max() <= 1e-10
    assert cache is not None
    assert torch.equal(cache.positions, layout.positions[None])
    assert len(cache.keys) == len(cache.values) == 3
    assert cache.keys[0].shape[1] == len(layout.tokens)


@pytest.mark.parametrize("name", MASKS)
def test_pieces_under_any_mask_that_looks_back_equal_the_whole_run(name: str) -> None:
    mask, tokens = MASKS[name] & causal_mask(T), torch.arange(T) % 250 + 5
    orders = {"mistral": "shuffled", "qwen3": "starting over"}
    for family, order in orders.items():
        whole = DECODERS[family](tokens, POSITIONS[order], mask)
        hidden, _ = in_pieces(DECODERS[family], tokens, POSITIONS[order], mask, [64, 65, 100])
        assert (hidden - whole).abs().max() <= 1e-10


def test_a_cache_can_be_extended_twice_and_cut_into_parts() -> None:
    """Several branches extend one trunk, and a branch can be cut off again. None of this changes
    the cache that was there."""
    decoder, S = DECODERS["qwen2"], len(PREFIX)
    _, cache = extend(decoder, torch.tensor(PREFIX), torch.arange(S), causal_mask(S))
    before = [x.clone() for x in (cache.positions, *cache.keys, *cache.values)]

    def below(cache: Cache, branch: list[int]) -> tuple[Tensor, Cache]:
        mask = torch.ones(len(branch), S + len(branch), dtype=torch.bool).tril(S)
        positions = torch.arange(S, S + len(branch))
        return extend(decoder, torch.tensor(branch), positions, mask, cache)

    first, longer = below(cache, BRANCHES[0])
    second, _ = below(cache, BRANCHES[1])
    again, _ = below(longer.only(torch.arange(S)), BRANCHES[1])
    assert torch.equal(second, again)
    rows = torch.tensor([3, 0])
    for part, whole in zip(longer.only(rows).values, longer.values, strict=True):
        assert torch.equal(part, whole[:, rows])
    layout = pack(PREFIX, BRANCHES[:2])
    whole = decoder(layout.tokens, layout.positions, layout.mask)
    assert (torch.cat([first, second]) - whole[S:]).abs().max() <= 1e-10
    after = [cache.positions, *cache.keys, *cache.values]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    with pytest.raises(ValueError, match="expected 50 of the cache and 50"):
        extend(decoder, torch.tensor(PREFIX), torch.arange(S), causal_mask(S), cache)


@pytest.mark.parametrize("family", DECODERS)
def test_tokens_of_a_cache_are_recorded_and_the_cache_stays(family: str) -> None:
    """A query's weights are those of a run of all tokens at once."""
    tokens, positions, causal = torch.arange(30, 54), torch.arange(24), causal_mask(24)
    for one in both(DECODERS[family]):
        with record(one, attention=True) as whole:
            states = one(tokens, positions, causal)
        first, rest = slice(0, 10), slice(10, 24)
        _, cache = extend(one, tokens[first], positions[first], causal[first, first])
        with record(one, attention=True) as later:
            after, longer = extend(one, tokens[rest], positions[rest], causal[rest], cache)
        assert (after - states[rest]).abs().max() <= 1e-10
        assert [keys.shape[1] for keys in longer.keys] == [24, 24, 24]
        for layer in (0, 1, 2):
            assert later.attention[layer].shape == (1, one.config.num_attention_heads, 14, 24)
            gap = later.attention[layer] - whole.attention[layer][:, :, rest]
            assert gap.abs().max() <= 1e-12
