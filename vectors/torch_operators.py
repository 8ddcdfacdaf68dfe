"""The operators of operators.py once more, in torch and any dtype: gradients by autograd, which
the derivations by hand are held to, and mistakes in bfloat16, which numpy has not.

As in kernels, inputs and results are in the dtype, and states in float32 at least.
"""

import numpy as np
import torch

NONE = -1


class Operators:
    """The functions of operators.py, with numpy arrays and the same names. dtype: a torch.dtype."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.wide = torch.promote_types(dtype, torch.float32)

    def held(self, **arrays):
        """Tensors in the dtype, whose gradients are wanted, to be computed with in `wide`."""
        self.leaves = {n: torch.tensor(np.array(x)).to(self.dtype) for n, x in arrays.items()}
        for x in self.leaves.values():
            x.requires_grad_()
        return (x.to(self.wide) for x in self.leaves.values())

    def given(self, out, final_states=None):
        """As operators.py returns it."""
        leaves, out = dict(self.leaves), out.to(self.dtype)

        def gradients(grad_out):
            seed = torch.tensor(grad_out).to(out.dtype)
            found = torch.autograd.grad(out, list(leaves.values()), seed, allow_unused=True)
            grads = {}
            for (name, leaf), grad in zip(leaves.items(), found, strict=True):
                grads[name] = as_numpy(torch.zeros_like(leaf) if grad is None else grad)
            return grads

        results = {"out": as_numpy(out)}
        if final_states is not None:
            results["final_states"] = as_numpy(final_states)
        return results, gradients

    def attention(self, q, k, v, sees, scale, add=False, kv_order=False):
        q, k, v = self.held(q=q, k=k, v=v)
        heads, shared = torch.arange(q.shape[1]), k.shape[1]
        of = heads % shared if kv_order else heads // (len(heads) // shared)
        scores = torch.einsum("thd,uhd->htu", q, k[:, of]) * scale
        sees = torch.tensor(np.array(sees))
        lowest = torch.finfo(self.wide).min
        scores = scores + sees if add else scores.masked_fill(~sees, lowest)
        return self.given(torch.einsum("htu,uhd->thd", scores.softmax(-1), v[:, of]))

    def scan(self, q, k, v, g, beta, scale, parents, firsts, corrects=True, swapped="", cut=()):
        late = swapped == "fades"
        states, outs = [], []
        for t, parent in enumerate(parents):
            state = firsts[t] if parent == NONE else states[parent]
            state = state.detach() if t in cut else state
            fade = g[t].exp()[..., None]
            before, state = state, state if late else fade * state
            faded, held = state, before if swapped == "corrects" else state
            found = torch.einsum("hkv,hk->hv", held, k[t]) if corrects else 0
            u = beta[t][:, None] * (v[t] - found)
            state = state + k[t][:, :, None] * u[:, None]
            state = fade * state if late else state
            states.append(state)
            read = faded if swapped == "reads" else state
            outs.append(scale * torch.einsum("hkv,hk->hv", read, q[t]))
        return torch.stack(outs), torch.stack(states)

    def gated_delta_rule(self, q, k, v, g, beta, scale, parents, ends, firsts, **mistake):
        given = self.held(q=q, k=k, v=v, g=g, beta=beta, firsts=firsts)
        q, k, v, g, beta, firsts = given
        g = g[..., None] if g.dim() == 2 else g
        out, states = self.scan(q, k, v, g, beta, scale, parents, firsts, **mistake)
        return self.given(out, states[ends])

    def mamba2(self, x, dt, A, B, C, parents, ends, firsts, **mistake):
        x, dt, A, B, C, firsts = self.held(x=x, dt=dt, A=A, B=B, C=C, firsts=firsts)
        of = torch.arange(x.shape[1]) // (x.shape[1] // B.shape[1])
        g, v, ones = (dt * A)[..., None], dt[..., None] * x, torch.ones_like(dt)
        given = (C[:, of], B[:, of], v, g, ones, 1.0, parents, firsts.mT)
        out, states = self.scan(*given, corrects=False, **mistake)
        return self.given(out, states[ends].mT)

    def short_convolution(self, x, weight, bias, parents, ends, firsts, cut=()):
        x, weight, bias, firsts = self.held(x=x, weight=weight, bias=bias, firsts=firsts)
        seen = []
        for t, parent in enumerate(parents):
            before = firsts[t] if parent == NONE else seen[parent][:, 1:]
            before = before.detach() if t in cut else before
            seen.append(torch.cat([before, x[t][:, None]], dim=1))
        seen = torch.stack(seen)
        return self.given((seen * weight).sum(-1) + bias, seen[ends][:, :, 1:])


def as_numpy(x):
    return x.detach().double().numpy()
