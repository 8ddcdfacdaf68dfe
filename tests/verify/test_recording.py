"""What `record` stores of a run of either decoder, and that it changes nothing."""

from typing import Any

import pytest
import torch

import minise
from minise import LanguageModel, pack, record
from minise.equal_bits.run import read_ends
from minise.layout import causal_mask

T = 24
TOKENS = torch.arange(30, 30 + T)
POSITIONS = torch.arange(T)
CAUSAL = causal_mask(T)


def test_recording_sees_every_layer_and_changes_nothing(lm: LanguageModel) -> None:
    """And its hooks are removed, also if the run fails."""
    for decoder in (lm.decoder, lm.refined):
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
        assert "run" not in vars(decoder)
        assert not any(module._forward_hooks for module in decoder.modules())


def test_attention_weights_are_the_softmax_of_the_scores(lm: LanguageModel) -> None:
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


def test_the_tree_engine_is_recorded_too(lm: LanguageModel) -> None:
    """Its weights are those of the plain decoder on the same tree; in its top layer and of the
    tokens it has no more rows than it runs."""
    tree = pack([40, 41, 42], [[50, 51], [50, 52, 53], [60]], tree=True)
    with record(lm.refined, attention=True) as fast:
        read_ends(lm.refined, tree)
    with record(lm.decoder, attention=True) as plain:
        lm.decoder(tree.tokens, tree.positions, tree.mask)
    for layer in (0, 1):
        assert (fast.attention[layer] - plain.attention[layer]).abs().max() <= 1e-12
    assert (fast.attention[2] - plain.attention[2][:, :, tree.ends]).abs().max() <= 1e-12
    assert [stream.shape[1] for stream in fast.residual.values()] == [8, 8, 3]


def test_each_engine_runs_the_decoder_that_is_said(lm: LanguageModel) -> None:
    for engine, runs in (("plain", "decoder"), ("separate", "refined"), ("tree", "refined")):
        with record(lm.decoder) as plain, record(lm.refined) as refined:
            minise.branch_logits(lm, [40, 41], [[50, 51], [60]], engine)
        seen = {"decoder": plain, "refined": refined}
        assert {name for name, one in seen.items() if one.residual} == {runs}
        assert not plain.attention
