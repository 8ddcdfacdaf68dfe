"""The shortest packed forward pass there is: LLaMA, Mistral, Qwen2 and Qwen3 in numpy.

T tokens, U that they read, D hidden_size, H heads, K key/value heads, h head_dim.
"""

import numpy as np


def frequencies(config):
    """Radians by position of each pair of a head's dimensions."""
    f = config["rope_theta"] ** (-np.arange(0, config["head_dim"], 2) / config["head_dim"])
    s = config["rope_scaling"]
    if s:  # of the type llama3
        turns = s["original_max_position_embeddings"] * f / (2 * np.pi)
        keep = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        f = f * (np.clip(keep, 0, 1) + (1 - np.clip(keep, 0, 1)) / s["factor"])
    return f


def logits(weights, config, tokens, positions, mask_in_window, dtype):
    """(T, V). mask_in_window: for each layer (T, U), True = may attend."""
    w = {name: x.astype(dtype) for name, x in weights.items()}
    h, shared = config["head_dim"], config["num_attention_heads"] // config["num_key_value_heads"]
    angle = (positions[:, None] * frequencies(config))[:, None]  # in float64, whatever the dtype
    cos, sin = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)

    def norm(x, name):
        size = np.sqrt(np.mean(x * x, -1, keepdims=True) + x.dtype.type(config["rms_norm_eps"]))
        return x / size * w[name + ".weight"]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    def heads(y, name):  # (T, H or K, h)
        x = linear(y, name + "_proj").reshape(len(y), -1, h)
        return norm(x, name + "_norm") if name + "_norm.weight" in w else x

    def rotate(x):
        a, b = x[..., : h // 2], x[..., h // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer, sees in enumerate(mask_in_window):
        at = f"model.layers.{layer}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (heads(y, f"{at}self_attn.{name}") for name in "qkv")
        q, k, v = rotate(q), np.repeat(rotate(k), shared, 1), np.repeat(v, shared, 1)
        scores = np.einsum("thd,uhd->htu", q, k) * x.dtype.type(h**-0.5)
        scores = np.where(sees, scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        read = np.einsum("htu,uhd->thd", p / p.sum(-1, keepdims=True), v)
        x = x + linear(read.reshape(len(x), -1), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        gate = linear(y, at + "mlp.gate_proj")
        x = x + linear(
            gate / (1 + np.exp(-gate)) * linear(y, at + "mlp.up_proj"), at + "mlp.down_proj"
        )
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, "model.norm") @ head.T
