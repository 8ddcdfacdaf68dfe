"""One decoder for LLaMA, Mistral and Qwen2. What each token sees and where it stands are arguments.

Module and parameter names are the checkpoints' own, so that weights load with no table of names.
Nothing here builds a mask or guesses a position: the caller gives both.

Dimension legend, used as name suffixes:
B batch, T tokens, D hidden_size, H query heads, K key/value heads, h head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.attention import BLOCK, mask_reader
from minise.cache import Cache, Growing
from minise.config import Config
from minise.rope import cos_sin, rotate


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension; the mean square in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Promote, don't cast: bfloat16 is lifted to float32, float64 stays float64.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


# How queries read keys and values in layer `layer` (0, 1, ...): attend(layer, q, k, v) -> like q,
# for q (B, Q, H, h), k and v (B, T, K, h), queries and keys already rotated. Q is T, or in the top
# layer the number of `rows`. The last dimension of the values need not be h (see recording.py).
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
Read = Callable[[Tensor, Tensor, Tensor], Tensor]  # the same, its layer filled in
Angles = tuple[Tensor, Tensor]  # cos and sin, (B, T, 1, h) each

ROWS = 8  # linear layers get a multiple


class Attention(nn.Module):
    """Grouped-query attention: query head i reads key/value head i // (H / K)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor, angles: Angles, read: Read, rows: Tensor | None) -> Tensor:
        """What the tokens in `rows` (all, if None) read from the others by way of `read`."""
        k_BTKh = rotate(self._heads(self.k_proj(x_BTD)), *angles)
        v_BTKh = self._heads(self.v_proj(x_BTD))
        if rows is not None:
            x_BTD = x_BTD[..., rows, :]
            angles = angles[0][..., rows, :, :], angles[1][..., rows, :, :]
        q_BTHh = rotate(self._heads(self.q_proj(x_BTD)), *angles)
        return self.o_proj(read(q_BTHh, k_BTKh, v_BTKh).flatten(-2))

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (-1, self.head_dim))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        # In pieces of tokens: for a long packed sequence the wide activations would be the largest
        # tensors by far, and fresh memory of that size costs more time than the products on it.
        pieces = x_BTD.split(2048, dim=-2)
        return torch.cat(
            [self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)) for x in pieces], dim=-2
        )


