"""Operators on packed rows in MLX on a CPU: its fast attention, and what has a state along each
token's path. No gradients."""

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)


def held(dtype, *arrays):
    return [mx.array(x.astype(np.float32)).astype(getattr(mx, dtype)) for x in arrays]


def given(x):
    return np.array(x.astype(mx.float32))


def attention(q, k, v, scale, mask_in_window, dtype):
    q, k, v = (x.transpose(1, 0, 2)[None] for x in held(dtype, q, k, v))
    sees = mx.array(mask_in_window)
    out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=sees)
    return given(out[0].transpose(1, 0, 2))


def along(q, k, v, g, beta, parents, ends, begins, initial):
    """g: (T, H, k). beta: (T, H), or None. States in float32."""
    states, outs = [], []
    for t, parent in enumerate(parents.tolist()):
        state = states[parent] if parent >= 0 else mx.zeros((*k.shape[1:], v.shape[-1]))
        if begins is not None and begins[t] >= 0:
            state = initial[int(begins[t])].astype(mx.float32)
        state = mx.exp(g[t].astype(mx.float32))[:, :, None] * state
        u = v[t]
        if beta is not None:
            u = beta[t][:, None] * (u - (state * k[t][:, :, None]).sum(1))
        states.append(state + k[t][:, :, None] * u[:, None])
        outs.append((states[-1] * q[t][:, :, None]).sum(1).astype(v.dtype))
    final = mx.stack([states[int(end)] for end in ends])
    return {"out": given(mx.stack(outs)), "final_states": given(final)}


def kda(q, k, v, g, beta, scale, parents, ends, dtype, begins=None, initial_states=None):
    initial = None if initial_states is None else held(dtype, initial_states)[0]
    q, k, v, g, beta = held(dtype, q, k, v, g, beta)
    g = mx.broadcast_to(g if g.ndim == 3 else g[..., None], k.shape)
    return along(q * scale, k, v, g, beta, parents, ends, begins, initial)


gated_delta_rule = kda


def mamba2(x, dt, A, B, C, parents, ends, dtype, begins=None, initial_states=None):
    initial = None if initial_states is None else held(dtype, initial_states.swapaxes(2, 3))[0]
    x, dt, A, B, C = held(dtype, x, dt, A, B, C)
    B, C = (mx.repeat(one, x.shape[1] // one.shape[1], axis=1) for one in (B, C))
    g = mx.broadcast_to((dt * A)[..., None], B.shape)
    found = along(C, B, dt[..., None] * x, g, None, parents, ends, begins, initial)
    return {"out": found["out"], "final_states": found["final_states"].swapaxes(2, 3)}


def short_convolution(x, weight, bias, parents, ends, dtype, begins=None, initial_states=None):
    x, weight, bias = held(dtype, x, weight, bias)
    seen, nothing = [], mx.zeros((x.shape[1], weight.shape[1] - 1), x.dtype)
    for t, parent in enumerate(parents.tolist()):
        before = seen[parent][:, 1:] if parent >= 0 else nothing
        if begins is not None and begins[t] >= 0:
            before = held(dtype, initial_states[begins[t]])[0]
        seen.append(mx.concatenate([before, x[t][:, None]], axis=1))
    seen = mx.stack(seen)
    final = seen[mx.array(ends)][:, :, 1:]
    return {"out": given((seen * weight).sum(-1) + bias), "final_states": given(final)}
