"""Qwen3.5, dense, text: three of four layers are Gated DeltaNet, the fourth is gated attention.

It is called as model.Decoder is, with a mask, and the paths of the recurrent layers follow from
that mask. So all engines run it. What else differs from Qwen3: norms multiply by 1 + weight, only
the first quarter of a head is rotated, and what attention and DeltaNet read is multiplied by a
gate.

Module and parameter names are the checkpoint's own. Sources: the family's code in the transformers
library (5.23), and for the rule arXiv 2412.06464.

Dimension legend: that of minise/model.py; C channels of the convolution, n its taps, k and v sizes
of a recurrent head's key and value. Next to read: qwen35_config.py, which reads the config.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.attention import Attend
from minise.errors import InputError
from minise.lab.recurrent.along import Along, along_each
from minise.lab.recurrent.definition import Definition
from minise.lab.recurrent.qwen35_config import (
    LINEAR,
    HybridConfig,
    read_hybrid_config,
    text_tensors,
)
from minise.layout import causal_mask
from minise.loading.checkpoint import Architecture
from minise.model import MLP, Angles, Decoder, InLayer, RMSNorm, expanded, flat
from minise.rope import Rotary, rotate


@dataclass(frozen=True, eq=False)
class Seen:
    """What a layer is given beside the stream: the angles of the tokens, how queries read keys, and
    how each sequence runs along its paths."""

    angles: Angles
    attend: InLayer
    along: Sequence[Along]


class Norm(RMSNorm):
    """x / rms(x) * (1 + weight), in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps)
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        wide = in_float32(x)
        normed = F.rms_norm(wide, x.shape[-1:], eps=self.eps)
        return (normed * (1 + self.weight.to(wide.dtype))).to(x.dtype)


class GatedNorm(nn.Module):
    """x / rms(x) * weight * silu(gate). Rounded where the checkpoints' own code rounds."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        normed = F.rms_norm(in_float32(x), x.shape[-1:], eps=self.eps).to(x.dtype)
        return (self.weight * normed * F.silu(in_float32(gate))).to(x.dtype)


class GatedAttention(nn.Module):
    """Grouped-query attention; what a head reads is multiplied by the sigmoid of its gate."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        D, h = config.hidden_size, config.head_dim
        self.head_dim = h
        # Head by head: the query, then the gate.
        self.q_proj = nn.Linear(D, config.num_attention_heads * 2 * h, bias=False)
        self.k_proj = nn.Linear(D, config.num_key_value_heads * h, bias=False)
        self.v_proj = nn.Linear(D, config.num_key_value_heads * h, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * h, D, bias=False)
        self.q_norm = Norm(h, config.rms_norm_eps)
        self.k_norm = Norm(h, config.rms_norm_eps)

    def forward(self, x_BTD: Tensor, seen: Seen, rows: Tensor | None) -> Tensor:
        cos, sin = seen.angles
        k_BTKh = self.k_norm(self.k_proj(x_BTD).unflatten(-1, (-1, self.head_dim)))
        v_BTKh = self.v_proj(x_BTD).unflatten(-1, (-1, self.head_dim))
        k_BTKh = rotate_first(k_BTKh, cos, sin)
        if rows is not None:
            x_BTD, cos, sin = x_BTD[:, rows], cos[:, rows], sin[:, rows]
        both = self.q_proj(x_BTD).unflatten(-1, (-1, 2 * self.head_dim))
        q_BRHh, gate_BRHh = both.chunk(2, dim=-1)
        q_BRHh = rotate_first(self.q_norm(q_BRHh), cos, sin)
        read_BRHh = seen.attend(q_BRHh, k_BTKh, v_BTKh) * gate_BRHh.sigmoid()
        return self.o_proj(read_BRHh.flatten(-2))


