"""A packed forward pass in JAX. T tokens, H heads, h head_dim."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy_packed import frequencies

jax.config.update("jax_enable_x64", True)


def logits(weights, config, tokens, positions, mask_in_window, dtype):
    kind = jnp.dtype(dtype)
    w = {name: jnp.asarray(x, kind) for name, x in weights.items()}
    h, eps = config["head_dim"], jnp.asarray(config["rms_norm_eps"], kind)
    # In float32 at least: bfloat16 cannot hold 257, and positions reach 4,000.
    wide = jnp.promote_types(kind, jnp.float32)
    angle = jnp.asarray(positions, wide)[:, None] * jnp.asarray(frequencies(config), wide)
    cos, sin = jnp.cos(angle)[:, None].astype(kind), jnp.sin(angle)[:, None].astype(kind)

    def norm(x, name):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * w[name + ".weight"]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def heads(y, name):  # (T, heads, h)
        x = linear(y, name + "_proj").reshape(len(tokens), -1, h)
        return norm(x, name + "_norm") if name + "_norm.weight" in w else x

    def rotate(x):
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer, sees in enumerate(mask_in_window):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (heads(y, f"{at}self_attn.{name}") for name in "qkv")
        read = jax.nn.dot_product_attention(rotate(q), rotate(k), v, mask=jnp.asarray(sees)[None])
        x = x + linear(read.reshape(len(tokens), -1), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        gate = jax.nn.silu(linear(y, at + "mlp.gate_proj"))
        x = x + linear(gate * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return np.asarray(norm(x, "model.norm") @ head.T, np.float64)
