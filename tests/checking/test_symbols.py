"""What a hash depends on: a proof in which everything had one hash would prove nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import minise.exact.attention as attention
from minise.checking.symbols import CallSymbols, Symbols, hashed, symbolic
from minise.loading.config_json import config_from_dict
from tests.support.tiny import QWEN3


def raw(x: Tensor) -> Tensor:
    return x.as_subclass(Tensor)


def attended(kind: type[Symbols], keys: int = 64, **changes: Any) -> Tensor:
    """What the last query of a call reads, of the keys that it sees."""
    q, k, v = (hashed(name, torch.arange(n * 2)).view(1, n, 1, 2) for name, n in
               (("q", 64), ("k", 128), ("v", 128)))  # fmt: skip
    mask = torch.zeros(1, 64, keys, dtype=torch.bool)
    mask[:, :, 3:9] = True
    order = changes.get("order", torch.arange(128))
    mask[0, 63] ^= changes.get("flip", torch.zeros(keys, dtype=torch.bool))
    k, v = (x[:, order[:keys]].as_subclass(kind) for x in (k, v))
    return raw(attention.attention_call(q.as_subclass(kind), k, v, mask))[0, 63]


@pytest.mark.parametrize("kind", [Symbols, CallSymbols])
def test_attention_depends_on_every_key_that_is_seen_and_on_no_other(kind) -> None:
    whole = attended(kind)
    for seen in range(64):
        other = torch.arange(128)
        other[seen] = 100
        same = torch.equal(attended(kind, order=other), whole)
        assert same == (seen not in range(3, 9))
        flip = torch.arange(64) == seen
        assert not torch.equal(attended(kind, flip=flip), whole)


def test_only_bits_depend_on_the_shape_of_a_call_and_on_the_order_of_its_keys() -> None:
    turned = torch.arange(128)
    turned[3:9] = turned[3:9].flip(0)
    for kind, same in ((Symbols, True), (CallSymbols, False)):
        whole = attended(kind)
        assert torch.equal(attended(kind, keys=128), whole) == same
        assert torch.equal(attended(kind, order=turned), whole) == same


def test_a_linear_layer_depends_on_its_number_of_rows_unless_it_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minise.checking.symbols.numbers_for", lambda shape: (1, 4))
    x, weight = hashed("x", torch.arange(2)).expand(5, 2), hashed("w", torch.arange(6))
    for kind, same in ((Symbols, {1, 2, 3, 4, 5}), (CallSymbols, {1, 4})):
        rows = {
            n: raw(torch.nn.functional.linear(x[:n].as_subclass(kind), weight.view(3, 2)))[0]
            for n in range(1, 6)
        }
        assert {n for n in rows if torch.equal(rows[n], rows[1])} == same


def test_every_element_of_every_weight_has_a_hash_of_its_own() -> None:
    decoder = symbolic(config_from_dict(QWEN3), CallSymbols)
    weights = [
        raw(tensor).flatten()
        for module in decoder.modules()
        for tensor in vars(module).values()
        if isinstance(tensor, Symbols)
    ]
    every = torch.cat(weights)
    assert len(every.unique()) == len(every)
    # Embedding and final norm; per layer four norms, four projections and three matrices.
    assert len(weights) == 2 + 3 * 11
    assert list(decoder.parameters()) == []


def test_a_function_without_a_symbol_is_refused() -> None:
    x = hashed("x", torch.arange(4)).as_subclass(Symbols)
    for function in (torch.tanh, torch.cos, torch.sort, lambda x: x.softmax(-1)):
        with pytest.raises(TypeError, match="no symbol is known for"):
            function(x)


def test_a_change_of_precision_is_an_operation_and_double_is_none() -> None:
    x = hashed("x", torch.arange(4)).as_subclass(Symbols)
    for same in (x.double(), x.to(torch.float64)):
        assert torch.equal(raw(same), raw(x))
    narrow = {dtype: raw(x.to(dtype)) for dtype in (torch.float32, torch.bfloat16)}
    assert not torch.equal(narrow[torch.float32], raw(x))
    assert not torch.equal(*narrow.values())


def test_the_parts_of_an_operation_cannot_change_places() -> None:
    a, b = (hashed(name, torch.arange(4)) for name in "ab")
    every = [hashed("add", a, b), hashed("add", b, a), hashed("mul", a, b), hashed("add", a)]
    every += [hashed("add", a, b, 1), hashed("add", a, b, 1.0), -a]
    assert len({tuple(one.tolist()) for one in every}) == len(every)
    negative = raw(-a.as_subclass(Symbols))
    assert not torch.equal(negative, a)
    assert torch.equal(raw(a.as_subclass(Symbols).neg()), negative)


def test_scores_are_masked_by_minus_infinity_alone() -> None:
    """The definition's two products: with another value, or with none, they are no attention."""
    q, k, v = (hashed(name, torch.arange(6)).view(3, 1, 2).as_subclass(Symbols) for name in "qkv")
    outside = ~torch.ones(3, 3, dtype=torch.bool).tril()[None]
    first, second = "...thd,...uhd->...htu", "...htu,...uhd->...thd"
    scores = torch.einsum(first, q, k) / 2**0.5
    weights = scores.masked_fill(outside, float("-inf")).softmax(dim=-1)
    read = raw(torch.einsum(second, weights, v))
    assert len(read.unique()) == read.numel()
    for wrong in (scores.softmax(dim=-1), scores.masked_fill(outside, 0.0).softmax(dim=-1)):
        with pytest.raises(TypeError, match="no symbol is known for einsum"):
            torch.einsum(second, wrong, v)
    across = scores.masked_fill(outside, float("-inf")).softmax(dim=-2)
    with pytest.raises(TypeError, match="no symbol is known for einsum"):
        torch.einsum(second, across, v)


def test_rows_and_heads_are_two_wide_and_the_rest_is_the_configs() -> None:
    config = config_from_dict(QWEN3)
    decoder = symbolic(config, Symbols)
    assert len(decoder.model.layers) == config.num_hidden_layers
    mlp, embedding = decoder.model.layers[0].mlp, decoder.model.embed_tokens.weight
    assert (mlp.gate_proj.weight.shape, mlp.down_proj.weight.shape) == ((2, 2), (2, 2))
    assert embedding.shape == (config.vocab_size, 2)
