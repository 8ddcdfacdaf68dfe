"""What stands for the functions of the transformers library in a pass under a mask.

The library's recurrent layers call a convolution and a scan by the names of functions in their own
module (5.20 to 5.24). Each function here takes what the library gives that one, of one sequence,
and reads along the paths of the pass. Next to read: in_transformers.py, which puts them there.

Dimension legend: that of steps.py. The library's own orders are (1, D, T) and (1, T, H, k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minise.lab.recurrent.chunks import by_chunks
from minise.lab.recurrent.convolution import convolve
from minise.lab.recurrent.paths import Paths
from minise.lab.recurrent.steps import by_steps

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "silu": F.silu,
    "swish": F.silu,
}
NO_LIMIT = (0.0, float("inf"))


@dataclass
class Pass:
    """A pass that runs: its paths, and what the layer that runs has called of these functions."""

    paths: Paths
    called: set[str] = field(default_factory=set)


def of_one(x: Tensor) -> Tensor:
    """The only sequence, in float32 at least."""
    return x[0].to(torch.promote_types(x.dtype, torch.float32))


def convolution(
    now: Pass,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """hidden_states: (1, D, T)."""
    now.called.add("convolution")
    x_TD = hidden_states[0].T.to(weight.dtype)
    out_TD = ACTIVATIONS[activation](convolve(x_TD, weight.flatten(1), bias, now.paths))
    return out_TD.T[None].to(hidden_states.dtype)


def delta_rule(
    now: Pass,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Gated DeltaNet, whose decays g are (1, T, H), and KDA, whose are (1, T, H, k)."""
    refuse(rest, "initial_state", "cu_seqlens")
    now.called.add("scan")
    q_THk, k_THk, v_THv, g_THn, beta_TH = map(of_one, (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q_THk, k_THk = of_length_1(q_THk), of_length_1(k_THk)
    q_THk = for_heads(q_THk, v_THv.shape[1]) * q_THk.shape[-1] ** -0.5
    k_THk = for_heads(k_THk, v_THv.shape[1])
    g_THn = g_THn if g_THn.dim() == 3 else g_THn[..., None]
    out_THv = by_chunks(q_THk, k_THk, v_THv, g_THn, beta_TH, now.paths)
    return as_given(out_THv, query), None


def mamba2(
    now: Pass,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT,
    return_final_states: bool = False,
    **rest: Any,
) -> Any:
    """hidden_states: (1, T, H, v). B, C: (1, T, groups of heads, k). A: (H,)."""
    refuse(rest, "initial_states", "seq_idx", "z", "cu_seqlens")
    now.called.add("scan")
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt_TH1 = of_one((F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit))[..., None]
    x_THv = of_one(hidden_states)
    B_THk, C_THk = (for_heads(of_one(x), x_THv.shape[1]) for x in (B, C))
    g_TH1 = dt_TH1 * A.to(dt_TH1.dtype)[:, None]
    out_THv = by_chunks(C_THk, B_THk, dt_TH1 * x_THv, g_TH1, None, now.paths)
    if D is not None:
        out_THv = out_THv + D[..., None] * x_THv
    out = as_given(out_THv, hidden_states)
    return (out, None) if return_final_states else out


def mamba(
    now: Pass,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **rest: Any,
) -> Any:
    """hidden_states, dt, z: (1, D, T). B, C: (1, k, T). A: (D, k). Each channel is a head. It runs
    by its definition: in chunks it would have C x S x k weights for each channel."""
    refuse(rest, "initial_state", "cu_seqlens", "seq_idx")
    now.called.add("scan")
    dt = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[..., None]
    dt_TD1 = of_one(F.softplus(dt) if delta_softplus else dt).T[..., None]
    x_TD = of_one(hidden_states).T
    channels = x_TD.shape[1]
    B_TDk, C_TDk = (of_one(one).T[:, None].expand(-1, channels, -1) for one in (B, C))
    v_TD1 = dt_TD1 * x_TD[..., None]
    out_TD = by_steps(C_TDk, B_TDk, v_TD1, dt_TD1 * A.to(x_TD.dtype), None, now.paths)[..., 0]
    if D is not None:
        out_TD = out_TD + x_TD * D
    if z is not None:
        out_TD = out_TD * F.silu(of_one(z).T)
    out = as_given(out_TD.T, hidden_states)
    return (out, None) if return_last_state else out


def no_padding(now: Pass, hidden_states: Tensor, attention_mask: Any) -> Tensor:
    """The library multiplies by a mask (B, T) of padding here. A pass under a mask has none."""
    return hidden_states


def one_kernel_for_all(now: Pass, *_: Any, **__: Any) -> None:
    """Convolution and scan in one kernel, which is chosen in training, or one step on a cache."""
    raise RuntimeError("a kernel that fuses a whole layer knows no paths; call model.eval()")


# The names of functions in the library's modules, and what stands for them in a pass.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": convolution,
    "torch_chunk_gated_delta_rule": delta_rule,
    "torch_recurrent_gated_delta_rule": delta_rule,
    "chunk_kimi_delta_attention": delta_rule,
    "recurrent_kimi_delta_attention": delta_rule,
    "mamba2_chunk_scan": mamba2,
    "mamba_selective_scan": mamba,
    "apply_mask_to_padding_states": no_padding,
    "mamba2_split_conv1d_scan_combined": one_kernel_for_all,
    "mamba_inner_fn": one_kernel_for_all,
    "causal_conv1d_update": one_kernel_for_all,
}


def lightning(
    now: Pass, layer: Any, old: Any, hidden_states: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """MiniMax's layer, whose scan is no function: the decay of a head is fixed."""
    now.called.add("scan")
    mixed_TF = layer.act_fn(layer.qkv_proj(hidden_states[0]))
    heads = mixed_TF.unflatten(-1, (layer.num_attention_heads, -1))
    q_THk, k_THk, v_THv = (of_one(one[None]) for one in heads.split(layer.head_dim, dim=-1))
    g_H1 = -layer.slope_rate.to(q_THk.dtype).view(-1, 1)
    out_THv = by_chunks(q_THk, k_THk, v_THv, g_H1.expand(len(q_THk), -1, -1), None, now.paths)
    out = layer.norm(as_given(out_THv.flatten(1), hidden_states))
    return layer.out_proj(torch.sigmoid(layer.output_gate(hidden_states)) * out), None


def rg_lru(
    now: Pass,
    layer: Any,
    old: Any,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, None]:
    """RecurrentGemma's scan: a number for each channel. `reset` is position 0, where a path begins
    anyway."""
    refuse({"recurrent_states": recurrent_states}, "recurrent_states")
    now.called.add("scan")
    x_TD1 = hidden_states[0].to(acc_dtype)[..., None]
    g_TD1 = recurrent_gate[0].to(acc_dtype).log()[..., None]
    ones_TD1 = torch.ones_like(x_TD1)
    out_TD1 = by_steps(ones_TD1, ones_TD1, x_TD1, g_TD1, None, now.paths)
    return as_given(out_TD1[..., 0], hidden_states), None


def convolution_module(now: Pass, layer: Any, old: Any, x_1DT: Tensor) -> Tensor:
    """A Conv1d that is called as a module. It gives what it would, and what lies beyond the end is
    cut off by its layer."""
    return convolution(now, x_1DT, layer.weight, layer.bias)


def by_depths(now: Pass, layer: Any, old: Any, states: Tensor, *_: Any) -> Any:
    """Inkling's bias by distance counts rows of the sequence: it gets depths instead."""
    return old(states, now.paths.depths, now.paths.depths)


def in_windows(
    now: Pass, layer: Any, old: Any, hidden_states: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, ...]:
    """Zaya's queries, keys and values, which depend on a token and a few before it: the layer's own
    code runs on each token with so many ancestors. Before the first it has zeros."""
    now.called.add("convolution")
    if layer.q_proj.bias is not None:
        raise RuntimeError("zeros before the first token are no zeros with attention_bias")
    taps_TN = now.paths.taps(layer.conv_kernel_size + 1).flip(-1)
    padded = F.pad(hidden_states[0], (0, 0, 0, 1))
    parts = old(padded[taps_TN], None)
    return tuple(part[:, -1][None] for part in parts)


# Methods of the library's classes: the attribute that holds the module ("" is the layer itself),
# the method, and what stands for it.
METHODS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "MiniMaxLightningAttention": ("", "forward", lightning),
    "RecurrentGemmaRglru": ("", "_rnn_scan", rg_lru),
    "RecurrentGemmaRecurrentBlock": ("conv_1d", "forward", convolution_module),
    "InklingRelativeLogits": ("", "forward", by_depths),
    "ZayaCCAProjection": ("", "forward", in_windows),
}
SCANS = ("MiniMaxLightningAttention", "RecurrentGemmaRglru")  # those without a convolution


def refuse(given: dict[str, Any], *names: str) -> None:
    """Raise RuntimeError for what a pass under a mask cannot have."""
    for name in names:
        if given.get(name) is not None:
            raise RuntimeError(f"a pass under a mask has no {name}")


def of_length_1(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6)


def for_heads(x_TGk: Tensor, heads: int) -> Tensor:
    """The same for all heads that share it: [k0, k0, k1, k1]."""
    return x_TGk.repeat_interleave(heads // x_TGk.shape[1], dim=1)


def as_given(out: Tensor, given: Tensor) -> Tensor:
    """As the library has it: a batch of one in the dtype of `given`, contiguous for its views."""
    return out[None].to(given.dtype).contiguous()
