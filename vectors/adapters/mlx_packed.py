"""A packed forward pass in MLX, with its fast kernels. It has no float64 on a GPU; here: a CPU."""

import mlx.core as mx
import numpy as np
from numpy_packed import frequencies

mx.set_default_device(mx.cpu)


def logits(weights, config, tokens, positions, mask_in_window, dtype):
    kind, T, h = getattr(mx, dtype), len(tokens), config["head_dim"]
    w = {name: mx.array(x.astype(np.float32)).astype(kind) for name, x in weights.items()}
    angle = mx.array((positions[:, None] * frequencies(config)).astype(np.float32))
    cos, sin = mx.cos(angle).astype(kind), mx.sin(angle).astype(kind)

    def norm(x, name):
        return mx.fast.rms_norm(x, w[name + ".weight"], config["rms_norm_eps"])

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def heads(y, name):  # (1, heads, T, h)
        x = linear(y, name + "_proj").reshape(T, -1, h)
        x = norm(x, name + "_norm") if name + "_norm.weight" in w else x
        return x.transpose(1, 0, 2)[None]

    def rotate(x):
        a, b = mx.split(x, 2, axis=-1)
        return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = w["model.embed_tokens.weight"][mx.array(tokens)]
    for layer, sees in enumerate(mask_in_window):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (heads(y, f"{at}self_attn.{name}") for name in "qkv")
        read = mx.fast.scaled_dot_product_attention(
            rotate(q), rotate(k), v, scale=h**-0.5, mask=mx.array(sees)
        )
        x = x + linear(read[0].transpose(1, 0, 2).reshape(T, -1), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        gate = linear(y, at + "mlp.gate_proj")
        gate = gate * mx.sigmoid(gate)
        x = x + linear(gate * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return np.array((norm(x, "model.norm") @ head.T).astype(mx.float32))
