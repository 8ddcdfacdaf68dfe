"""What `record` stores of a run of either decoder, and that it changes nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minise import LocalModel, pack, record
from minise.engines import ENGINES
from minise.layout import causal_mask
from minise.verify.recording import own_decoder
from tests.reference.support.equal import both

T = 24
TOKENS = torch.arange(30, 30 + T)
POSITIONS = torch.arange(T)
CAUSAL = causal_mask(T)


def test_recording_sees_every_layer_and_changes_nothing(lm: LocalModel) -> None:
    """And its hooks are removed, also if the run fails."""
    for decoder in both(own_decoder(lm)):
        before = decoder(TOKENS, POSITIONS, CAUSAL)
        with record(decoder, attention=True) as recording:
            during = decoder(TOKENS, POSITIONS, CAUSAL)
        assert torch.equal(before, during)
        assert torch.equal(decoder.model.norm(recording.residual[2]), recording.final)
        assert torch.equal(recording.final[0], during)
        assert set(recording.residual) == set(recording.attention) == {0, 1, 2}
        residual = dict(recording.residual)
        with pytest.raises(ValueError, match="expected"), record(decoder, attention=True):
            decoder(TOKENS, POSITIONS[:-1], CAUSAL)
        decoder(TOKENS + 1, POSITIONS, CAUSAL)
        assert recording.residual == residual
        assert not {"run", "reader"} & set(vars(decoder))
        assert not any(module._forward_hooks for module in decoder.modules())


def test_attention_weights_are_the_softmax_of_the_scores(lm: LocalModel) -> None:
    """Each row sums to 1, is 0 where the mask and the layer's window hide, and gives back what
    the layer read when it is applied to the values by hand."""
    with record(lm.decoder, attention=True) as recording:
        lm.decoder(TOKENS, POSITIONS, CAUSAL)
    for layer, window in enumerate(lm.config.sliding_windows):
        weights = recording.attention[layer]
        assert weights.shape == (1, lm.config.num_attention_heads, T, T)
        near = POSITIONS[:, None] - POSITIONS < (T if window is None else window)
        assert torch.equal(weights[0, 0] > 0, CAUSAL & near)
        assert (weights.sum(-1) - 1).abs().max() <= 1e-12
    block: Any = lm.decoder.model.layers[1]
    x = block.input_layernorm(recording.residual[0])
    v = block.self_attn.v_proj(x).unflatten(-1, (-1, lm.config.head_dim))
    v = v.repeat_interleave(lm.config.num_attention_heads // v.shape[2], dim=2)
    read = torch.einsum("bhqk,bkhd->bqhd", recording.attention[1], v).flatten(2)
    middle = recording.residual[0] + block.self_attn.o_proj(read)
    after = middle + block.mlp(block.post_attention_layernorm(middle))
    assert (after - recording.residual[1]).abs().max() <= 1e-10


def test_an_engine_is_recorded_as_it_ran(lm: LocalModel) -> None:
    """Its weights are those of the whole run; in the top layer it has no more rows than it runs."""
    prefix, branches = [40, 41, 42], [[50, 51], [50, 52, 53], [60]]
    tree = pack(prefix, branches, tree=True)
    for one in both(own_decoder(lm)):
        with record(one, attention=True) as ends:
            ENGINES["tree"](one, prefix, branches)
        with record(one, attention=True) as whole:
            one(tree.tokens, tree.positions, tree.mask)
        for layer in (0, 1):
            assert (ends.attention[layer] - whole.attention[layer]).abs().max() <= 1e-12
        assert (ends.attention[2] - whole.attention[2][:, :, tree.ends]).abs().max() <= 1e-12
        assert [stream.shape[1] for stream in ends.residual.values()] == [8, 8, 3]


def test_an_attention_of_your_own_is_recorded(lm: LocalModel) -> None:
    """Here every token reads the mean of all."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mean = v.mean(dim=1, keepdim=True).expand_as(v)
        return mean.repeat_interleave(q.shape[2] // v.shape[2], dim=2)

    with record(lm.decoder, attention=True) as seen:
        lm.decoder.run(TOKENS[None], POSITIONS[None], attend)
    assert torch.allclose(seen.attention[1], torch.full((1, 4, T, T), 1 / T).double())


def test_the_kernel_that_gives_the_weights_is_the_one_that_ran(
    lm: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every call the values are as wide as a head: for wider ones there is another kernel."""
    widths = set()
    real = torch.nn.functional.scaled_dot_product_attention

    def call(q: Tensor, k: Tensor, v: Tensor, *given: Any, **named: Any) -> Tensor:
        widths.add(v.shape[-1])
        return real(q, k, v, *given, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", call)
    with record(lm.decoder, attention=True):
        lm.decoder(TOKENS, POSITIONS, CAUSAL)
    assert widths == {lm.config.head_dim}
