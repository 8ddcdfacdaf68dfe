"""One decoder for LLaMA, Mistral, Qwen2 and Qwen3. Mask and positions are arguments.

Module and parameter names are the checkpoints' own, so that weights load with no table of names.
Nothing here builds a mask or assumes a position (Sections 4.1 and 4.2): the caller gives both.

Dimension legend, used as name suffixes:
B batch, T tokens, R of them that are wanted of the top layer, D hidden_size, H query heads, K
key/value heads, h head_dim, V vocabulary. Next to read: engines.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.attention import Attend, by_mask
from minise.cache import Cache, Growing
from minise.config import Config
from minise.rope import cos_sin, rotate

PIECE = 512  # tokens that an MLP takes at once
InLayer = Callable[[Tensor, Tensor, Tensor], Tensor]  # an `Attend`, its layer filled in
Angles = tuple[Tensor, Tensor]  # cos and sin, (B, T, 1, h) each


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension; the mean square in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # The weight stays outside: in bfloat16 the checkpoints' own code rounds before it.
        return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)


class Rotary(nn.Module):
    """The angles of positions (..., T): cos and sin, (..., T, 1, h) each, the same in all heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Angles:
        return cos_sin(self.config, positions[..., None], dtype)


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
        h, eps = config.head_dim, config.rms_norm_eps
        self.q_norm = RMSNorm(h, eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(h, eps) if config.qk_norm else nn.Identity()

    def forward(
        self, x_BTD: Tensor, angles: Angles, attend: InLayer, rows: Tensor | None
    ) -> Tensor:
        """What the tokens in `rows` (all, if None) read from the others by way of `attend`."""
        cos, sin = angles
        k_BTKh = self._heads(self.k_proj(x_BTD))
        k_BTKh = rotate(self.k_norm(k_BTKh), cos, sin)
        v_BTKh = self._heads(self.v_proj(x_BTD))
        if rows is not None:
            x_BTD = x_BTD[:, rows]
            cos, sin = cos[:, rows], sin[:, rows]
        q_BRHh = self._heads(self.q_proj(x_BTD))
        q_BRHh = rotate(self.q_norm(q_BRHh), cos, sin)
        read_BRHh = attend(q_BRHh, k_BTKh, v_BTKh)
        return self.o_proj(read_BRHh.flatten(-2))

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (-1, self.head_dim))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)). On a CPU for `piece` tokens at a time: what lies between
    the products of more would not stay in its caches."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = nn.SiLU()
        self.piece = PIECE

    def forward(self, x_BTD: Tensor) -> Tensor:
        if x_BTD.device.type != "cpu":
            return self.swiglu(x_BTD)
        pieces = []
        for piece in x_BTD.flatten(0, -2).split(self.piece):
            pieces.append(self.swiglu(piece))
        return torch.cat(pieces).view(x_BTD.shape)

    def swiglu(self, x: Tensor) -> Tensor:
        gate = self.act_fn(self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention, then MLP, each on the normed stream and added to it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x_BTD: Tensor, angles: Angles, attend: InLayer, rows: Tensor | None
    ) -> Tensor:
        """The stream after this layer, of the tokens in `rows` only if given."""
        attended_BRD = self.self_attn(self.input_layernorm(x_BTD), angles, attend, rows)
        x_BRD = x_BTD if rows is None else x_BTD[:, rows]
        x_BRD = x_BRD + attended_BRD
        return x_BRD + self.mlp(self.post_attention_layernorm(x_BRD))


