"""Operators by their definitions, token by token along each token's path, with their gradients. In
numpy alone, in float64: no kernel, no chunk, and no mask but the parents.

A gradient is derived by hand: each function returns its result and a function that takes the
gradient of that. tests/lab/vectors holds them to differences of the result.

T tokens; H heads, K that share keys and values; k, v sizes of a key and a value; N initial states;
D channels; W taps.
"""

import numpy as np

NONE = -1  # a token without a parent


# ---- attention ----------------------------------------------------------------------------------
def attention(q, k, v, sees, scale, add=False, kv_order=False):
    """out (T, H, v). q: (T, H, k); k: (T, K, k); v: (T, K, v); sees: (T, T) bool. The last two are
    mistakes: the mask is added to the scores as 0 and 1; heads repeat as 0 1 0 1."""
    heads, shared = np.arange(q.shape[1]), k.shape[1]
    of = heads % shared if kv_order else heads // (len(heads) // shared)
    scores = np.einsum("thd,uhd->htu", q, k[:, of]) * scale
    scores = scores + sees if add else np.where(sees, scores, np.finfo(scores.dtype).min)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    out = np.einsum("htu,uhd->thd", p, v[:, of])

    def gradients(grad_out):
        grad_p = np.einsum("thd,uhd->htu", grad_out, v[:, of])
        grad_scores = p * (grad_p - (grad_p * p).sum(-1, keepdims=True)) * scale
        grad_q = np.einsum("htu,uhd->thd", grad_scores, k[:, of])
        grad_k, grad_v = np.zeros_like(k), np.zeros_like(v)
        for head, one in enumerate(of):
            grad_k[:, one] += grad_scores[head].T @ q[:, head]
            grad_v[:, one] += p[head].T @ grad_out[:, head]
        return {"q": grad_q, "k": grad_k, "v": grad_v}

    return {"out": out}, gradients


# ---- layers with a state ------------------------------------------------------------------------
def scan(q, k, v, g, beta, scale, parents, firsts, corrects=True, swapped="", cut=()):
    """out (T, H, v), and the state after each token (T, H, k, v). A token does four things to its
    parent's state: fade it, correct its value, write it at its key, and read at its query.

    q, k: (T, H, k). v: (T, H, v). g: (T, H, 1) or (T, H, k), log decays, at most 0. beta: (T, H).
    parents: (T,), NONE: the token begins with firsts[t], (T, H, k, v). Mistakes: nothing is
    corrected; swapped: it "fades" after it wrote, "corrects" before it fades, or "reads" before it
    writes; `cut`: tokens that pass no gradient on to their parents.
    """
    fade, late = np.exp(g)[..., None], swapped == "fades"
    before, faded, held, states, read = (np.empty_like(firsts) for _ in range(5))
    found, u, out = (np.empty_like(v) for _ in range(3))
    for t, parent in enumerate(parents):
        before[t] = firsts[t] if parent == NONE else states[parent]
        faded[t] = before[t] if late else fade[t] * before[t]
        held[t] = before[t] if swapped == "corrects" else faded[t]
        found[t] = np.einsum("hkv,hk->hv", held[t], k[t]) if corrects else 0
        u[t] = beta[t][:, None] * (v[t] - found[t])
        states[t] = faded[t] + k[t][:, :, None] * u[t][:, None]
        states[t] = fade[t] * states[t] if late else states[t]
        read[t] = faded[t] if swapped == "reads" else states[t]
        out[t] = scale * np.einsum("hkv,hk->hv", read[t], q[t])

    def gradients(grad_out):
        grad = {n: np.zeros_like(x) for n, x in {"q": q, "k": k, "v": v, "g": g}.items()}
        grad |= {"beta": np.zeros_like(beta), "firsts": np.zeros_like(firsts)}
        of_state = np.zeros_like(firsts)  # what a token's children pass back to it
        for t in reversed(range(len(parents))):
            here, of_read = of_state[t], scale * q[t][:, :, None] * grad_out[t][:, None]
            grad["q"][t] = scale * np.einsum("hkv,hv->hk", read[t], grad_out[t])
            if swapped != "reads":
                here = here + of_read
            if late:
                of_g = (here * states[t]).sum(-1)
                here = fade[t] * here
            of_u = np.einsum("hkv,hk->hv", here, k[t])
            grad["k"][t] = np.einsum("hkv,hv->hk", here, u[t])
            grad["v"][t] = beta[t][:, None] * of_u
            grad["beta"][t] = (of_u * (v[t] - found[t])).sum(-1)
            of_held = 0
            if corrects:
                of_found = -beta[t][:, None] * of_u
                grad["k"][t] += np.einsum("hkv,hv->hk", held[t], of_found)
                of_held = k[t][:, :, None] * of_found[:, None]
            if swapped == "reads":
                here = here + of_read
            if swapped != "corrects":
                here = here + of_held
            if not late:
                of_g = (here * faded[t]).sum(-1)
                here = fade[t] * here
            if swapped == "corrects":
                here = here + of_held
            grad["g"][t] = of_g if g.shape[-1] > 1 else of_g.sum(-1, keepdims=True)
            if t in cut:
                continue
            if parents[t] == NONE:
                grad["firsts"][t] = here
            else:
                of_state[parents[t]] += here
        return grad

    return out, states, gradients


