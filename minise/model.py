"""One decoder for LLaMA, Mistral and Qwen2. What each token sees and where it stands are arguments.

Module and parameter names are the checkpoints' own, so that weights load with no table of names.
Nothing here builds a mask or guesses a position: whoever calls says both.

Dimension legend, used as name suffixes:
B batch, T tokens, D hidden_size, H query heads, K key/value heads, h head_dim, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.config import Config
from minise.rope import rotate, rotation


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


class Attention(nn.Module):
    """Grouped-query attention: query head i reads key/value head i // (H / K)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.repeats = config.num_attention_heads // config.num_key_value_heads
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(config.hidden_size, kv_size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(q_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor, cos_BTh: Tensor, sin_BTh: Tensor, mask_BTT: Tensor) -> Tensor:
        cos, sin = cos_BTh[:, None], sin_BTh[:, None]  # the same for every head
        q_BHTh = rotate(self._heads(self.q_proj(x_BTD)), cos, sin)
        k_BKTh = rotate(self._heads(self.k_proj(x_BTD)), cos, sin)
        v_BKTh = self._heads(self.v_proj(x_BTD))
        # [K1, K1, K2, K2], not [K1, K2, K1, K2]. Repeated by hand because on CUDA enable_gqa and
        # a mask together fall to the slow kernel.
        k_BHTh = k_BKTh.repeat_interleave(self.repeats, dim=1)
        v_BHTh = v_BKTh.repeat_interleave(self.repeats, dim=1)
        # softmax(q k^T / sqrt(h)) v, with masked scores at -inf before the softmax.
        out_BHTh = F.scaled_dot_product_attention(
            q_BHTh, k_BHTh, v_BHTh, attn_mask=mask_BTT[:, None]
        )
        return self.o_proj(out_BHTh.transpose(1, 2).flatten(2))

    def _heads(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One layer: attention, then MLP, each on the normed stream and added to it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BTD: Tensor, cos_BTh: Tensor, sin_BTh: Tensor, mask_BTT: Tensor) -> Tensor:
        x_BTD = x_BTD + self.self_attn(self.input_layernorm(x_BTD), cos_BTh, sin_BTh, mask_BTT)
        return x_BTD + self.mlp(self.post_attention_layernorm(x_BTD))


class Stack(nn.Module):
    """Embedding, layers and final norm: what a checkpoint files under "model."."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        # Zeros given, because drawing values on the meta device takes most of a second to import.
        V, D = config.vocab_size, config.hidden_size
        self.embed_tokens = nn.Embedding(V, D, _weight=torch.zeros(V, D))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Decoder(nn.Module):
    """The whole model: calling it gives hidden states, `logits` reads them out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Stack(config)
        # A tied checkpoint reads out with its embedding and has no tensor of this name.
        self.lm_head = (
            None
            if config.tie_word_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )

    def forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Hidden states after the final norm, (..., T, D) in the weights' dtype.

        tokens: (..., T) int64 ids. positions: (..., T) int64 position ids. mask: (..., T, T) bool,
        True = the row's token attends to the column's; each row must allow at least itself.
        Leading batch dimensions broadcast. Sliding windows are narrowed here, by position, because
        they are a fact of the model; everything else about the mask is the caller's.

        Raises TypeError for a mask that is not bool (an additive mask would be read wrongly), and
        ValueError for a wrong shape or a row that does not attend to itself (Eq. 4 never has one).
        """
        if mask.dtype != torch.bool:
            raise TypeError(
                f"mask is {mask.dtype}; pass torch.bool, True where attention is allowed"
            )
        T = tokens.shape[-1]
        if positions.shape[-1] != T or mask.shape[-2:] != (T, T):
            raise ValueError(
                f"tokens end in {T}, positions in {positions.shape[-1]}, mask in "
                f"{tuple(mask.shape[-2:])}; expected T, T and (T, T)"
            )
        if not mask.diagonal(dim1=-2, dim2=-1).all():
            raise ValueError(
                "a row of the mask does not attend to its own token; its softmax is empty"
            )
        batch = torch.broadcast_shapes(tokens.shape[:-1], positions.shape[:-1], mask.shape[:-2])
        tokens_BT = tokens.expand(*batch, T).reshape(-1, T)
        positions_BT = positions.expand(*batch, T).reshape(-1, T)
        # A mask without batch dimensions is broadcast by the attention, not copied.
        mask_BTT = mask[None] if mask.dim() == 2 else mask.expand(*batch, T, T).reshape(-1, T, T)

        x_BTD = self.model.embed_tokens(tokens_BT)
        cos_BTh, sin_BTh = rotation(self.config, positions_BT, x_BTD.dtype)
        masks = self._windowed(positions_BT, mask_BTT)
        for layer, window in zip(self.model.layers, self.config.sliding_windows, strict=True):
            x_BTD = layer(x_BTD, cos_BTh, sin_BTh, masks[window])
        return self.model.norm(x_BTD).reshape(*batch, T, -1)

    def logits(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        """Logits of `hidden` (..., D): (..., V), or (..., C) for the token ids `columns` (C,)."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        weight = head.weight if columns is None else head.weight[columns]
        return F.linear(hidden, weight)

    def _windowed(self, positions_BT: Tensor, mask_BTT: Tensor) -> dict[int | None, Tensor]:
        """The mask under each distinct window of the layers. By position, not by index: in a packed
        sequence a late group's index is thousands past its position."""
        masks: dict[int | None, Tensor] = {None: mask_BTT}
        for window in {w for w in self.config.sliding_windows if w is not None}:
            distance_BTT = positions_BT[:, :, None] - positions_BT[:, None, :]
            masks[window] = mask_BTT & (distance_BTT < window)
        return masks
