"""The tree engine gives the numbers of separate runs, and computes only what the mask allows."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

import minise.exact.run as exact
from minise import Decoder, LanguageModel, Tree, branch_logits, pack, record
from minise.engines import hidden_states, run_alone, token_counts
from minise.exact.attention import BLOCK, FEW, Reader, next_calls, tree_calls
from minise.exact.run import read_ends

# Prefix and branches: each a shape that a tree can have.
TREES: dict[str, tuple[list[int], list[list[int]]]] = {
    "one prefix": ([5, 6, 7], [[8, 9], [10, 11, 12], [13]]),
    "no prefix": ([], [[1, 2, 3], [4, 5], [6]]),
    "a shared part longer than the prefix": ([5], [[6, 7, 8], [6, 7, 9, 10]]),
    "deep sharing": ([5], [[6, 7, 8], [6, 7, 9], [6, 10, 8], [11, 7, 8], [6, 7, 8, 12]]),
    "a branch that ends inside another": ([5], [[6, 7, 8], [6], [6, 7]]),
    "equal branches": ([5, 6], [[7, 8], [7, 8], [9]]),
    "an empty branch": ([5, 6, 7], [[], [8, 9]]),
    "a single branch": ([5, 6], [[7, 8, 9]]),
    "a single token": ([], [[7]]),
    "a long prefix and short branches": (list(range(40, 100)), [[1], [2, 3]]),
    "branches of very unequal length": ([5], [[6], list(range(100, 160)), [7, 8]]),
}


def forest(seed: int) -> tuple[list[int], list[list[int]]]:
    """Branches over three tokens: many shared beginnings, at every depth."""
    draw = random.Random(seed)
    prefix = draw.choices(range(50, 53), k=draw.randrange(20))
    branches = [
        draw.choices(range(50, 53), k=draw.randrange(1, 40)) for _ in range(draw.randrange(1, 30))
    ]
    return prefix, branches


@pytest.mark.parametrize("name", [*TREES, *(f"random {seed}" for seed in range(8))])
def test_the_ends_equal_those_of_separate_runs(lm: LanguageModel, name: str) -> None:
    prefix, branches = TREES[name] if name in TREES else forest(int(name.split()[1]))
    layout = pack(prefix, branches, tree=True)
    ends = read_ends(lm.decoder, layout)
    assert ends.shape == (len(branches), lm.config.hidden_size)
    assert ends.dtype == torch.float64
    for end, branch in zip(ends, branches, strict=True):
        assert (end - run_alone(lm, prefix + branch)[-1]).abs().max() <= 1e-10
    dense = hidden_states(lm, layout)[layout.ends]
    assert (ends - dense).abs().max() <= 1e-10


def test_every_row_below_the_top_layer_equals_the_dense_run(lm: LanguageModel) -> None:
    prefix, branches = forest(3)
    layout = pack(prefix, branches, tree=True)
    with record(lm.decoder) as tree:
        read_ends(lm.decoder, layout)
    with record(lm.decoder) as dense:
        hidden_states(lm, layout)
    top = lm.config.num_hidden_layers - 1
    for layer in range(top):
        assert (tree.residual[layer] - dense.residual[layer]).abs().max() <= 1e-10
    ends = dense.residual[top][:, layout.ends]
    assert (tree.residual[top] - ends).abs().max() <= 1e-10


def test_no_mask_of_the_whole_sequence_is_built(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Tree) -> torch.Tensor:
        raise AssertionError("the dense mask was asked for")

    monkeypatch.setattr(Tree, "mask", property(refuse))
    read_ends(lm.decoder, pack(*forest(0), tree=True))


@pytest.mark.parametrize("name", [*TREES, *(f"random {seed}" for seed in range(8))])
def test_every_token_reads_its_own_prompt_once(name: str) -> None:
    """Each row is a query in exactly one call. The keys that it sees in this call are its ancestors
    and itself in the order of positions; all other keys are masked."""
    tree = pack(*(TREES[name] if name in TREES else forest(int(name.split()[1]))), tree=True)
    read = []
    for call in tree_calls(tree, (None, 7), torch.device("cpu")):
        assert call.queries.shape[1] == BLOCK
        assert call.keys.shape[1] % BLOCK == 0
        for n, (queries, keys) in enumerate(zip(call.queries.tolist(), call.keys, strict=True)):
            for place, row in enumerate(queries):
                if row < 0:
                    continue
                read.append(row)
                for window, masks in call.masks.items():
                    visible = keys[masks[min(n, len(masks) - 1), place]].tolist()
                    ancestors = tree.mask[row].nonzero().flatten().tolist()
                    assert visible == (ancestors if window is None else ancestors[-window:])
    assert sorted(read) == list(range(len(tree.tokens)))


def test_shared_beginnings_are_read_in_one_call() -> None:
    """Forty prompts share a prefix of 70 tokens: its first 64 are in one call."""
    tree = pack(list(range(70)), [[100 + i] for i in range(40)], tree=True)
    calls = tree_calls(tree, (None,), torch.device("cpu"))
    assert [call.keys.shape for call in calls] == [(1, 64), (40, 128)]


def test_prompts_grow_in_calls_of_64_or_128_or_more_keys() -> None:
    """Each prompt's last row is a query, and sees all tokens of its prompt, or those within the
    window."""
    lengths = torch.tensor([1, 64, 65, 130])
    paths = torch.arange(4 * 130).reshape(4, 130)
    calls = next_calls(paths, lengths, (None, 7))
    assert [call.keys.shape for call in calls] == [(2, 64), (1, 128), (1, 192)]
    assert [call.queries[:, 0].tolist() for call in calls] == [[0, 1], [2], [3]]
    for call in calls:
        assert call.queries.shape[1] == FEW
        assert (call.queries[:, 1:] == -1).all()
        for n, g in enumerate(call.queries[:, 0].tolist()):
            path = paths[g, : lengths[g]].tolist()
            assert call.keys[n][call.masks[None][n, 0]].tolist() == path
            assert call.keys[n][call.masks[7][n, 0]].tolist() == path[-7:]


def test_the_tensors_of_each_call_are_on_the_models_device() -> None:
    """The meta device refuses to mix with the CPU, as an accelerator does."""
    meta = torch.device("meta")
    tree = pack(*forest(1), tree=True)
    calls, T = tree_calls(tree, (None, 7), meta), len(tree.tokens)
    for call in calls:
        for tensor in (call.queries, call.keys, *call.masks.values()):
            assert tensor.device == meta
    q, k = torch.empty(1, T, 4, 8, device=meta), torch.empty(1, T, 2, 8, device=meta)
    assert Reader(calls, T, (None, 7)).attend(1, q, k, k).shape == q.shape


@pytest.mark.parametrize("engine", ["separate", "dense", "tree"])
@pytest.mark.parametrize("name", TREES)
def test_each_engine_runs_as_many_tokens_as_are_counted(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, name: str, engine: str
) -> None:
    ran, run = [], Decoder.run

    def watch(decoder: Decoder, tokens: torch.Tensor, *arguments, **options) -> torch.Tensor:
        ran.append(tokens.shape[-1])
        return run(decoder, tokens, *arguments, **options)

    monkeypatch.setattr(Decoder, "run", watch)
    branch_logits(lm, *TREES[name], engine)
    assert sum(ran) == token_counts(*TREES[name])[engine]


@pytest.mark.parametrize("engine", ["separate", "dense", "tree"])
def test_tokens_and_positions_are_passed_on_the_models_device(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    devices: list[str] = []

    def watch(_: Decoder, *arguments: object, rows: object = None) -> None:
        devices.extend(x.device.type for x in (*arguments[:2], rows) if isinstance(x, torch.Tensor))
        raise InterruptedError

    on_meta = replace(lm, decoder=Decoder(lm.config).to("meta"))
    monkeypatch.setattr(exact, "forward", watch)
    monkeypatch.setattr(Decoder, "run", watch)
    monkeypatch.setattr(
        exact, "tree_reader", Mock()
    )  # a real one looks at the device of its tensors
    with pytest.raises(InterruptedError):
        branch_logits(on_meta, [5, 6], [[7], [8, 9]], engine)
    assert devices == ["meta"] * (3 if engine == "tree" else 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrower_dtypes_keep_their_dtype(tmp_path, dtype: torch.dtype) -> None:
    from tests.support.tiny import FAMILIES, load_tiny

    lm = load_tiny(tmp_path, FAMILIES["qwen2"], dtype=dtype)
    ends = read_ends(lm.decoder, pack(*forest(1), tree=True))
    assert ends.dtype == dtype
    assert ends.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_layers_never_wait_for_the_host(lm: LanguageModel) -> None:
    prefix, branches = forest(2)
    layout = pack(prefix, branches, tree=True)
    expected = read_ends(lm.decoder, layout)
    decoder = lm.decoder.cuda()
    try:
        calls = tree_calls(layout, (3, 3), torch.device("cuda"))
        ends = layout.ends.cuda()
        reader = Reader(calls, len(layout.tokens), (3, 3), ends)
        x = decoder.model.embed_tokens.weight[:1]
        q = torch.zeros(1, len(layout.tokens), 4, 8, device="cuda", dtype=x.dtype)
        torch.cuda.set_sync_debug_mode("error")
        reader.attend(0, q, q[:, :, :2], q[:, :, :2])
        reader.attend(1, q[:, : len(branches)], q[:, :, :2], q[:, :, :2])
        torch.cuda.set_sync_debug_mode("default")
        assert (read_ends(decoder, layout).cpu() - expected).abs().max() <= 1e-9
    finally:
        torch.cuda.set_sync_debug_mode("default")
        lm.decoder.cpu()
