"""The proof on symbols holds for the code as it is and finds every planted fault; and what a hash
depends on: a proof in which everything had one hash would prove nothing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import minise.lab.equal_bits.attention as attention
from minise import InputError
from minise.config import Config
from minise.lab.proof.alone import softmax_attention
from minise.lab.proof.proof import Prover
from minise.lab.proof.symbols import VOCABULARY, CallSymbols, Symbols, hashed, symbolic
from minise.model import RMSNorm
from tests.lab.equal_bits.planted import OF_BITS, WINDOWED
from tests.reference.support.tiny import ALL_FAMILIES
from tests.reference.verify import planted
from tests.reference.verify.cases import SHARED, SHORT, Models, prompts_of

PLANTED = {**planted.PLANTED, **OF_BITS}
BITE = planted.WINDOWED | WINDOWED  # faults that only a sliding window shows

# Over the end of a block of attention and beyond two, with branches that begin alike.
LONG = prompts_of([*range(50, 90)], [[*range(60, 150)], [*range(60, 90), 5], [7]], [3, 1, 2])
NUMBERS = ["separate", "packed", "tree"]
BITS = [f"{name}, equal bits" for name in NUMBERS]


def config_of(model: Models, family: str, **changes: Any) -> Config:
    """A config alone: no weights and no tokenizer are needed."""
    return replace(model(family).config, **changes)


def raw(x: Tensor) -> Tensor:
    return x.as_subclass(Tensor)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_every_family_is_proved_with_its_windows_norms_and_biases(
    model: Models, family: str
) -> None:
    prover = Prover(config_of(model, family))
    for prompts in (SHORT, SHARED, LONG):
        found = prover.prove(prompts)
        assert found.passed, found.departures
        assert list(found.rows) == [*NUMBERS, *BITS]
        # Two layers of each token, the top one and the final norm of each end, and label logits.
        rows = 2 * found.tokens + 3 * found.groups
        assert set(found.rows.values()) == {rows}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_of_layout_mask_position_reader_or_readout_is_found(
    model: Models, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    windows = (7, 7) if fault in BITE else (None, 13)
    config = config_of(model, "qwen2", num_hidden_layers=2, sliding_windows=windows)
    PLANTED[fault](monkeypatch)
    found = Prover(config).prove(SHARED)
    claims = BITS if fault in OF_BITS else [*NUMBERS, *BITS]
    assert found.departures
    assert set(found.departures) <= set(claims)


def test_a_fault_of_the_arithmetic_that_all_share_is_not_seen(
    model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/verify.md says: parity with the reference library shows those."""
    real = RMSNorm.__init__
    monkeypatch.setattr(RMSNorm, "__init__", lambda self, size, eps: real(self, size, 1e-5))
    assert Prover(config_of(model, "qwen2")).prove(SHARED).passed


FIRST = [
    ("one token is another", 12),
    ("one position in a group is off by one", 7),
    ("a cell of the mask leaks to a group", 11),
    ("a cell of the mask is missing in a group", 11),
]


@pytest.mark.parametrize(("fault", "token"), FIRST)
def test_the_first_difference_is_named(model: Models, monkeypatch, fault: str, token: int) -> None:
    PLANTED[fault](monkeypatch)
    config = config_of(model, "llama", num_hidden_layers=2, sliding_windows=(None, None))
    found = str(Prover(config).prove(SHARED))
    for name in ("packed", "packed, equal bits"):
        assert f"FAILED: {name} differs first in layer 0, branch 2, token {token}" in found
    assert "proved" not in found


def test_a_wrong_separate_run_is_said_to_be_that(model: Models, monkeypatch) -> None:
    for fault, name in (
        ("a chunk forgets a key in every run", "separate"),
        ("a cell is missing in a call of every run", "separate, equal bits"),
    ):
        with monkeypatch.context() as patch:
            PLANTED[fault](patch)
            found = Prover(config_of(model, "llama")).prove(SHARED, [name])
        assert "NOT as defined" in str(found)
        assert f"FAILED: {name} differs first in layer 0" in str(found)


def test_a_mask_that_does_not_fit_is_refused(model: Models, monkeypatch) -> None:
    monkeypatch.setattr("minise.memory.free_bytes", lambda: 100)
    with pytest.raises(InputError, match="or the engine separate"):
        Prover(config_of(model, "llama")).prove(SHARED)
    assert Prover(config_of(model, "llama")).prove(SHARED, ["separate"]).passed


# ---- symbols


def attended(kind: type[Symbols], keys: int = 64, **changes: Any) -> Tensor:
    """What the last query of a call reads, of the keys that it sees."""
    sizes = {"q": 64, "k": 128, "v": 128}
    q, k, v = (hashed(name, torch.arange(n * 2)).view(1, n, 1, 2) for name, n in sizes.items())
    mask = torch.zeros(1, 64, keys, dtype=torch.bool)
    mask[:, :, 3:9] = True
    order = changes.get("order", torch.arange(128))
    mask[0, 63] ^= changes.get("flip", torch.zeros(keys, dtype=torch.bool))
    k, v = (x[:, order[:keys]].as_subclass(kind) for x in (k, v))
    return raw(attention.attention_call(q.as_subclass(kind), k, v, mask)[0])[0, 63]


