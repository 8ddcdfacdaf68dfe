"""Write the rows through recurrent layers: python make_hybrids.py FOLDER. Needs numpy, safetensors.

The models are the folders of v2/ with a config.json. Right is each prompt alone, in float64; wrong
is the whole row with one known mistake, of states, convolutions, both, or attention.
"""

import json
import sys
from pathlib import Path

import numpy as np
from hybrid_mistakes import mistakes
from hybrids import Ways, logits
from layouts import PAD, describe, grow, rows, tokenizer, write_sums
from make_operators import exact
from safetensors.numpy import save_file

VERSION, COLUMNS = 2, 4  # of the format; of the vocabulary, kept of a wrong run
V2 = Path(__file__).parent / f"v{VERSION}"
MODELS = {
    path.parent.name: json.loads(path.read_text()) for path in sorted(V2.glob("*/config.json"))
}
SLOW = -4.0  # the mean A_log of the first head: its state fades by about exp(-0.01) a token


# ---- weights ------------------------------------------------------------------------------------
def shapes(c):
    """Name, shape, mean and scale of each weight."""
    D, V, W = c["hidden_size"], c["vocab_size"], c["intermediate_size"]
    yield "lm_head.weight", (V, D), 0, 0.35
    yield from of_qwen3_5(c, D, V, W) if "layer_types" in c else of_nemotron_h(c, D, V, W)