def gated_delta_rule(q, k, v, g, beta, scale, parents, ends, firsts, **mistake):
    """Gated DeltaNet, where g is (T, H), and KDA, where it is (T, H, k). q and k come as they are:
    no norm inside. final_states: (prompts, H, k, v), after each of `ends`."""
    by_head = g.ndim == 2
    wide = g[..., None] if by_head else g
    out, states, back = scan(q, k, v, wide, beta, scale, parents, firsts, **mistake)

    def gradients(grad_out):
        grad = back(grad_out)
        grad["g"] = grad["g"][..., 0] if by_head else grad["g"]
        return grad

    return {"out": out, "final_states": states[ends]}, gradients


def mamba2(x, dt, A, B, C, parents, ends, firsts, **mistake):
    """out (T, H, v). x: (T, H, v). dt: (T, H), behind its bias and softplus. A: (H,), below 0.
    B, C: (T, groups, k), group 0 for the first heads. No D, no gate. final_states: (prompts, H, v,
    k), as Mamba's kernels have it."""
    of = np.arange(x.shape[1]) // (x.shape[1] // B.shape[1])
    g, v = (dt * A)[..., None], dt[..., None] * x
    given = (C[:, of], B[:, of], v, g, np.ones_like(dt), 1.0, parents, firsts.swapaxes(2, 3))
    out, states, back = scan(*given, corrects=False, **mistake)

    def gradients(grad_out):
        grad = back(grad_out)
        of_B, of_C = np.zeros_like(B), np.zeros_like(C)
        for head, group in enumerate(of):
            of_B[:, group] += grad["k"][:, head]
            of_C[:, group] += grad["q"][:, head]
        return {
            "x": dt[..., None] * grad["v"],
            "dt": (grad["v"] * x).sum(-1) + grad["g"][..., 0] * A,
            "A": (grad["g"][..., 0] * dt).sum(0),
            "B": of_B,
            "C": of_C,
            "firsts": grad["firsts"].swapaxes(2, 3),
        }

    return {"out": out, "final_states": states[ends].swapaxes(2, 3)}, gradients


# ---- short convolution --------------------------------------------------------------------------
def short_convolution(x, weight, bias, parents, ends, firsts, cut=()):
    """out (T, D): the sum of taps times the token, its parent, the parent's parent, ... x: (T, D).
    weight: (D, W), the last tap is the token's own. bias: (D,). No activation. firsts: (T, D,
    W - 1), the inputs before a token without a parent. final_states: (prompts, D, W - 1), the last
    inputs of each prompt, the oldest first: what is needed to go on."""
    width = weight.shape[1]
    out, seen = np.empty_like(x), np.empty((*x.shape, width))  # the inputs that each token reads
    for t, parent in enumerate(parents):
        before = firsts[t] if parent == NONE else seen[parent][:, 1:]
        seen[t] = np.concatenate([before, x[t][:, None]], axis=1)
        out[t] = (seen[t] * weight).sum(-1) + bias

    def gradients(grad_out):
        grad_x, grad_firsts = np.zeros_like(x), np.zeros_like(firsts)
        of_seen = np.zeros_like(seen)
        for t in reversed(range(len(parents))):
            of_seen[t] += grad_out[t][:, None] * weight
            grad_x[t] = of_seen[t][:, -1]
            if t in cut:
                continue
            if parents[t] == NONE:
                grad_firsts[t] = of_seen[t][:, :-1]
            else:
                of_seen[parents[t]][:, 1:] += of_seen[t][:, :-1]
        of_weight = np.einsum("td,tdw->dw", grad_out, seen)
        return {"x": grad_x, "weight": of_weight, "bias": grad_out.sum(0), "firsts": grad_firsts}

    return {"out": out, "final_states": seen[ends][:, :, 1:]}, gradients
