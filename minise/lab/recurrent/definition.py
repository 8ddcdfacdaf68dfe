"""Qwen3.5 by its definition: what minise/definition.py is for the families of the core.

Read it beside that file, whose parts it takes where they are the same. A recurrent layer continues
from the state after the token's parent, which is the last token that its row of the mask shows.

T tokens, H heads of a layer, k and v numbers of a recurrent head's key and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.definition import Decoder


class Definition(Decoder):
    """config: what config.json holds, of text alone or with a `text_config`. weights: those of text
    by the names that the library gives them in a checkpoint of text alone."""

    def __init__(self, config: dict[str, Any], weights: Mapping[str, Tensor]) -> None:
        super().__init__(config.get("text_config", config), weights)
        self.head_dim = self.config.get("head_dim", 256)
        rope = self.config["rope_parameters"]
        self.theta = rope["rope_theta"]
        self.rotated = int(self.head_dim * rope.get("partial_rotary_factor", 0.25))

    def layer(self, layer: int, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        name = f"model.layers.{layer}"
        is_recurrent = f"{name}.linear_attn.A_log" in self.weights
        mixer = "linear_attn" if is_recurrent else "self_attn"
        normed = self.norm(f"{name}.input_layernorm", x)
        x = x + self.attention(f"{name}.{mixer}", normed, positions, mask)
        normed = self.norm(f"{name}.post_attention_layernorm", x)
        return x + self.mlp(f"{name}.mlp", normed)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return self.by_size(x) * (1 + self.weights[f"{name}.weight"])

    def by_size(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + self.config["rms_norm_eps"]).sqrt()

    def attention(self, name: str, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        if name.endswith("linear_attn"):
            return self.delta_net(name, x, mask)
        both = self.linear(f"{name}.q_proj", x).unflatten(-1, (-1, 2 * self.head_dim))
        q, gate = both.chunk(2, dim=-1)  # of each head: its query, then its gate
        q = self.rotate(self.norm(f"{name}.q_norm", q), positions)
        k = self.rotate(self.heads(f"{name}.k", x), positions)
        v = self.heads(f"{name}.v", x)
        read = self.read(name, q, k, v, mask) * gate.sigmoid()
        return self.linear(f"{name}.o_proj", read.flatten(1))

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Only the first numbers of a head turn."""
        turned = super().rotate(x[..., : self.rotated], positions)
        return torch.cat([turned, x[..., self.rotated :]], dim=-1)

    def frequencies(self) -> Tensor:
        pairs = torch.arange(0, self.rotated, 2).double()
        return torch.as_tensor(self.theta ** (-pairs / self.rotated))

    def delta_net(self, name: str, x: Tensor, mask: Tensor) -> Tensor:
        """A short convolution and the gated delta rule (arXiv 2412.06464), token by token."""
        config, weights = self.config, self.weights
        key_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
        key_size = key_heads * config["linear_key_head_dim"]
        parents = parents_of(mask)
        taps = weights[f"{name}.conv1d.weight"][
            :, 0
        ]  # (channels, taps), the last is the token's own
        mixed = F.silu(convolved(self.linear(f"{name}.in_proj_qkv", x), taps, parents))
        q, k, v = mixed.tensor_split([key_size, 2 * key_size], dim=-1)
        q, k = (of_length_1(part.unflatten(-1, (key_heads, -1))) for part in (q, k))
        q, k = (part.repeat_interleave(heads // key_heads, dim=1) for part in (q, k))  # (T, H, k)
        v = v.unflatten(-1, (heads, -1))  # (T, H, v)
        beta = self.linear(f"{name}.in_proj_b", x).sigmoid()  # (T, H)
        dt = F.softplus(self.linear(f"{name}.in_proj_a", x) + weights[f"{name}.dt_bias"])
        g = -weights[f"{name}.A_log"].exp() * dt  # (T, H)

        nothing = v.new_zeros(heads, k.shape[-1], v.shape[-1])
        states: list[Tensor] = []  # after each token
        outs = []
        for t, parent in enumerate(parents):
            state = nothing if parent is None else states[parent]
            state = g[t].exp()[:, None, None] * state  # it fades,
            found = torch.einsum("hkv,hk->hv", state, k[t])
            u = beta[t][:, None] * (v[t] - found)  # is corrected,
            state = state + k[t][:, :, None] * u[:, None]  # is written,
            outs.append(torch.einsum("hkv,hk->hv", state, q[t]) * k.shape[-1] ** -0.5)  # and read
            states.append(state)

        gate = self.linear(f"{name}.in_proj_z", x).unflatten(-1, (heads, -1))
        read = self.by_size(torch.stack(outs)) * weights[f"{name}.norm.weight"] * F.silu(gate)
        return self.linear(f"{name}.out_proj", read.flatten(1))


def parents_of(mask: Tensor) -> list[int | None]:
    """Of each token the last one before it that its row of the mask shows; None: it shows none."""
    parents: list[int | None] = []
    for t, row in enumerate(mask):
        before = row[:t].nonzero().flatten().tolist()
        parents.append(before[-1] if before else None)
    return parents


def convolved(x: Tensor, taps: Tensor, parents: list[int | None]) -> Tensor:
    """The sum of taps times the token, its parent, the parent's parent, ..."""
    outs = []
    for t in range(len(x)):
        out = torch.zeros_like(x[0])
        row: int | None = t
        for tap in taps.flip(-1).T:
            if row is not None:
                out = out + tap * x[row]
                row = parents[row]
        outs.append(out)
    return torch.stack(outs)


def of_length_1(x: Tensor) -> Tensor:
    return x / (x.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()