@pytest.mark.parametrize("kind", [Symbols, CallSymbols])
def test_attention_depends_on_every_key_that_is_seen_and_on_no_other(kind) -> None:
    whole = attended(kind)
    for seen in range(64):
        other = torch.arange(128)
        other[seen] = 100
        same = torch.equal(attended(kind, order=other), whole)
        assert same == (seen not in range(3, 9))
        assert not torch.equal(attended(kind, flip=torch.arange(64) == seen), whole)


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
    monkeypatch.setattr("minise.lab.proof.symbols.numbers_for", lambda shape: (1, 4))
    x, weight = hashed("x", torch.arange(2)).expand(5, 2), hashed("w", torch.arange(6))
    for kind, same in ((Symbols, {1, 2, 3, 4, 5}), (CallSymbols, {1, 4})):
        linear = torch.nn.functional.linear
        rows = {n: raw(linear(x[:n].as_subclass(kind), weight.view(3, 2)))[0] for n in range(1, 6)}
        assert {n for n in rows if torch.equal(rows[n], rows[1])} == same


def test_every_element_of_every_weight_has_a_hash_of_its_own_alike_in_both_decoders(
    model: Models,
) -> None:
    config = config_of(model, "qwen3")
    hashes = []
    for equal_bits in (False, True):
        decoder = symbolic(config, CallSymbols, equal_bits).decoder
        tensors = []
        for module in decoder.modules():
            tensors += [value for value in vars(module).values() if isinstance(value, Symbols)]
        # Embedding and final norm; per layer four norms, four projections and three matrices.
        assert len(tensors) == 2 + 3 * 11
        assert list(decoder.parameters()) == []
        assert decoder.model.embed_tokens.weight.shape == (VOCABULARY, 2)
        hashes.append(torch.cat([raw(tensor).flatten() for tensor in tensors]).sort().values)
    assert torch.equal(*hashes)
    assert len(hashes[0].unique()) == len(hashes[0])


def test_the_parts_of_an_operation_cannot_change_places_and_double_is_none() -> None:
    a, b = (hashed(name, torch.arange(4)) for name in "ab")
    every = [hashed("add", a, b), hashed("add", b, a), hashed("mul", a, b), hashed("add", a)]
    every += [hashed("add", a, b, 1), hashed("add", a, b, 1.0), a]
    x = a.as_subclass(Symbols)
    every += [raw(one) for one in (-x, x.to(torch.float32), x.to(torch.bfloat16))]
    assert len({tuple(one.tolist()) for one in every}) == len(every)
    assert torch.equal(raw(x.double()), a)
    for function in (torch.tanh, torch.cos, torch.sort, lambda x: x.softmax(-1)):
        with pytest.raises(TypeError, match="no symbol is known for"):
            function(x)


def test_torchs_attention_has_the_symbols_of_the_definition() -> None:
    """In exact arithmetic: with fewer key heads than query heads, of the keys that are seen, in any
    order, and with no others among them. Another scale, head, or key is another symbol."""
    q = hashed("q", torch.arange(3 * 4 * 2)).view(1, 3, 4, 2).as_subclass(Symbols)
    k, v = (hashed(x, torch.arange(12)).view(1, 3, 2, 2).as_subclass(Symbols) for x in "kv")
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    defined = raw(softmax_attention(q, k, v, mask))
    assert len(defined.unique()) == defined.numel()

    def in_one_call(order: list[int], q: Any = q, mask: Tensor = mask) -> Tensor:
        keys, values = k[:, order].transpose(1, 2), v[:, order].transpose(1, 2)
        seen = mask[:, order][None, None]
        read = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, seen, enable_gqa=True
        )
        return raw(read.transpose(1, 2))

    assert torch.equal(in_one_call([0, 1, 2]), defined)
    assert torch.equal(in_one_call([2, 0, 1]), defined)
    assert torch.equal(in_one_call([1, 0])[:, :2], defined[:, :2])
    assert not torch.equal(in_one_call([0, 1, 1]), defined)
    assert not torch.equal(in_one_call([0, 1, 2], q=q[:, :, [0, 2, 1, 3]]), defined)
    assert not torch.equal(in_one_call([0, 1, 2], mask=mask.T), defined)
    assert not torch.equal(in_one_call([0, 1, 2], q=q * 2), defined)


def test_the_definition_is_one_softmax_over_what_is_seen() -> None:
    """Of scores q . k / sqrt(h); two query heads share a key head: [k0, k0, k1, k1]."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 3, n, 4, generator=draw) for n in (4, 2, 2))
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    found = softmax_attention(q, k, v, mask)
    for i, seen in enumerate([[0], [0, 1], [0, 2]]):
        for head in range(4):
            keys, values = k[0, seen, head // 2], v[0, seen, head // 2]
            weights = (keys @ q[0, i, head] / 2).softmax(0)
            assert torch.allclose(found[0, i, head], weights @ values, atol=1e-6)
