"""The functions by which transformers computes layers with a state without kernels, each prompt
alone: they know no packing. That is what the vectors are held to, not what a packed row does."""

import torch
from torch_alone import alone
from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention
from transformers.models.nemotron_h.modeling_nemotron_h import causal_conv1d_fn, mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

HELD = ("parents", "ends", "grad_out", "dtype", "begins", "initial_states")


def delta(rule, local):
    inputs = {name: local[name] for name in ("q", "k", "v", "g", "beta")}
    scale = local["scale"] * local["q"].shape[-1] ** 0.5  # the functions scale, too
    assert abs(scale - 1) < 1e-9

    def run(q, k, v, g, beta, initial):
        return rule(q, k, v, g=g, beta=beta, initial_state=initial, output_final_state=True)

    return alone(run, inputs, {name: local[name] for name in HELD})


def gated_delta_rule(
    q, k, v, g, beta, scale, parents, ends, grad_out, dtype, begins=None, initial_states=None
):
    return delta(torch_chunk_gated_delta_rule, locals())


def kda(q, k, v, g, beta, scale, parents, ends, grad_out, dtype, begins=None, initial_states=None):
    return delta(chunk_kimi_delta_attention, locals())


def mamba2(x, dt, A, B, C, parents, ends, grad_out, dtype, begins=None, initial_states=None):
    local = locals()

    def run(x, dt, A, B, C, initial):
        return mamba2_chunk_scan(
            *(x, dt, A, B, C, 64), initial_states=initial, return_final_states=True
        )

    inputs = {name: local[name] for name in ("x", "dt", "A", "B", "C")}
    return alone(run, inputs, {name: local[name] for name in HELD})


def short_convolution(
    x, weight, bias, parents, ends, grad_out, dtype, begins=None, initial_states=None
):
    local = locals()

    def run(x, weight, bias, initial):
        before = torch.zeros(1, x.shape[2], weight.shape[1] - 1, dtype=x.dtype)
        wide = torch.cat([before if initial is None else initial, x.mT], dim=2)
        out = causal_conv1d_fn(wide, weight, bias).mT[:, weight.shape[1] - 1 :]
        return out, wide[:, :, -(weight.shape[1] - 1) :]

    inputs = {name: local[name] for name in ("x", "weight", "bias")}
    return alone(run, inputs, {name: local[name] for name in HELD})
