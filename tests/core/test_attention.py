"""The decoder takes any 4-D mask. These are its promises, and the masks that people use.

Any mask, with positions in any order, gives the numbers of an explicit softmax. With the refined
layers, packed documents, stacked prompts and padded batches give the bits of each prompt run alone.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minise import LanguageModel
from minise.exact.run import forward
from minise.layout import causal_mask
from tests.support.masks import DOCUMENTS, MASKS, POSITIONS, T, blocks, random_mask, restarts

TOKENS = torch.randint(30, 250, (T,), generator=torch.Generator().manual_seed(0))


def explicit_softmax(lm: LanguageModel, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Hidden states (T, D) by one softmax over all T tokens, the windows by position."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        repeats, window = q.shape[2] // k.shape[2], lm.config.sliding_windows[layer]
        k, v = (x.repeat_interleave(repeats, dim=2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        distance = positions[:, None] - positions
        visible = mask if window is None else mask & (distance < window)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    return lm.decoder.run(tokens[None], positions[None], attend)[0]


def run_alone(lm: LanguageModel, tokens: Tensor) -> Tensor:
    """Hidden states (T, D) of a plain causal run."""
    return forward(lm.decoder, tokens, torch.arange(len(tokens)), causal_mask(len(tokens)))


@pytest.mark.parametrize("order", POSITIONS)
@pytest.mark.parametrize("name", MASKS)
def test_any_mask_gives_a_softmax_over_the_visible_tokens(
    lm: LanguageModel, name: str, order: str
) -> None:
    mask, positions = MASKS[name], POSITIONS[order]
    expected = explicit_softmax(lm, TOKENS, positions, mask)
    for hidden in (
        lm.decoder(TOKENS, positions, mask),
        forward(lm.decoder, TOKENS, positions, mask),
    ):
        assert (hidden - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 129, 200])
@pytest.mark.parametrize("share", [0.1, 0.9])
def test_random_masks_of_any_length_give_that_softmax(
    lm: LanguageModel, length: int, share: float
) -> None:
    tokens = TOKENS.repeat(2)[:length]
    positions = torch.randint(0, 300, (length,), generator=torch.Generator().manual_seed(length))
    for mask in (random_mask(length, share, length), random_mask(length, share, length).tril()):
        expected = explicit_softmax(lm, tokens, positions, mask)
        refined = forward(lm.decoder, tokens, positions, mask)
        for hidden in (lm.decoder(tokens, positions, mask), refined):
            assert (hidden - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("name", MASKS)
def test_the_order_of_rows_has_no_effect(lm: LanguageModel, name: str) -> None:
    """Tokens, positions and mask shuffled together."""
    order = torch.randperm(T, generator=torch.Generator().manual_seed(1))
    positions, mask = torch.arange(T), MASKS[name]
    before = forward(lm.decoder, TOKENS, positions, mask)
    after = forward(lm.decoder, TOKENS[order], positions[order], mask[order][:, order])
    assert (after - before[order]).abs().max() <= 1e-10
    if name in ("causal", "packed documents"):
        assert torch.equal(after, before[order])


@pytest.mark.parametrize("lengths", [DOCUMENTS, (64, 64), (1, 129, 3, 2), (7,) * 10])
def test_packed_documents_have_the_bits_of_separate_runs(
    lm: LanguageModel, lengths: tuple[int, ...]
) -> None:
    """Whole prompts stacked in one row, each from position 0."""
    tokens = TOKENS[: sum(lengths)]
    together = forward(lm.decoder, tokens, restarts(lengths), blocks(lengths))
    expected = [run_alone(lm, document) for document in tokens.split(lengths)]
    assert torch.equal(together, torch.cat(expected))


def test_the_tokens_of_another_document_have_no_effect(lm: LanguageModel) -> None:
    changed = TOKENS.clone()
    changed[30:105] = TOKENS[30:105].flip(0)
    before, after = (
        forward(lm.decoder, tokens, restarts(DOCUMENTS), blocks(DOCUMENTS))
        for tokens in (TOKENS, changed)
    )
    assert torch.equal(before[:30], after[:30])
    assert torch.equal(before[105:], after[105:])
    assert not torch.equal(before[30:105], after[30:105])


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_in_a_padded_batch_have_the_bits_of_separate_runs(
    lm: LanguageModel, side: str
) -> None:
    """A padding token sees only itself, and no other token sees it. It may be any token at any
    position."""
    lengths, width = (5, 64, 90, 130), 130
    for padding, at in ((0, 0), (99, 500)):
        tokens, positions = torch.full((4, width), padding), torch.full((4, width), at)
        masks = torch.eye(width, dtype=torch.bool).repeat(4, 1, 1)
        places = []
        for row, length in enumerate(lengths):
            place = slice(width - length, width) if side == "left" else slice(0, length)
            tokens[row, place], positions[row, place] = TOKENS[:length], torch.arange(length)
            masks[row, place, place] = causal_mask(length)
            places.append(place)
        hidden = forward(lm.decoder, tokens, positions, masks)
        for row, length in enumerate(lengths):
            assert torch.equal(hidden[row, places[row]], run_alone(lm, TOKENS[:length])), length


def test_removing_a_token_that_no_other_token_sees_changes_no_bit(lm: LanguageModel) -> None:
    """The others keep their positions."""
    hidden = torch.zeros(T, dtype=torch.bool)
    hidden[[0, 3, 40, 41, 42, 100]] = True
    mask = causal_mask(T) & (~hidden | torch.eye(T, dtype=torch.bool))
    with_them = forward(lm.decoder, TOKENS, torch.arange(T), mask)
    rest = (~hidden).nonzero().flatten()
    without = forward(lm.decoder, TOKENS[rest], rest, causal_mask(len(rest)))
    assert torch.equal(with_them[rest], without)


def test_continuations_of_one_prompt_in_a_pack_have_the_bits_of_separate_runs(
    lm: LanguageModel,
) -> None:
    """One shared beginning, then three ends that do not see one another."""
    start, lengths = 70, (20, 30, 20)
    mask = causal_mask(T)
    mask[start:, start:] = blocks(lengths)
    positions = torch.cat([torch.arange(start), restarts(lengths) + start])
    together = forward(lm.decoder, TOKENS, positions, mask)
    place = start
    for length in lengths:
        rows = torch.cat([torch.arange(start), torch.arange(place, place + length)])
        assert torch.equal(together[rows], run_alone(lm, TOKENS[rows]))
        place += length


def test_a_batch_of_different_masks_has_the_bits_of_separate_runs(lm: LanguageModel) -> None:
    masks, positions = torch.stack(list(MASKS.values())), torch.arange(T)
    together = forward(lm.decoder, TOKENS, positions, masks)
    for row, mask in enumerate(masks):
        assert torch.equal(together[row], forward(lm.decoder, TOKENS, positions, mask))