class Layers(nn.Module):
    """Embedding, layers and final norm: the tensors that a checkpoint names "model."."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = Rotary(config)  # has no weights


class Decoder(nn.Module):
    """The model. `run` runs the layers; `forward` and `extend` are `run` under a mask; `logits` is
    the output layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Layers(config)
        self.lm_head = None  # a tied checkpoint reads out with its embedding
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed_tokens.weight.dtype

    def run(
        self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None
    ) -> Tensor:
        """Embedding, layers and final norm: hidden states (B, T, D) in the weights' dtype.

        All ways to run the layers end here. tokens, positions: (B, T) int64.
        `attend(layer, q, k, v)` decides how queries read keys: see `Attend`. With `rows` (R,) int64
        the top layer computes queries, output and MLP for these tokens only, and the result is
        (B, R, D). This saves most of a layer if no other row is read.
        """
        top = len(self.model.layers) - 1
        x_BTD = self.model.embed_tokens(tokens.to(self.device))
        angles = self.model.rotary_emb(positions.to(self.device), x_BTD.dtype)
        rows = None if rows is None else rows.to(self.device)
        for index, layer in enumerate(self.model.layers):
            wanted = rows if index == top else None
            x_BTD = layer(x_BTD, angles, partial(attend, index), wanted)
        return self.model.norm(x_BTD)

    def reader(self, mask_BTU: Tensor, positions_BU: Tensor, rows: Tensor | None) -> Attend:
        """How the layers read under a mask. Another decoder may have another one here."""
        return by_mask(mask_BTU, positions_BU, self.config.sliding_windows, rows, self.device)

    def forward(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Hidden states after the final norm, (..., T, D) in the weights' dtype; or (..., R, D), of
        the tokens `rows` (R,) int64 alone.

        tokens: (..., T) int64 ids. positions: (..., T) int64 position ids. mask: (..., T, T) bool,
        True = the row's token attends to the column's. Leading batch dimensions broadcast. Sliding
        windows are applied here, because they belong to the model; the rest of the mask belongs to
        the caller. Raises TypeError for a mask that is not bool (an additive mask would be
        misread), and ValueError for a wrong shape or a row that does not attend to itself.
        """
        tokens, positions, mask = expanded(tokens, positions, mask)
        batch = tokens.shape[:-1]
        tokens_BT, positions_BT = flat(tokens, 1), flat(positions, 1)
        attend = self.reader(flat(mask, 2), positions_BT, rows)
        hidden_BRD = self.run(tokens_BT, positions_BT, attend, rows)
        return hidden_BRD.reshape(*batch, *hidden_BRD.shape[1:])

    def extend(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: Cache | None = None,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """`forward` for tokens that follow those of a cache: their hidden states, and the cache of
        all. The columns of the mask (..., T, S + T) are the S cached tokens, then the new ones;
        `rows` are of the new ones. The cache has as many sequences. Raises as `forward` does.
        """
        cached = 0 if cache is None else cache.positions.shape[-1]
        tokens, positions, mask = expanded(tokens, positions, mask, cached)
        batch = tokens.shape[:-1]
        tokens_BT, positions_BT = flat(tokens, 1), flat(positions, 1)
        growing = Growing(cache, positions_BT)
        read = self.reader(flat(mask, 2), growing.cache.positions, rows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            all_keys, all_values = growing.add(layer, k, v)
            return read(layer, q, all_keys, all_values)

        hidden_BRD = self.run(tokens_BT, positions_BT, attend, rows)
        return hidden_BRD.reshape(*batch, *hidden_BRD.shape[1:]), growing.cache

    def logits(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Logits of `hidden` (..., D): (..., V), or (..., C) for the token ids `columns` (C,)."""
        output = self.model.embed_tokens if self.lm_head is None else self.lm_head
        weight = output.weight
        if columns is not None:
            weight = weight[columns]
        return F.linear(hidden, weight)


def flat(x: Tensor, kept: int) -> Tensor:
    """`x` with all batch dimensions as one: the last `kept` dimensions stay."""
    return x.reshape(-1, *x.shape[-kept:])


def expanded(
    tokens: Tensor, positions: Tensor, mask: Tensor, cached: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and mask, each with all batch dimensions. Raises as `Decoder.forward`."""
    T, U = tokens.shape[-1], cached + tokens.shape[-1]
    if mask.dtype != torch.bool:
        raise TypeError(f"mask is {mask.dtype}; pass torch.bool, True = may attend")
    if positions.shape[-1] != T or mask.shape[-2:] != (T, U):
        shapes = f"positions end in {positions.shape[-1]}, mask in {tuple(mask.shape[-2:])}"
        raise ValueError(f"{shapes}; expected {T} and ({T}, {U})")
    if not mask.diagonal(cached, dim1=-2, dim2=-1).all():
        raise ValueError("a row of the mask does not attend to its own token")
    batch = torch.broadcast_shapes(tokens.shape[:-1], positions.shape[:-1], mask.shape[:-2])
    return tokens.expand(*batch, T), positions.expand(*batch, T), mask.expand(*batch, T, U)
