"""Operators on packed rows in numpy, in the dtype that is asked for: attention by a mask, and what
has a state along each token's path. No gradients."""

import numpy as np


def attention(q, k, v, scale, mask_in_window, dtype):
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("thd,uhd->htu", q, k) * q.dtype.type(scale)
    scores = np.where(mask_in_window, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("htu,uhd->thd", p / p.sum(-1, keepdims=True), v)


def along(q, k, v, g, beta, parents, ends, begins=None, initial=None):
    """g: (T, H, k). beta: (T, H), or None: nothing is corrected."""
    states, outs = [], []
    for t, parent in enumerate(parents):
        state = states[parent] if parent >= 0 else np.zeros((*k.shape[1:], v.shape[-1]), v.dtype)
        if begins is not None and begins[t] >= 0:
            state = initial[begins[t]]
        state = np.exp(g[t])[:, :, None] * state
        u = v[t]
        if beta is not None:
            u = beta[t][:, None] * (u - np.einsum("hkv,hk->hv", state, k[t]))
        states.append(state + k[t][:, :, None] * u[:, None])
        outs.append(np.einsum("hkv,hk->hv", states[-1], q[t]))
    return {"out": np.stack(outs), "final_states": np.stack([states[end] for end in ends])}


def kda(q, k, v, g, beta, scale, parents, ends, dtype, begins=None, initial_states=None):
    q, k, v, g, beta = (x.astype(dtype) for x in (q, k, v, g, beta))
    q = q * q.dtype.type(scale)
    initial = None if initial_states is None else initial_states.astype(dtype)
    return along(q, k, v, g, beta, parents, ends, begins, initial)


def gated_delta_rule(
    q, k, v, g, beta, scale, parents, ends, dtype, begins=None, initial_states=None
):
    channels = np.broadcast_to(g[..., None], q.shape)
    return kda(q, k, v, channels, beta, scale, parents, ends, dtype, begins, initial_states)


def mamba2(x, dt, A, B, C, parents, ends, dtype, begins=None, initial_states=None):
    x, dt, A, B, C = (one.astype(dtype) for one in (x, dt, A, B, C))
    B, C = (np.repeat(one, x.shape[1] // one.shape[1], axis=1) for one in (B, C))
    g = np.broadcast_to((dt * A)[..., None], B.shape)
    initial = None if initial_states is None else initial_states.astype(dtype).swapaxes(2, 3)
    found = along(C, B, dt[..., None] * x, g, None, parents, ends, begins, initial)
    return {"out": found["out"], "final_states": found["final_states"].swapaxes(2, 3)}


def short_convolution(x, weight, bias, parents, ends, dtype, begins=None, initial_states=None):
    x, weight, bias = (one.astype(dtype) for one in (x, weight, bias))
    seen, nothing = [], np.zeros((x.shape[1], weight.shape[1] - 1), dtype)
    for t, parent in enumerate(parents):
        before = seen[parent][:, 1:] if parent >= 0 else nothing
        if begins is not None and begins[t] >= 0:
            before = initial_states[begins[t]].astype(dtype)
        seen.append(np.concatenate([before, x[t][:, None]], axis=1))
    seen = np.stack(seen)
    return {"out": (seen * weight).sum(-1) + bias, "final_states": seen[ends][:, :, 1:]}
