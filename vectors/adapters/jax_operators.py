"""Operators on packed rows in JAX: attention by its own function, layers with a state along each
token's path. Gradients by jax.vjp."""

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


def results(function, inputs, grad_out, dtype):
    """function: inputs -> out, final states. Gradients of out alone."""
    kind = jnp.dtype(dtype)
    inputs = {name: jnp.asarray(x, kind) for name, x in inputs.items() if x is not None}
    out, back, final = jax.vjp(lambda given: function(**given), inputs, has_aux=True)
    grads = back(jnp.asarray(grad_out, out.dtype))[0]
    named = {"out": out, **{f"grad_{name}": x for name, x in grads.items()}}
    if final is not None:
        named["final_states"] = final
    return {name: np.asarray(x, np.float64) for name, x in named.items()}


def attention(q, k, v, scale, mask_in_window, grad_out, dtype):
    def run(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, mask=mask_in_window[None], scale=scale), None

    return results(run, {"q": q, "k": k, "v": v}, grad_out, dtype)


def wide(*arrays):
    """In float32 at least, as kernels compute; gradients come back in the dtype."""
    return (None if x is None else x.astype(jnp.promote_types(x.dtype, "float32")) for x in arrays)


def along(q, k, v, g, beta, parents, begins, initial):
    """A scan over the row; each token reads its parent's state. g: (T, H, k). beta None: nothing is
    corrected. States: those after the tokens, nothing, the initial ones."""
    T, none = len(parents), jnp.zeros((1, *k.shape[1:], v.shape[-1]), v.dtype)
    given = none[:0] if initial is None else initial
    places = [none.repeat(T, axis=0), none, given]
    before = np.where(parents >= 0, parents, T)
    if begins is not None:
        before = np.where(begins >= 0, T + 1 + begins, before)

    def step(states, of_token):
        t, before, q, k, v, g, beta = of_token
        state = jnp.exp(g)[:, :, None] * states[before]
        u = v
        if beta is not None:
            u = beta[:, None] * (v - (state * k[:, :, None]).sum(1))
        state = state + k[:, :, None] * u[:, None]
        return states.at[t].set(state), (state * q[:, :, None]).sum(1)

    row = (jnp.arange(T), jnp.asarray(before), q, k, v, g, beta)
    states, outs = jax.lax.scan(step, jnp.concatenate(places), row)
    return outs, states


def kda(q, k, v, g, beta, scale, parents, ends, grad_out, dtype, begins=None, initial_states=None):
    def run(q, k, v, g, beta, initial_states=None):
        q, k, v, g, beta, initial = wide(q, k, v, g, beta, initial_states)
        g = jnp.broadcast_to(g if g.ndim == 3 else g[..., None], k.shape)
        out, states = along(q * scale, k, v, g, beta, parents, begins, initial)
        return out.astype(dtype), states[ends]

    inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_states": initial_states}
    return results(run, inputs, grad_out, dtype)


gated_delta_rule = kda


def mamba2(x, dt, A, B, C, parents, ends, grad_out, dtype, begins=None, initial_states=None):
    def run(x, dt, A, B, C, initial_states=None):
        x, dt, A, B, C, initial = wide(x, dt, A, B, C, initial_states)
        B, C = (jnp.repeat(one, x.shape[1] // one.shape[1], axis=1) for one in (B, C))
        g = jnp.broadcast_to((dt * A)[..., None], B.shape)
        initial = None if initial is None else initial.swapaxes(2, 3)
        out, states = along(C, B, dt[..., None] * x, g, None, parents, begins, initial)
        return out.astype(dtype), states[ends].swapaxes(2, 3)

    inputs = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "initial_states": initial_states}
    return results(run, inputs, grad_out, dtype)


def short_convolution(
    x, weight, bias, parents, ends, grad_out, dtype, begins=None, initial_states=None
):
    """Taps are gathered: rows T and behind it are what is before the first tokens."""
    T, before = len(x), weight.shape[1] - 1
    taps = np.empty((T, before + 1), int)  # of each token the rows it reads, the oldest first
    for t, parent in enumerate(parents):
        if parent >= 0:
            taps[t] = [*taps[parent][1:], t]
        else:
            first = T + 1 + before * begins[t] if begins is not None else T
            taps[t] = [first + i if begins is not None else T for i in range(before)] + [t]

    def run(x, weight, bias, initial_states=None):
        rows = [x, jnp.zeros((1, x.shape[1]), x.dtype)]
        if initial_states is not None:
            rows += [one.T for one in initial_states]
        seen = jnp.concatenate(rows)[taps]  # (T, W, D)
        return jnp.einsum("twd,dw->td", seen, weight) + bias, seen[ends][:, 1:].swapaxes(1, 2)

    inputs = {"x": x, "weight": weight, "bias": bias, "initial_states": initial_states}
    return results(run, inputs, grad_out, dtype)