class Block(nn.Module):
    """One layer: attention, then MLP, each on the normed stream and added to it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BTD: Tensor, angles: Angles, read: Read, rows: Tensor | None) -> Tensor:
        """The stream after this layer, of the tokens in `rows` only if given."""
        read_BTD = self.self_attn(self.input_layernorm(x_BTD), angles, read, rows)
        x_BTD = (x_BTD if rows is None else x_BTD[..., rows, :]) + read_BTD
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class Layers(nn.Module):
    """Embedding, layers and final norm: the tensors that a checkpoint names "model."."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        # Zeros are given because drawing values on the meta device takes most of a second.
        V, D = config.vocab_size, config.hidden_size
        self.embed_tokens = nn.Embedding(V, D, _weight=torch.zeros(V, D))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Decoder(nn.Module):
    """The model. `run` drives it; `forward` and `extend` are `run` under a mask; `logits` reads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Layers(config)
        # A tied checkpoint reads out with its embedding and has no tensor of this name.
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the embedding, and so of the activations."""
        return self.model.embed_tokens.weight.dtype

    def run(
        self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """Embedding, layers and final norm: hidden states (..., T, D) in the weights' dtype.

        The one driver of the layers. tokens, positions: (..., T) int64. `attend(layer, q, k, v)`
        says how queries read keys: see `Attend`. With `rows` (R,) int64 the top layer computes
        queries, output and MLP for these tokens only, and the result is (..., R, D). A caller that
        reads no other row saves most of a layer.
        """
        # Linear layers get a multiple of 8 rows. Then a row's bits do not depend on how many rows
        # there are, on its place, or on the others: tests/test_bits.py holds that.
        T, top = tokens.shape[-1], len(self.model.layers) - 1
        x_BTD = self.model.embed_tokens(F.pad(tokens, (0, -T % ROWS)))
        # One axis more, so that the angles are the same for every head.
        positions = F.pad(positions, (0, -T % ROWS))[..., None]
        angles = cos_sin(self.config, positions, x_BTD.dtype)
        wanted = T if rows is None else len(rows)
        padded = None if rows is None else F.pad(rows, (0, -wanted % ROWS))

        def read(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            Q = wanted if layer == top else T
            out = attend(layer, q[..., :Q, :, :], k[..., :T, :, :], v[..., :T, :, :])
            return F.pad(out, (0, 0, 0, 0, 0, q.shape[-3] - Q))

        for index, layer in enumerate(self.model.layers):
            x_BTD = layer(x_BTD, angles, partial(read, index), padded if index == top else None)
        return self.model.norm(x_BTD)[..., :wanted, :]

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Hidden states after the final norm, (..., T, D) in the weights' dtype.

        tokens: (..., T) int64 ids. positions: (..., T) int64 position ids. mask: (..., T, T) bool,
        True = the row's token attends to the column's. Leading batch dimensions broadcast. Sliding
        windows are applied here, because they are a fact of the model; the rest of the mask is the
        caller's. Raises TypeError for a mask that is not bool (an additive mask would be misread),
        and ValueError for a wrong shape or a row that does not attend to itself.
        """
        return self._masked(tokens, positions, mask, None)

    def extend(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        """`forward` for tokens that come after those of a cache: their hidden states (..., T, D),
        and the cache of all. The columns of the mask (..., T, S + T) are the S cached tokens, then
        these. Raises as `forward` does, and ValueError where the cache has other batch dimensions.
        """
        batch = np.broadcast_shapes(tokens.shape[:-1], positions.shape[:-1], mask.shape[:-2])
        if cache is not None and cache.positions.shape[:-1] != batch:
            raise ValueError(f"the cache is of {tuple(cache.positions.shape[:-1])}, not of {batch}")
        growing = Growing(cache, positions.expand(*batch, -1))
        hidden = self._masked(tokens, positions, mask, growing)
        return hidden, growing.cache

    def _masked(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, growing: Growing | None
    ) -> Tensor:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask is {mask.dtype}; pass torch.bool, True = may attend")
        T = tokens.shape[-1]
        U = T if growing is None else growing.cache.positions.shape[-1]
        if positions.shape[-1] != T or mask.shape[-2:] != (T, U):
            raise ValueError(
                f"tokens end in {T}, positions in {positions.shape[-1]}, mask in "
                f"{tuple(mask.shape[-2:])}; expected T, T and ({T}, {U})"
            )
        if not mask.diagonal(U - T, dim1=-2, dim2=-1).all():
            raise ValueError("a row of the mask does not attend to its own token")
        batch = np.broadcast_shapes(tokens.shape[:-1], positions.shape[:-1], mask.shape[:-2])
        known = positions.expand(*batch, T) if growing is None else growing.cache.positions
        masks_BTU, positions_BU = mask.expand(*batch, T, U).reshape(-1, T, U), known.reshape(-1, U)
        reader = mask_reader(masks_BTU, positions_BU, self.config.sliding_windows, tokens.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if growing is not None:
                k, v = (new.reshape(*batch, T, *new.shape[-2:]) for new in (k, v))
                k, v = (all_.reshape(1, -1, *all_.shape[-2:]) for all_ in growing.add(layer, k, v))
            return reader.attend(layer, q, k, v)

        # The items of a batch stand one after the other in one sequence: no item sees another.
        sequence, at = (x.expand(*batch, T).reshape(1, -1) for x in (tokens, positions))
        return self.run(sequence, at, attend).reshape(*batch, T, -1)

    def logits(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Logits of `hidden` (..., D): (..., V), or (..., C) for the token ids `columns` (C,)."""
        weight = (self.model.embed_tokens if self.lm_head is None else self.lm_head).weight
        rows = hidden.reshape(-1, hidden.shape[-1])
        if columns is None:
            logits = F.linear(F.pad(rows, (0, 0, 0, -len(rows) % ROWS)), weight)[: len(rows)]
        else:
            # Dot products, one by one: in a matrix product a column's bits depend on its place.
            wide = torch.promote_types(rows.dtype, torch.float32)
            parts = weight[columns].to(wide).split(BLOCK)
            logits = torch.cat(
                [
                    torch.cat([(x[:, None] * part).sum(dim=-1) for part in parts], dim=-1)
                    for x in rows.to(wide).split(BLOCK)
                ]
            ).to(rows.dtype)
        return logits.reshape(*hidden.shape[:-1], -1)
