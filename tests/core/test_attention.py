"""The decoder takes any mask. These are its promises, and the masks that people use.

Any mask, with positions in any order, gives the numbers of an explicit softmax. With the refined
layers, packed documents and stacked prompts give the bits of each prompt run alone. The masks, the
orders of positions and the families are combined in pairs: each two of them meet.
"""

import pytest
import torch
from torch import Tensor

from minise import Decoder
from minise.attention import masked_attention, within
from minise.equal_bits.layers import refine
from minise.equal_bits.run import forward
from minise.layout import causal_mask
from tests.support.masks import DOCUMENTS, MASKS, POSITIONS, T, blocks, random_mask, restarts
from tests.support.tiny import ALL_FAMILIES, make_decoder

TOKENS = torch.randint(30, 250, (T,), generator=torch.Generator().manual_seed(0))
DECODERS = {family: make_decoder(raw) for family, raw in ALL_FAMILIES.items()}
REFINED = {family: refine(decoder) for family, decoder in DECODERS.items()}
# Each two of mask, order and family meet.
TRIPLES = [
    (mask, order, list(DECODERS)[(i + j) % len(DECODERS)])
    for i, mask in enumerate(MASKS)
    for j, order in enumerate(POSITIONS)
]


def explicit_softmax(decoder: Decoder, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Hidden states (T, D) by one softmax over all T tokens, the windows by position."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        repeats, window = q.shape[2] // k.shape[2], decoder.config.sliding_windows[layer]
        k, v = (x.repeat_interleave(repeats, dim=2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        distance = positions[:, None] - positions
        visible = mask if window is None else mask & (distance < window)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    return decoder.run(tokens[None], positions[None], attend)[0]


def run_alone(decoder: Decoder, tokens: Tensor) -> Tensor:
    """Hidden states (T, D) of a plain causal run."""
    return forward(decoder, tokens, torch.arange(len(tokens)), causal_mask(len(tokens)))


@pytest.mark.parametrize(("name", "order", "family"), TRIPLES)
def test_any_mask_gives_a_softmax_over_the_visible_tokens(
    name: str, order: str, family: str
) -> None:
    inputs = (TOKENS, POSITIONS[order], MASKS[name])
    expected = explicit_softmax(DECODERS[family], *inputs)
    for hidden in (DECODERS[family](*inputs), forward(REFINED[family], *inputs)):
        assert (hidden - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 129, 200])
def test_random_masks_of_any_length_give_that_softmax(length: int) -> None:
    tokens = TOKENS.repeat(2)[:length]
    positions = torch.randint(0, 300, (length,), generator=torch.Generator().manual_seed(length))
    for share, family in ((0.1, "mistral"), (0.9, "qwen2")):
        for mask in (random_mask(length, share, length), random_mask(length, share, length).tril()):
            expected = explicit_softmax(DECODERS[family], tokens, positions, mask)
            refined = forward(REFINED[family], tokens, positions, mask)
            for hidden in (DECODERS[family](tokens, positions, mask), refined):
                assert (hidden - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("name", ["causal", "packed documents", "random", "random and rare"])
def test_the_order_of_rows_has_no_effect(name: str) -> None:
    """Tokens, positions and mask shuffled together."""
    order = torch.randperm(T, generator=torch.Generator().manual_seed(1))
    positions, mask, decoder = torch.arange(T), MASKS[name], REFINED["qwen2"]
    before = forward(decoder, TOKENS, positions, mask)
    after = forward(decoder, TOKENS[order], positions[order], mask[order][:, order])
    assert (after - before[order]).abs().max() <= 1e-10
    if "random" not in name:
        assert torch.equal(after, before[order])


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("lengths", [DOCUMENTS, (64, 64), (1, 129, 3, 2)])
def test_packed_documents_have_the_bits_of_separate_runs(
    family: str, lengths: tuple[int, ...]
) -> None:
    """Whole prompts stacked in one row, each from position 0."""
    decoder, tokens = REFINED[family], TOKENS[: sum(lengths)]
    together = forward(decoder, tokens, restarts(lengths), blocks(lengths))
    expected = [run_alone(decoder, document) for document in tokens.split(lengths)]
    assert torch.equal(together, torch.cat(expected))


def test_removing_tokens_that_no_other_token_sees_changes_no_bit() -> None:
    """As padding is. The others keep their positions."""
    hidden = torch.zeros(T, dtype=torch.bool)
    hidden[[0, 3, 40, 41, 42, 100]] = True
    mask = causal_mask(T) & (~hidden | torch.eye(T, dtype=torch.bool))
    for decoder in (REFINED["mistral"], REFINED["llama"]):
        with_them = forward(decoder, TOKENS, torch.arange(T), mask)
        rest = (~hidden).nonzero().flatten()
        without = forward(decoder, TOKENS[rest], rest, causal_mask(len(rest)))
        assert torch.equal(with_them[rest], without)


class TestTheDefinition:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_it_is_computed_in_float32_and_rounded_once(self, dtype: torch.dtype) -> None:
        q, k, v = torch.randn(3, 9, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
        narrow = masked_attention(q, k, v, causal_mask(9))
        wide = masked_attention(q.float(), k.float(), v.float(), causal_mask(9))
        assert narrow.dtype == dtype
        assert torch.equal(narrow, wide.to(dtype))

    def test_a_window_counts_positions_and_the_tokens_own_is_one_of_them(self) -> None:
        seen = torch.ones(1, 4, dtype=torch.bool)
        at = torch.tensor([7, 4, 5, 9])
        assert within(seen, torch.tensor([7]), at, 3).tolist() == [[True, False, True, True]]
        assert within(seen, torch.tensor([7]), at, None) is seen
