"""The decoder takes any mask. These are its promises, and the masks that people use.

Any mask, with positions in any order, gives the numbers of an explicit softmax. With equal bits,
packed documents and stacked prompts give the bits of each prompt run alone. The masks, the orders
of positions and the families are combined in pairs: each two of them meet.
"""

import pytest
import torch
from torch import Tensor

from minise import Decoder
from minise.attention import CHUNK, by_mask, chunks_of, within
from minise.layout import causal_mask, pack
from tests.reference.support.equal import HAS_LAB, both, equal_bits, needs_lab
from tests.reference.support.masks import (
    DOCUMENTS,
    MASKS,
    POSITIONS,
    T,
    blocks,
    random_mask,
    restarts,
)
from tests.reference.support.tiny import ALL_FAMILIES, make_decoder

TOKENS = torch.randint(30, 250, (T,), generator=torch.Generator().manual_seed(0))
DECODERS = {family: make_decoder(raw) for family, raw in ALL_FAMILIES.items()}
EQUAL = {family: equal_bits(decoder) for family, decoder in DECODERS.items() if HAS_LAB}
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
    return decoder(tokens, torch.arange(len(tokens)), causal_mask(len(tokens)))


@pytest.mark.parametrize(("name", "order", "family"), TRIPLES)
def test_any_mask_gives_a_softmax_over_the_visible_tokens(
    name: str, order: str, family: str
) -> None:
    inputs = (TOKENS, POSITIONS[order], MASKS[name])
    expected = explicit_softmax(DECODERS[family], *inputs)
    for decoder in both(DECODERS[family]):
        hidden = decoder(*inputs)
        assert (hidden - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 129, 200])
def test_random_masks_of_any_length_give_that_softmax(length: int) -> None:
    tokens = TOKENS.repeat(2)[:length]
    positions = torch.randint(0, 300, (length,), generator=torch.Generator().manual_seed(length))
    for share, family in ((0.1, "mistral"), (0.9, "qwen2")):
        for mask in (random_mask(length, share, length), random_mask(length, share, length).tril()):
            expected = explicit_softmax(DECODERS[family], tokens, positions, mask)
            for decoder in both(DECODERS[family]):
                hidden = decoder(tokens, positions, mask)
                assert (hidden - expected).abs().max() <= 1e-10


@needs_lab
@pytest.mark.parametrize("name", ["causal", "packed documents", "random", "random and rare"])
def test_the_order_of_rows_has_no_effect(name: str) -> None:
    """Tokens, positions and mask shuffled together."""
    order = torch.randperm(T, generator=torch.Generator().manual_seed(1))
    positions, mask, decoder = torch.arange(T), MASKS[name], EQUAL["qwen2"]
    before = decoder(TOKENS, positions, mask)
    after = decoder(TOKENS[order], positions[order], mask[order][:, order])
    assert (after - before[order]).abs().max() <= 1e-10
    if "random" not in name:
        assert torch.equal(after, before[order])


@needs_lab
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("lengths", [DOCUMENTS, (64, 64), (1, 129, 3, 2)])
def test_packed_documents_have_the_bits_of_separate_runs(
    family: str, lengths: tuple[int, ...]
) -> None:
    """Whole prompts stacked in one row, each from position 0."""
    decoder, tokens = EQUAL[family], TOKENS[: sum(lengths)]
    together = decoder(tokens, restarts(lengths), blocks(lengths))
    expected = [run_alone(decoder, document) for document in tokens.split(lengths)]
    assert torch.equal(together, torch.cat(expected))


@needs_lab
def test_removing_tokens_that_no_other_token_sees_changes_no_bit() -> None:
    """As padding is. The others keep their positions."""
    hidden = torch.zeros(T, dtype=torch.bool)
    hidden[[0, 3, 40, 41, 42, 100]] = True
    mask = causal_mask(T) & (~hidden | torch.eye(T, dtype=torch.bool))
    for decoder in (EQUAL["mistral"], EQUAL["llama"]):
        with_them = decoder(TOKENS, torch.arange(T), mask)
        rest = (~hidden).nonzero().flatten()
        without = decoder(TOKENS[rest], rest, causal_mask(len(rest)))
        assert torch.equal(with_them[rest], without)


