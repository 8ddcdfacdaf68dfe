"""Two tiny hybrids by their definitions, in numpy and float64: one in Qwen3.5's shape (Gated
DeltaNet and attention), one in Nemotron-H's (Mamba-2, attention, MLPs).

T tokens; D hidden_size; H heads. The names of weights are those that transformers gives them.
`hold` rounds what a library would keep in a tensor of its dtype; in float64 nothing is rounded.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import operators


@dataclass(frozen=True)
class Ways:
    """By what a row goes in each part: sees (T, T) in attention; where, (T,), the positions; the
    parents of states and of convolutions. Mistakes: over_row, decays are summed over the row; take,
    the tokens that run, by number, where that is not each of them once, and sees, where and parents
    are of these; read: which of them are the row's."""

    sees: Any
    where: Any
    state: Any
    conv: Any
    over_row: bool = False
    take: Any = None
    read: Any = None


def as_it_is(x):
    return x


def silu(x):
    return x / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def by_size(x, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)


def of_length_1(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


def faded(g, ways):
    """Log decays (T, ...) as a token applies them to its parent's state."""
    if not ways.over_row:
        return g
    sums, out = np.cumsum(g, 0), g.copy()
    for t, parent in enumerate(ways.state):
        if parent >= 0:
            out[t] = sums[t] - sums[parent]
    return out


def convolved(x, weight, bias, ways, hold):
    """weight: (D, 1, taps)."""
    weight, bias = weight[:, 0], np.zeros(x.shape[1]) if bias is None else bias
    nothing = np.zeros((*x.shape, weight.shape[1] - 1))
    results, _ = operators.short_convolution(x, weight, bias, ways.conv, [], nothing)
    return hold(silu(hold(results["out"])))


def logits(weights, c, tokens, ways, hold=as_it_is):
    """(T, V)."""
    forward = qwen3_5 if c["model_type"] == "qwen3_5_text" else nemotron_h
    taken = tokens if ways.take is None else tokens[ways.take]
    weights = {n: hold(x.astype(float)) for n, x in weights.items()}
    out = forward(weights, c, taken, ways, hold)
    return out if ways.read is None else out[ways.read]


# ---- Qwen3.5 ------------------------------------------------------------------------------------
def qwen3_5(w, c, tokens, ways, hold):
    eps = c["rms_norm_eps"]

    def norm(x, name):
        return hold(by_size(x, eps) * (1 + w[name + ".weight"]))

    def linear(x, name):
        return hold(x @ w[name + ".weight"].T)

    x = w["model.embed_tokens.weight"][tokens]
    for i, kind in enumerate(c["layer_types"]):
        at = f"model.layers.{i}."
        y = norm(x, at + "input_layernorm")
        if kind == "linear_attention":
            x = hold(x + delta_net(w, c, y, at + "linear_attn.", ways, linear, hold))
        else:
            x = hold(x + gated_attention(c, y, at + "self_attn.", ways, norm, linear, hold))
        y = norm(x, at + "post_attention_layernorm")
        gate = hold(silu(linear(y, at + "mlp.gate_proj")))
        wide = hold(gate * linear(y, at + "mlp.up_proj"))
        x = hold(x + linear(wide, at + "mlp.down_proj"))
    return linear(norm(x, "model.norm"), "lm_head")


def delta_net(w, c, y, at, ways, linear, hold):
    T, heads, key_heads = len(y), c["linear_num_value_heads"], c["linear_num_key_heads"]
    mixed = convolved(linear(y, at + "in_proj_qkv"), w[at + "conv1d.weight"], None, ways, hold)
    size = key_heads * c["linear_key_head_dim"]
    q, k, v = np.split(mixed, [size, 2 * size], axis=1)
    q, k = (of_length_1(one.reshape(T, key_heads, -1)) for one in (q, k))
    q, k = (np.repeat(one, heads // key_heads, axis=1) for one in (q, k))
    v = v.reshape(T, heads, -1)
    beta = hold(1 / (1 + np.exp(-linear(y, at + "in_proj_b"))))
    dt = softplus(linear(y, at + "in_proj_a") + w[at + "dt_bias"])
    g = faded(-np.exp(w[at + "A_log"]) * dt, ways)
    firsts = np.zeros((T, heads, k.shape[2], v.shape[2]))
    given = (q, k, v, g, beta, k.shape[2] ** -0.5, ways.state, [], firsts)
    results, _ = operators.gated_delta_rule(*given)
    gate = linear(y, at + "in_proj_z").reshape(T, heads, -1)
    normed = by_size(hold(results["out"]), c["rms_norm_eps"]) * w[at + "norm.weight"]
    return linear(hold(normed * silu(gate)).reshape(T, -1), at + "out_proj")


def gated_attention(c, y, at, ways, norm, linear, hold):
    T, h = len(y), c["head_dim"]
    both = linear(y, at + "q_proj").reshape(T, -1, 2 * h)  # of each head: its query, its gate
    q, gate = both[..., :h], both[..., h:]
    q = hold(rotated(norm(q, at + "q_norm"), c, ways.where))
    k = norm(linear(y, at + "k_proj").reshape(T, -1, h), at + "k_norm")
    k = hold(rotated(k, c, ways.where))
    v = linear(y, at + "v_proj").reshape(T, -1, h)
    results, _ = operators.attention(q, k, v, ways.sees, h**-0.5)
    read = hold(hold(results["out"]) / (1 + np.exp(-gate)))
    return linear(read.reshape(T, -1), at + "o_proj")


def rotated(x, c, where):
    """Only the first numbers of a head turn. Text has one position on every axis."""
    rope = c["rope_parameters"]
    size = int(c["head_dim"] * rope["partial_rotary_factor"])
    angle = (where[:, None] * rope["rope_theta"] ** (-np.arange(0, size, 2) / size))[:, None]
    a, b, rest = np.split(x, [size // 2, size], axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


# ---- Nemotron-H ---------------------------------------------------------------------------------
def nemotron_h(w, c, tokens, ways, hold):
    """Its attention has no positions."""
    eps = c["layer_norm_epsilon"]

    def norm(x, name):
        return hold(by_size(x, eps) * w[name + ".weight"])

    def linear(x, name):
        return hold(x @ w[name + ".weight"].T)

    x = w["model.embeddings.weight"][tokens]
    for i, kind in enumerate(c["layers_block_type"]):
        at = f"model.layers.{i}."
        y, mixer = norm(x, at + "norm"), at + "mixer."
        if kind == "linear_attention":
            x = hold(x + mamba2(w, c, y, mixer, ways, linear, hold))
        elif kind == "full_attention":
            heads = [
                linear(y, f"{mixer}{n}_proj").reshape(len(y), -1, c["head_dim"]) for n in "qkv"
            ]
            results, _ = operators.attention(*heads, ways.sees, c["head_dim"] ** -0.5)
            read = hold(results["out"]).reshape(len(y), -1)
            x = hold(x + linear(read, mixer + "o_proj"))
        else:
            wide = hold(np.maximum(linear(y, mixer + "up_proj"), 0) ** 2)
            x = hold(x + linear(wide, mixer + "down_proj"))
    return linear(norm(x, "model.norm_f"), "lm_head")


def mamba2(w, c, y, at, ways, linear, hold):
    T, heads, size = len(y), c["mamba_num_heads"], c["mamba_num_heads"] * c["mamba_head_dim"]
    groups, state = c["n_groups"], c["ssm_state_size"]
    gate, mixed, dt = np.split(linear(y, at + "in_proj"), [size, -heads], axis=1)
    mixed = convolved(mixed, w[at + "conv1d.weight"], w[at + "conv1d.bias"], ways, hold)
    x, B, C = np.split(mixed, [size, size + groups * state], axis=1)
    x, B, C = (one.reshape(T, n, -1) for one, n in ((x, heads), (B, groups), (C, groups)))
    dt = np.maximum(softplus(dt + w[at + "dt_bias"]), 0.001)
    g = faded(dt * -np.exp(w[at + "A_log"]), ways)
    B, C = (np.repeat(one, heads // groups, axis=1) for one in (B, C))
    firsts = np.zeros((T, heads, state, c["mamba_head_dim"]))
    given = (C, B, dt[..., None] * x, g[..., None], np.ones_like(dt), 1.0, ways.state, firsts)
    out, _, _ = operators.scan(*given, corrects=False)
    out = hold(out + w[at + "D"][:, None] * x).reshape(T, size) * silu(gate)
    by_group = by_size(out.reshape(T, groups, -1), c["layer_norm_epsilon"]).reshape(T, size)
    return linear(hold(by_group * w[at + "norm.weight"]), at + "out_proj")