class GatedDeltaNet(nn.Module):
    """A short convolution, then the gated delta rule, both along each token's path."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        D, H = config.hidden_size, config.linear_num_value_heads
        self.heads = H
        self.key_heads = config.linear_num_key_heads
        self.key_size = self.key_heads * config.linear_key_head_dim
        self.value_size = H * config.linear_value_head_dim
        C = 2 * self.key_size + self.value_size
        self.in_proj_qkv = nn.Linear(D, C, bias=False)
        self.in_proj_z = nn.Linear(D, self.value_size, bias=False)
        self.in_proj_b = nn.Linear(D, H, bias=False)
        self.in_proj_a = nn.Linear(D, H, bias=False)
        self.conv1d = nn.Conv1d(C, C, config.linear_conv_kernel_dim, groups=C, bias=False)
        self.dt_bias = nn.Parameter(torch.ones(H))
        self.A_log = nn.Parameter(torch.zeros(H))
        self.norm = GatedNorm(config.linear_value_head_dim, config.rms_norm_eps)
        self.out_proj = nn.Linear(self.value_size, D, bias=False)

    def forward(self, x_BTD: Tensor, seen: Seen, rows: Tensor | None) -> Tensor:
        first = seen.along[0]
        if all(along is first for along in seen.along):
            read_BTHv = self.read(x_BTD, first)
        else:
            outs = []
            for x_TD, along in zip(x_BTD, seen.along, strict=True):
                outs.append(self.read(x_TD[None], along))
            read_BTHv = torch.cat(outs)
        read_BTHv = read_BTHv.to(x_BTD.dtype)
        if rows is not None:  # all states are needed, but not all gates
            x_BTD, read_BTHv = x_BTD[:, rows], read_BTHv[:, rows]
        gate_BRHv = self.in_proj_z(x_BTD).unflatten(-1, (self.heads, -1))
        return self.out_proj(self.norm(read_BTHv, gate_BRHv).flatten(-2))

    def read(self, x_BTD: Tensor, along: Along) -> Tensor:
        """What each token reads from its state: (B, T, H, v), in float32 at least. All sequences
        have the same paths: they run side by side, as so many heads more."""
        B = len(x_BTD)
        weight_CN = self.conv1d.weight[:, 0]
        x_TC = self.in_proj_qkv(x_BTD).transpose(0, 1).flatten(1)
        mixed_TBC = along.convolve(x_TC, weight_CN.repeat(B, 1)).unflatten(1, (B, -1))
        sizes = [self.key_size, self.key_size, self.value_size]
        q, k, v = F.silu(mixed_TBC).split(sizes, dim=-1)
        q_TBHk, k_TBHk = self.unit(in_float32(q)), self.unit(in_float32(k))
        q_TBHk = q_TBHk * q_TBHk.shape[-1] ** -0.5
        v_TBHv = in_float32(v).unflatten(-1, (self.heads, -1))
        x_TBD = x_BTD.transpose(0, 1)
        beta_TBH = in_float32(self.in_proj_b(x_TBD).sigmoid())
        dt_TBH = F.softplus(in_float32(self.in_proj_a(x_TBD)) + self.dt_bias)
        g_TBH = -in_float32(self.A_log).exp() * dt_TBH
        out = along.rule(
            q_TBHk.flatten(1, 2),
            k_TBHk.flatten(1, 2),
            v_TBHv.flatten(1, 2),
            g_TBH.flatten(1, 2)[..., None],
            beta_TBH.flatten(1, 2),
        )
        return out.unflatten(1, (B, -1)).transpose(0, 1)

    def unit(self, x: Tensor) -> Tensor:
        """Heads of length 1, each for as many value heads as share it: [k0, k0, k1, k1]."""
        x_THk = x.unflatten(-1, (self.key_heads, -1))
        x_THk = x_THk * torch.rsqrt(x_THk.square().sum(dim=-1, keepdim=True) + 1e-6)
        return x_THk.repeat_interleave(self.heads // self.key_heads, dim=-2)


class Block(nn.Module):
    """One layer: attention or DeltaNet, then MLP, each on the normed stream and added to it."""

    def __init__(self, config: HybridConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)
        if kind == LINEAR:
            self.linear_attn = GatedDeltaNet(config)
        else:
            self.self_attn = GatedAttention(config)

    def forward(self, x_BTD: Tensor, seen: Seen, rows: Tensor | None) -> Tensor:
        mixer = self.linear_attn if hasattr(self, "linear_attn") else self.self_attn
        mixed_BRD = mixer(self.input_layernorm(x_BTD), seen, rows)
        x_BRD = x_BTD if rows is None else x_BTD[:, rows]
        x_BRD = x_BRD + mixed_BRD
        return x_BRD + self.mlp(self.post_attention_layernorm(x_BRD))


class Qwen35(Decoder):
    """model.Decoder with other layers, and `along` beside `attend`."""

    config: HybridConfig

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self.model.layers = nn.ModuleList(Block(config, kind) for kind in config.layer_types)
        self.model.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(replace(config, head_dim=config.rotary_dim))

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """As model.Decoder.forward. Raises InputError for a mask that is no tree, too."""
        tokens, positions, mask = expanded(tokens, positions, mask)
        tokens_BT, positions_BT, mask_BTT = flat(tokens, 1), flat(positions, 1), flat(mask, 2)
        along = along_each(mask_BTT.to(self.device))
        attend = self.reader(mask_BTT, positions_BT, rows)
        hidden_BRD = self.run(tokens_BT, positions_BT, attend, rows, along)
        return hidden_BRD.reshape(*tokens.shape[:-1], *hidden_BRD.shape[1:])

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        rows: Tensor | None = None,
        along: Sequence[Along] | None = None,
    ) -> Tensor:
        """As model.Decoder.run. along: of each sequence. Without it `attend` is someone's own and
        says nothing of layers with a state: then each sequence must be one prompt, from position 0
        on. Raises InputError if it is not."""
        T = tokens.shape[1]
        if along is None:
            if not (positions == torch.arange(T, device=positions.device)).all():
                what = "an attend of one's own says nothing of layers with a state"
                raise InputError(f"{what}; call the decoder with a mask, or run one prompt")
            along = along_each(causal_mask(T).to(self.device).expand(len(tokens), T, T))
        top = len(self.model.layers) - 1
        x_BTD = self.model.embed_tokens(tokens.to(self.device))
        angles = self.rotary(positions.to(self.device)[..., None], x_BTD.dtype)
        rows = None if rows is None else rows.to(self.device)
        for index, layer in enumerate(self.model.layers):
            seen = Seen(angles, partial(attend, index), along)
            x_BTD = layer(x_BTD, seen, rows if index == top else None)
        return self.model.norm(x_BTD)


def rotate_first(x_BTHh: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as many of a head's numbers as there are angles."""
    rotated = cos.shape[-1]
    turned = rotate(x_BTHh[..., :rotated], cos, sin)
    return torch.cat([turned, x_BTHh[..., rotated:]], dim=-1)


def in_float32(x: Tensor) -> Tensor:
    """The same in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


ARCHITECTURE = Architecture(read_hybrid_config, Qwen35, text_tensors, Definition)