class TestChunks:
    """Queries in chunks read only the keys that one of them may see."""

    def test_a_chunk_reads_what_at_least_one_of_its_queries_may_see(self) -> None:
        T = 2 * CHUNK + 7
        mask = random_mask(T, 0.01, seed=8)[None]
        positions = torch.arange(T)[None]
        seen = torch.zeros_like(mask)
        chunks = chunks_of(mask, positions, positions, None)
        assert [len(mask[0, chunk.queries]) for chunk in chunks] == [CHUNK, CHUNK, 7]
        for chunk in chunks:
            assert chunk.keys_S.tolist() == mask[0, chunk.queries].any(0).nonzero()[:, 0].tolist()
            assert chunk.mask_BCS.any(dim=1).all()  # no key is read in vain
            rows = torch.arange(T)[chunk.queries]
            seen[0, rows[:, None], chunk.keys_S] = chunk.mask_BCS[0]
        assert torch.equal(seen, mask)

    def test_groups_do_not_read_each_other(self) -> None:
        """Of 2,000 keys of other groups a chunk of the packed sequence reads none."""
        layout = pack(list(range(190)), [[7] * CHUNK] * 16)
        at = layout.positions[None]
        chunks = chunks_of(layout.mask[None], at, at, None)
        assert max(len(chunk.keys_S) for chunk in chunks) <= 190 + 2 * CHUNK

    def test_the_longer_the_beginning_that_all_copy_the_fewer_the_chunks(self) -> None:
        prefix = 24 * CHUNK
        layout = pack(list(range(prefix)), [[7] * CHUNK] * 16)
        at = layout.positions[None]
        whole = chunks_of(layout.mask[None], at, at, None)
        after_a_cache = chunks_of(layout.mask[None, prefix:], at[:, prefix:], at, None)
        assert whole[0].mask_BCS is None
        for chunks in (whole[1:-1], after_a_cache[:-1]):
            assert len(chunks) >= 3
            for chunk in chunks:
                queries = chunk.mask_BCS.shape[1]
                assert 3 * CHUNK <= queries <= prefix / 7
                assert len(chunk.keys_S) <= prefix + queries + CHUNK

    def test_a_long_causal_beginning_is_one_chunk_that_needs_no_mask(self) -> None:
        """One cell less, and it ends before that row."""
        layout = pack(list(range(3 * CHUNK + 5)), [[7] * 9, [8] * 9])
        at = layout.positions[None]
        for first_row_with_a_hole, rows in ((None, 3 * CHUNK), (CHUNK + 3, CHUNK), (3, 0)):
            mask = layout.mask[None].clone()
            if first_row_with_a_hole is not None:
                mask[0, first_row_with_a_hole, 1] = False
            chunks = chunks_of(mask, at, at, None)
            without_a_mask = [chunk.queries for chunk in chunks if chunk.mask_BCS is None]
            assert without_a_mask == ([slice(0, rows)] if rows else [])
            covered = [len(at[0, chunk.queries]) for chunk in chunks]
            assert sum(covered) == len(layout.tokens)

    def test_more_queries_than_keys_read_what_each_may_see(self) -> None:
        """As where one token ends many prompts. All rows of such a mask are true, also those of the
        first row of a causal one."""
        for queries in (CHUNK - 1, CHUNK, 2 * CHUNK + 3):
            for keys in (1, 2, CHUNK - 1):
                q = torch.randn(1, queries, 2, 8, generator=torch.Generator().manual_seed(0))
                k, v = torch.randn(2, 1, keys, 2, 8, generator=torch.Generator().manual_seed(1))
                mask = torch.ones(1, queries, keys, dtype=torch.bool)
                mask[0, :keys] = causal_mask(keys)
                at = torch.zeros(1, max(queries, keys), dtype=torch.long)
                chunks = chunks_of(mask, at[:, :queries], at[:, :keys], None)
                read = torch.cat([chunk.read(q, k, v) for chunk in chunks], dim=1)
                scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
                weights = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
                expected = torch.einsum("bhqk,bkhd->bqhd", weights, v)
                assert (read - expected).abs().max() <= 1e-5

    @pytest.mark.parametrize("family", DECODERS)
    def test_a_long_sequence_in_chunks_has_the_numbers_of_one_softmax(self, family: str) -> None:
        tokens = TOKENS.repeat(4)[: 3 * CHUNK + 1]
        layout = pack(tokens[:200].tolist(), [tokens[200:300].tolist(), tokens[250:].tolist()])
        inputs = layout.tokens, layout.positions, layout.mask
        expected = explicit_softmax(DECODERS[family], *inputs)
        assert (DECODERS[family](*inputs) - expected).abs().max() <= 1e-10

    @pytest.mark.parametrize("family", DECODERS)
    def test_the_top_layer_may_compute_some_rows_only(self, family: str) -> None:
        decoder = DECODERS[family]
        rows = torch.tensor([T - 1, 3, 70, 3])
        for name in ("causal", "packed documents", "random"):
            whole = decoder(TOKENS, POSITIONS["shuffled"], MASKS[name])
            some = decoder(TOKENS, POSITIONS["shuffled"], MASKS[name], rows)
            assert (some - whole[rows]).abs().max() <= 1e-12

    def test_batches_broadcast_and_each_sequence_has_its_own_mask(self) -> None:
        """Two masks and three rows of tokens are six sequences."""
        for decoder in both(DECODERS["qwen2"]):
            tokens = torch.stack([TOKENS, TOKENS.flip(0), TOKENS.roll(5)])[:, None]
            masks = torch.stack([MASKS["causal"], MASKS["packed documents"]])
            together = decoder(tokens, torch.arange(T), masks)
            assert together.shape[:3] == (3, 2, T)
            for i in range(3):
                for j in range(2):
                    alone = decoder(tokens[i, 0], torch.arange(T), masks[j])
                    assert (together[i, j] - alone).abs().max() <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_attention_keeps_the_dtype_and_rounds_little(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(3, 1, 9, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    positions = torch.arange(9)[None]
    attend = by_mask(causal_mask(9)[None], positions, [None], None, torch.device("cpu"))
    narrow, wide = attend(0, q, k, v), attend(0, q.double(), k.double(), v.double())
    assert narrow.dtype == dtype
    assert (narrow.double() - wide).abs().max() <= 4 * torch.finfo(dtype).eps


def test_a_window_counts_positions_and_the_tokens_own_is_one_of_them() -> None:
    seen = torch.ones(1, 4, dtype=torch.bool)
    at = torch.tensor([7, 4, 5, 9])
    assert within(seen, torch.tensor([7]), at, 3).tolist() == [[True, False, True, True]]
    assert within(seen, torch.tensor([7]), at, None) is seen
