"""Write the test vectors: python make_vectors.py FOLDER [MODEL ...]. Needs torch and safetensors.

The models are the folders of v1/: a config.json each, written by hand. What is right comes from a
run of each prompt alone, in float64. What is wrong comes from a run of the whole row with one known
mistake. docs/vectors.md tells what a file holds.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from layouts import describe, rows, tokenizer, write_sums
from mistakes import losses, mistakes
from safetensors.numpy import save_file

VERSION = 1  # of the format, and the seed of all that is random: nobody looked for a good one
COLUMNS = 8  # of the vocabulary, kept of a wrong run
PROBE = "model.layers.0.input_layernorm.weight"  # whose gradient is kept of a wrong run
V1 = Path(__file__).parent / f"v{VERSION}"
MODELS = {
    path.parent.name: json.loads(path.read_text()) for path in sorted(V1.glob("*/config.json"))
}


# ---- models. T tokens, U that they read, L layers, D hidden_size, V vocabulary ------------------
def windows(c):
    """The window of each layer, in positions; None: no window."""
    first = c.get("max_window_layers", 0)
    return [c["sliding_window"] if i >= first else None for i in range(c["num_hidden_layers"])]


def shapes(c):
    """Name, shape, mean and scale of each weight."""
    D, W, V, h = (c[n] for n in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"))
    q, kv = c["num_attention_heads"] * h, c["num_key_value_heads"] * h
    yield "model.embed_tokens.weight", (V, D), 0, 0.5
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (D,), 1, 0.2
        for name, size, scale in ("q_proj", q, 0.2), ("k_proj", kv, 0.2), ("v_proj", kv, 0.25):
            yield at + f"self_attn.{name}.weight", (size, D), 0, scale
            if c["model_type"] == "qwen2":
                yield at + f"self_attn.{name}.bias", (size,), 0, 0.25
        if c["model_type"] == "qwen3":
            yield at + "self_attn.q_norm.weight", (h,), 1.5, 0.6
            yield at + "self_attn.k_norm.weight", (h,), 1.5, 0.6
        yield at + "self_attn.o_proj.weight", (D, q), 0, 0.25
        yield at + "post_attention_layernorm.weight", (D,), 1, 0.2
        yield at + "mlp.gate_proj.weight", (W, D), 0, 0.2
        yield at + "mlp.up_proj.weight", (W, D), 0, 0.2
        yield at + "mlp.down_proj.weight", (D, W), 0, 0.2
    yield "model.norm.weight", (D,), 1, 0.2
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (V, D), 0, 0.35


def random_weights(c, rng):
    """Eight significant bits and no small exponent: exact in bfloat16 and in float16."""
    weights = {}
    for name, shape, mean, scale in shapes(c):
        mantissa, exponent = np.frexp(mean + scale * rng.standard_normal(shape))
        x = np.ldexp(np.round(mantissa * 256) / 256, exponent)
        weights[name] = np.where(np.abs(x) < 2.0**-12, 0, x).astype(np.float16)
    return weights


def angles(c, positions, dtype=torch.float64, scaled=True):
    """(T, h / 2), in radians; computed in `dtype`."""
    f = c["rope_theta"] ** (-2 * torch.arange(c["head_dim"] // 2).double() / c["head_dim"])
    s = c["rope_scaling"]
    if s and scaled:
        turns = s["original_max_position_embeddings"] * f / (2 * torch.pi)
        keep = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        f = f * (keep.clamp(0, 1) + (1 - keep.clamp(0, 1)) / s["factor"])
    return (positions[:, None].to(dtype) * f.to(dtype)).double()


def rotate(x, angle, pairs):
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
    turned = [a * cos - b * sin, b * cos + a * sin]
    return torch.stack(turned, -1).flatten(-2) if pairs else torch.cat(turned, -1)


def forward(
    w, c, tokens, angle, sees, add=False, pairs=False, kv_order=False, without=(), late=False
):
    """Logits (T, V). sees: (L, T, U) bool. The others are mistakes: add what is seen to the scores;
    rotary pairs; key/value heads; leave out weights with a part of their name; norms of queries and
    keys after the rotation."""
    h, K = c["head_dim"], c["num_key_value_heads"]
    heads = torch.arange(c["num_attention_heads"])
    heads = heads % K if kv_order else heads // (len(heads) // K)
    w = {name: x for name, x in w.items() if not set(without) & set(name.split("."))}

    def norm(x, name):
        rms = (x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"]).sqrt()
        return x / rms * w[name + ".weight"] if name + ".weight" in w else x

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w.get(name + ".bias"))

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        y = norm(x, at + "input_layernorm")
        q, k, v = (linear(y, f"{at}self_attn.{n}_proj").unflatten(-1, (-1, h)) for n in "qkv")
        if not late:
            q, k = norm(q, at + "self_attn.q_norm"), norm(k, at + "self_attn.k_norm")
        q, k = rotate(q, angle, pairs), rotate(k, angle, pairs)
        if late:
            q, k = norm(q, at + "self_attn.q_norm"), norm(k, at + "self_attn.k_norm")
        scores = torch.einsum("thd,uhd->htu", q, k[:, heads]) / h**0.5
        lowest = torch.finfo(x.dtype).min
        scores = scores + sees[i] if add else scores.masked_fill(~sees[i], lowest)
        read = torch.einsum("htu,uhd->thd", scores.softmax(-1), v[:, heads])
        x = x + linear(read.flatten(1), at + "self_attn.o_proj")
        y = norm(x, at + "post_attention_layernorm")
        wide = F.silu(linear(y, at + "mlp.gate_proj")) * linear(y, at + "mlp.up_proj")
        x = x + linear(wide, at + "mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return F.linear(norm(x, "model.norm"), head)


# ---- right: each prompt alone -------------------------------------------------------------------
def in_windows(mask, where, some):
    """(L, T, U): what each layer may see of the mask."""
    back = torch.as_tensor(where)[:, None] - torch.as_tensor(where)
    mask = torch.as_tensor(mask)
    return torch.stack([mask if window is None else mask & (back < window) for window in some])


def right(w, c, d):
    """Logits (T, V) of the row; 0 at padding."""
    found = {}
    for prompt in d["prompts"]:
        path = prompt[prompt >= 0]
        alone = torch.arange(len(path))
        sees = in_windows(alone <= alone[:, None], alone, windows(c))
        logits = forward(w, c, torch.tensor(d["tokens"][path]), angles(c, alone), sees)
        for i, t in enumerate(path.tolist()):
            found.setdefault(t, logits[i])
    padding = torch.zeros(c["vocab_size"]).double()
    return torch.stack([found.get(t, padding) for t in range(len(d["tokens"]))])


def loss_of(logits, d, edges, weights=None):
    """The mean over edges (row, row of the token that it predicts), or the sum with `weights`."""
    at, to = torch.tensor(edges).T
    logprobs = logits.log_softmax(-1)[at].gather(1, torch.tensor(d["tokens"])[to][:, None])[:, 0]
    return -logprobs.mean() if weights is None else -logprobs @ torch.tensor(weights).to(logprobs)


# ---- wrong: the whole row with one known mistake of mistakes.py ----------------------------------
def wrong(w, c, d, change):
    """Logits (T, V) of the whole row with the mistake `change`."""
    change = dict(change)
    where = change.pop("positions", torch.as_tensor(d["positions"]))
    mask, seen_from = change.pop("mask", d["mask"]), change.pop("where", where)
    sees = in_windows(mask, seen_from, change.pop("windows", windows(c)))
    read = change.pop("read", slice(None))
    angle = angles(c, where, change.pop("angles", torch.float64), change.pop("scaled", True))
    return forward(w, c, torch.tensor(d["tokens"]), angle, sees, **change)[read]


# ---- files --------------------------------------------------------------------------------------
def vectors(name, weights, c, row):
    """The tensors of a row's file, and its facts."""
    w = {n: torch.tensor(x).double().requires_grad_() for n, x in weights.items()}
    d = describe(name, row)
    logits = right(w, c, d)
    loss = loss_of(logits, d, d["edges"])
    tensors = {f"row.{n}": x for n, x in d.items()}
    tensors["row.mask_in_window"] = in_windows(d["mask"], d["positions"], windows(c))
    tensors |= {"right.logits": logits, "right.loss": loss}
    with_gradients = name in ("documents", "forest")
    if with_gradients:
        found = torch.autograd.grad(loss, list(w.values()), retain_graph=True)
        tensors |= {f"right.gradients.{n}": x.float() for n, x in zip(w, found, strict=True)}
    known = {}
    for n, (text, change) in mistakes(name, c, d, windows(c)).items():
        found = wrong(w, c, d, change)
        known[n] = (text, found, loss_of(found, d, d["edges"]))
    for n, (text, edges, weighted) in losses(d).items():
        known[n] = (text, logits, loss_of(logits, d, edges, weighted))
    words, invisible, kept = {}, [], {"": (logits, loss)}
    for n, (text, found, its_loss) in known.items():
        same = [m for m, other in kept.items() if alike(other, (found, its_loss), d["real"])]
        if not same:
            kept[n], words[n] = (found, its_loss), text
        elif same[0]:
            words[same[0]] += f"; or: {text}"
        else:
            invisible.append(n)
    del kept[""]
    tensors["wrong.logits"] = torch.stack([x[:, :COLUMNS].float() for x, _ in kept.values()])
    tensors["wrong.loss"] = torch.stack([x for _, x in kept.values()])
    if with_gradients:
        found = [torch.autograd.grad(x, w[PROBE], retain_graph=True)[0] for _, x in kept.values()]
        tensors["wrong.gradients"] = torch.stack(found).float()
    for n, x in tensors.items():
        tensors[n] = torch.as_tensor(x).detach().contiguous().numpy()
    return tensors, {"version": VERSION, "row": name, "words": words, "invisible": invisible}


def alike(one, other, real):
    """Whether two results, logits and a loss, are the same within rounding."""
    logits = (one[0] - other[0])[real].abs().max()
    return max(logits, abs(one[1] - other[1])) < 1e-9


def main(out, *names):
    torch.set_num_threads(1)
    for number, (name, c) in enumerate(MODELS.items()):
        if names and name not in names:
            continue
        folder = Path(out) / name
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([VERSION, number])
        weights = random_weights(c, rng)
        (folder / "config.json").write_text((V1 / name / "config.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(c["vocab_size"])))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        for row_name, row in rows(rng).items():
            tensors, facts = vectors(row_name, weights, c, row)
            facts = json.dumps(dict(facts, model=name))
            save_file(tensors, folder / f"{row_name}.safetensors", {"facts": facts})
    write_sums(Path(out), "*/*")


if __name__ == "__main__":
    main(*sys.argv[1:])