def of_qwen3_5(c, D, V, W):
    heads, k = c["linear_num_value_heads"], c["linear_num_key_heads"] * c["linear_key_head_dim"]
    v, h = heads * c["linear_value_head_dim"], c["head_dim"]
    q, kv = c["num_attention_heads"] * h, c["num_key_value_heads"] * h
    yield "model.embed_tokens.weight", (V, D), 0, 0.5
    yield "model.norm.weight", (D,), 0, 0.2
    for i, kind in enumerate(c["layer_types"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (D,), 0, 0.2
        yield at + "post_attention_layernorm.weight", (D,), 0, 0.2
        for name, shape in ("gate", (W, D)), ("up", (W, D)), ("down", (D, W)):
            yield f"{at}mlp.{name}_proj.weight", shape, 0, 0.15
        if kind == "linear_attention":
            at += "linear_attn."
            yield at + "in_proj_qkv.weight", (2 * k + v, D), 0, 0.3
            yield at + "in_proj_z.weight", (v, D), 0, 0.2
            yield at + "in_proj_b.weight", (heads, D), 0, 0.2
            yield at + "in_proj_a.weight", (heads, D), 0, 0.2
            yield at + "conv1d.weight", (2 * k + v, 1, c["linear_conv_kernel_dim"]), 0, 0.5
            yield at + "dt_bias", (heads,), 0, 0.5
            yield at + "A_log", (heads,), SLOW, 0.5
            yield at + "norm.weight", (c["linear_value_head_dim"],), 1, 0.2
            yield at + "out_proj.weight", (D, v), 0, 0.2
        else:
            at += "self_attn."
            yield at + "q_proj.weight", (2 * q, D), 0, 0.3
            yield at + "k_proj.weight", (kv, D), 0, 0.3
            yield at + "v_proj.weight", (kv, D), 0, 0.3
            yield at + "o_proj.weight", (D, q), 0, 0.3
            yield at + "q_norm.weight", (h,), 0.3, 0.3
            yield at + "k_norm.weight", (h,), 0.3, 0.3


def of_nemotron_h(c, D, V, W):
    heads, size = c["mamba_num_heads"], c["mamba_num_heads"] * c["mamba_head_dim"]
    mixed = size + 2 * c["n_groups"] * c["ssm_state_size"]
    q, kv = (c[n] * c["head_dim"] for n in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embeddings.weight", (V, D), 0, 0.5
    yield "model.norm_f.weight", (D,), 1, 0.2
    for i, kind in enumerate(c["layers_block_type"]):
        yield f"model.layers.{i}.norm.weight", (D,), 1, 0.2
        at = f"model.layers.{i}.mixer."
        if kind == "linear_attention":
            yield at + "in_proj.weight", (size + mixed + heads, D), 0, 0.3
            yield at + "conv1d.weight", (mixed, 1, c["conv_kernel"]), 0, 0.5
            yield at + "conv1d.bias", (mixed,), 0, 0.2
            yield at + "dt_bias", (heads,), 0, 0.5
            yield at + "A_log", (heads,), SLOW, 0.5
            yield at + "D", (heads,), 1, 0.3
            yield at + "norm.weight", (size,), 1, 0.2
            yield at + "out_proj.weight", (D, size), 0, 0.3
        elif kind == "full_attention":
            for name, shape in ("q", (q, D)), ("k", (kv, D)), ("v", (kv, D)), ("o", (D, q)):
                yield f"{at}{name}_proj.weight", shape, 0, 0.35
        else:
            yield at + "up_proj.weight", (W, D), 0, 0.2
            yield at + "down_proj.weight", (D, W), 0, 0.2


def alike_queries(weights, c, rng):
    """Let what reads a state be like what wrote it. A token that reads next to nothing is normed up
    to full size, and bfloat16's rounding with it: no tolerance would tell that from a mistake."""
    if c["model_type"] == "nemotron_h":
        size, state = (
            c["mamba_num_heads"] * c["mamba_head_dim"],
            c["n_groups"] * c["ssm_state_size"],
        )
        read, written, before = size + state, size, size  # C, B, and the gate before both
        name = "in_proj.weight"
    else:
        state = c["linear_num_key_heads"] * c["linear_key_head_dim"]
        read, written, before, name = 0, state, 0, "in_proj_qkv.weight"
    for n, x in weights.items():
        at = {name: before, "conv1d.weight": 0, "conv1d.bias": 0}.get(".".join(n.split(".")[-2:]))
        if at is not None:
            like = x[at + written : at + written + state].astype(float)
            noise = 0.1 * np.std(like) * rng.standard_normal(like.shape)
            x[at + read : at + read + state] = exact(like + noise)


# ---- rows ---------------------------------------------------------------------------------------
def some_rows(rng):
    """Name -> row, and the width of a padded batch or None."""
    every = rows(rng)
    for name in ("documents", "branches", "breadth_first", "forest"):
        yield name, every[name], None
    for side in ("left", "right"):
        row, width = [], 12
        for length in 12, 1, 8:
            padding = [(PAD, -1)] * (width - length)
            row += padding if side == "left" else []
            grow(row, (1 + rng.permutation(63)[:length]).tolist())
            row += padding if side == "right" else []
        yield f"padded_{side}", row, width
    yield "cached", rolled_back(rng), None


def rolled_back(rng):
    """A prompt of 9 tokens, a draft of 4, of which 2 are kept, and 8 that go on."""
    tokens = (1 + rng.permutation(63)[:21]).tolist()
    row = []
    kept = grow(row, tokens[:11])
    grow(row, tokens[11:13], kept)
    grow(row, tokens[13:], kept)
    return row


def described(name, row, width):
    d = describe(name, row)
    if width:
        d["width"] = np.array(width)
        if name == "padded_right":
            d["lengths"] = d["real"].reshape(-1, width).sum(1)
    if name == "cached":  # the draft is run, too
        d["cached"] = np.array(13)
    return d


def right(weights, c, d):
    """Logits (T, V): each prompt alone; 0 at padding."""
    out = np.zeros((len(d["tokens"]), c["vocab_size"]))
    for prompt in d["prompts"]:
        path = prompt[prompt >= 0]
        alone = np.arange(len(path))
        ways = Ways(alone <= alone[:, None], alone, alone - 1, alone - 1)
        out[path] = logits(weights, c, d["tokens"][path], ways)
    return out


def loss_of(found, d):
    """The mean over the edges (a token, and the one that it predicts)."""
    at, to = d["edges"].T
    shifted = found - found.max(-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -logprobs[at, d["tokens"][to]].mean()


def vectors(name, weights, c, d):
    """The tensors of a row's file, and its facts."""
    good = right(weights, c, d)
    known, words, invisible = {"": good}, {}, []
    for n, (text, ways) in mistakes(name, d).items():
        found = logits(weights, c, d["tokens"], ways)
        same = [m for m, x in known.items() if np.abs((x - found)[d["real"]]).max() < 1e-9]
        if not same:
            known[n], words[n] = found, text
        elif same[0]:
            words[same[0]] += f"; or: {text}"
        else:
            invisible.append(n)
    del known[""]
    tensors = {f"row.{n}": x for n, x in d.items() if n != "until"}
    tensors["right.logits"] = good.astype(np.float32)
    tensors["right.loss"] = np.array(loss_of(good, d))
    tensors["wrong.logits"] = np.stack([x[:, :COLUMNS] for x in known.values()]).astype(np.float32)
    tensors["wrong.loss"] = np.array([loss_of(x, d) for x in known.values()])
    facts = {"version": VERSION, "row": name, "words": words, "invisible": invisible}
    return {n: np.array(x, order="C") for n, x in tensors.items()}, facts


def main(out):
    out = Path(out)
    for number, (model, c) in enumerate(MODELS.items()):
        folder = out / model
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([VERSION, 100 + number])
        weights = {}
        for name, shape, mean, scale in shapes(c):
            weights[name] = exact(mean + scale * rng.standard_normal(shape))
            if name.endswith("A_log"):  # from a slow head to a fast one
                weights[name] = exact(weights[name] + np.arange(shape[0]))
        alike_queries(weights, c, rng)
        (folder / "config.json").write_text((V2 / model / "config.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(c["vocab_size"])))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        for name, row, width in some_rows(rng):
            tensors, facts = vectors(name, weights, c, described(name, row, width))
            facts = json.dumps(dict(facts, model=model))
            save_file(tensors, folder / f"{name}.safetensors", {"facts": facts})
    write_sums(out, "*/*.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
