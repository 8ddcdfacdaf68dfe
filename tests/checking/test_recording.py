"""What `record` stores of a run, by any engine, and that it changes nothing."""

from __future__ import annotations

import pytest
import torch

from minise import LanguageModel, pack, record
from minise.exact.run import read_ends
from minise.layout import causal_mask

T = 24
TOKENS = torch.arange(30, 30 + T)
POSITIONS = torch.arange(T)
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


def test_recording_sees_every_layer_and_changes_nothing(lm: LanguageModel) -> None:
    before = lm.decoder(TOKENS, POSITIONS, CAUSAL)
    with record(lm.decoder, attention=True) as recording:
        during = lm.decoder(TOKENS, POSITIONS, CAUSAL)
    assert torch.equal(before, during)
    assert torch.equal(lm.decoder.model.norm(recording.residual[2])[0], during)
    assert set(recording.residual) == set(recording.attention) == {0, 1, 2}
    residual = dict(recording.residual)
    lm.decoder(TOKENS + 1, POSITIONS, CAUSAL)
    assert recording.residual == residual  # the decoder stores nothing
    for module in lm.decoder.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_hooks_are_removed_also_if_the_run_fails(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match="expected"), record(lm.decoder, attention=True):
        lm.decoder(TOKENS, POSITIONS[:-1], CAUSAL)
    for module in lm.decoder.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_attention_weights_are_the_softmax_of_the_scores(lm: LanguageModel) -> None:
    """Each row sums to 1, is 0 where the mask and the layer's window hide, and gives back what
    the layer read when it is applied to the values by hand."""
    with record(lm.decoder, attention=True) as recording:
        lm.decoder(TOKENS, POSITIONS, CAUSAL)
    for layer, window in enumerate(lm.config.sliding_windows):
        weights = recording.attention[layer]
        assert weights.shape == (1, lm.config.num_attention_heads, T, T)
        near = POSITIONS[:, None] - POSITIONS < (T if window is None else window)
        assert torch.equal(weights[0, 0] > 0, causal_mask(T) & near)
        assert (weights.sum(-1) - 1).abs().max() <= 1e-12
    block = lm.decoder.model.layers[1]
    x = block.input_layernorm(recording.residual[0])
    v = block.self_attn.v_proj(x).unflatten(-1, (-1, lm.config.head_dim))
    v = v.repeat_interleave(lm.config.num_attention_heads // v.shape[2], dim=2)
    read = torch.einsum("bhqk,bkhd->bqhd", recording.attention[1], v).flatten(2)
    middle = recording.residual[0] + block.self_attn.o_proj(read)
    after = middle + block.mlp(block.post_attention_layernorm(middle))
    assert (after - recording.residual[1]).abs().max() <= 1e-10


def test_the_tree_engine_is_recorded_too(lm: LanguageModel) -> None:
    """Its weights are those of the dense run on the same tree."""
    tree = pack([40, 41, 42], [[50, 51], [50, 52, 53], [60]], tree=True)
    with record(lm.decoder, attention=True) as fast:
        read_ends(lm.decoder, tree)
    with record(lm.decoder, attention=True) as dense:
        lm.decoder(tree.tokens, tree.positions, tree.mask)
    for layer in (0, 1):
        assert (fast.attention[layer] - dense.attention[layer]).abs().max() <= 1e-12
    ends = dense.attention[2][:, :, tree.ends]
    assert (fast.attention[2] - ends).abs().max() <= 1e-12


def test_a_recording_holds_only_the_rows_of_the_run_and_the_requested_parts(
    lm: LanguageModel,
) -> None:
    """`run` adds rows for its linear layers. They belong to no token."""
    tree = pack([40, 41, 42], [[50, 51], [50, 52, 53], [60, 61]], tree=True)
    with record(lm.decoder) as recording:
        read_ends(lm.decoder, tree)
    assert [stream.shape[1] for stream in recording.residual.values()] == [9, 9, 3]
    assert not recording.attention
