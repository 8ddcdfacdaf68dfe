"""Self-Ensemble in one file: what minise computes, with nothing that makes it fast or safe.

    python minise/definition.py weights/tiny-llama      asks the README's question

This is the definition, and the rest of minise is held against it. Read it beside the paper (arXiv
2506.01951), whose sections and equations are named at each step; docs/paper.md has its misprints.

A question with K choices becomes many short prompts: N times its choices are shuffled and cut into
groups of m. Each group, with "None of the above", is a prompt after the same question. All prompts
run in one sequence [Q, G1, G2, ...]: a token sees the question and its own group (the mask), and
its position is that in its own prompt (the positions). So one pass equals many.

Left out: every check of what is given, every saving of time and memory (attention makes T x T
scores for each head at once: for short prompts only), weights in several files, other templates.

T tokens, D hidden_size, H query heads, h numbers of a head, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file
from torch import Tensor

LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NULL_OPTION = "None of the above"


# ---- Self-Ensemble, in the paper's order ---------------------------------------------------------


def draw_groups(K: int, m: int, N: int, key: str) -> list[list[int]]:
    """Section 3.2, step 1: N times the K choices in a random order, cut into groups of m. They are
    sorted by a hash: the same order on every machine."""
    groups = []
    for trial in range(N):
        drawn = [hashlib.sha256(f"{key}/{trial}/{i}".encode()).digest() for i in range(K)]
        order = sorted(range(K), key=drawn.__getitem__)
        groups += [order[start : start + m] for start in range(0, K, m)]
    return groups


def write_prompt(question: str, choices: Sequence[str]) -> str:
    """Section 3.2, step 2 (Eq. 1): the question, its choices by letter, and the answer's cue."""
    lines = [f"({label}) {choice}\n" for label, choice in zip(LABELS, choices, strict=False)]
    return f"{question}\n{''.join(lines)}Answer:"


def pack(trunk: list[int], branches: list[list[int]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Section 4: the sequence [Q, G1, G2, ...], its positions (T,), its mask (T, T), and the last
    row of each branch (G,)."""
    tokens = list(trunk)
    positions = list(range(len(trunk)))
    owners = [0] * len(trunk)  # 0: the question; 1, 2, ...: the group that the token is of
    ends = []
    for number, branch in enumerate(branches, start=1):
        tokens += branch
        # Section 4.2, the position list (Eq. 5): each group begins right after the question.
        positions += range(len(trunk), len(trunk) + len(branch))
        owners += [number] * len(branch)
        ends.append(len(tokens) - 1)
    # Section 4.1, the mask (Eq. 3): a token sees the question and its own group, up to itself.
    owner = torch.tensor(owners)
    mask = ((owner == 0) | (owner == owner[:, None])).tril()
    return torch.tensor(tokens), torch.tensor(positions), mask, torch.tensor(ends)


def ask(model: Model, question: str, lists: Sequence[Sequence[str]]) -> list[Tensor]:
    """A prompt for each list of choices, all in one pass: the probabilities of its labels."""
    texts = [write_prompt(question, choices) for choices in lists]
    prompts = [model.ids(text) for text in texts]
    trunk = model.ids(f"{question}\n")
    while any(ids[: len(trunk)] != trunk for ids in prompts):  # a token may span the question's end
        trunk.pop()
    tokens, positions, mask, ends = pack(trunk, [ids[len(trunk) :] for ids in prompts])
    logits = model.decoder.logits(tokens, positions, mask)[ends]
    probabilities = []
    for choices, text, logits_V in zip(lists, texts, logits, strict=True):
        # Section 4.3, the readout (Eq. 6): softmax over the labels. " A" is one more token.
        labels = [model.ids(f"{text} {label}")[-1] for label in LABELS[: len(choices)]]
        probabilities.append(logits_V[labels].softmax(dim=-1))
    return probabilities


def self_ensemble(
    model: Model, question: str, choices: Sequence[str], m: int, N: int, key: str
) -> list[list[float]]:
    """For each choice its probabilities, one from each group that lists it; then those of the null
    option. Section 3.2, step 3, the mean (Eq. 2): it is the score of the choice, Pr(op_i)."""
    groups = draw_groups(len(choices), m, N, key)
    lists = [[*(choices[i] for i in group), NULL_OPTION] for group in groups]
    found: list[list[float]] = [[] for _ in [*choices, NULL_OPTION]]
    for group, probabilities in zip(groups, ask(model, question, lists), strict=True):
        for place, choice in enumerate([*group, len(choices)]):
            found[choice].append(float(probabilities[place]))
    return found


# ---- The decoder: LLaMA, Mistral, Qwen2, Qwen3 ---------------------------------------------------


class Decoder:
    """config: what config.json holds. weights: tensors by their names in model.safetensors. A part
    is called with its module's name there, such as "model.layers.0.mlp.up_proj"."""

    def __init__(self, config: dict[str, Any], weights: Mapping[str, Tensor]) -> None:
        self.config, self.weights = config, weights
        self.layers = config["num_hidden_layers"]
        wide = config["hidden_size"] // config["num_attention_heads"]
        self.head_dim = config.get("head_dim") or (128 if config["model_type"] == "qwen3" else wide)

    def logits(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """(T, V), of tokens (T,) at positions (T,). mask: (T, T), True = the row's token sees the
        column's."""
        x = self.embed(tokens)
        for layer in range(self.layers):
            x = self.layer(layer, x, positions, mask)
        return self.read_out(x)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.weights["model.embed_tokens.weight"][tokens]  # (T, D)

    def layer(self, layer: int, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """To each token's x (T, D) is added what it reads from others, then what its MLP gives."""
        name = f"model.layers.{layer}"
        mask = self.within_window(mask, positions, layer)
        normed = self.norm(f"{name}.input_layernorm", x)
        x = x + self.attention(f"{name}.self_attn", normed, positions, mask)
        normed = self.norm(f"{name}.post_attention_layernorm", x)
        return x + self.mlp(f"{name}.mlp", normed)

    def read_out(self, x: Tensor) -> Tensor:
        x = self.norm("model.norm", x)
        embedding = self.weights["model.embed_tokens.weight"]
        return x @ self.weights.get("lm_head.weight", embedding).T  # without one, it is tied

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm: x divided by the root of its mean square, times a weight."""
        mean_square = x.square().mean(dim=-1, keepdim=True)
        size = (mean_square + self.config.get("rms_norm_eps", 1e-6)).sqrt()
        return x / size * self.weights[f"{name}.weight"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights.get(f"{name}.bias", 0)  # Qwen2 has one for queries, keys, values

    def mlp(self, name: str, x: Tensor) -> Tensor:
        gate = self.linear(f"{name}.gate_proj", x)
        up = self.linear(f"{name}.up_proj", x)
        return self.linear(f"{name}.down_proj", gate * gate.sigmoid() * up)

    def attention(self, name: str, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        q = self.rotate(self.heads(f"{name}.q", x), positions)  # (T, H, h)
        k = self.rotate(self.heads(f"{name}.k", x), positions)  # (T, fewer heads, h)
        v = self.heads(f"{name}.v", x)
        return self.linear(f"{name}.o_proj", self.read(name, q, k, v, mask).flatten(1))

    def heads(self, name: str, x: Tensor) -> Tensor:
        x = self.linear(f"{name}_proj", x).unflatten(-1, (-1, self.head_dim))
        if f"{name}_norm.weight" in self.weights:  # Qwen3 norms queries and keys
            x = self.norm(f"{name}_norm", x)
        return x

    def read(self, name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(h)) v over what the mask shows: (T, H, h)."""
        shared = q.shape[1] // k.shape[1]  # so many query heads in a row share a key and value head
        k = k.repeat_interleave(shared, dim=1)
        v = v.repeat_interleave(shared, dim=1)
        scores = torch.einsum("thi,uhi->htu", q, k) / self.head_dim**0.5
        shares = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return torch.einsum("htu,uhi->thi", shares, v)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding. Numbers i and i + h / 2 of a head turn by an angle that grows with the
        position, so that q k^T depends on the distance of two positions alone."""
        angle = positions[:, None, None] * self.frequencies().to(x.device)  # (T, 1, h / 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def frequencies(self) -> Tensor:
        """Radians per position, one for each pair: (h / 2,). Config files spell it in two ways."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        theta = rope.get("rope_theta") or self.config.get("rope_theta") or 10000.0
        frequency = theta ** (-torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        kind = rope.get("rope_type", rope.get("type"))
        if kind == "linear":
            frequency = frequency / rope["factor"]
        if kind == "llama3":  # slow pairs turn slower by the factor, with a ramp
            turns = frequency * rope["original_max_position_embeddings"] / (2 * torch.pi)
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            frequency = frequency * (kept + (1 - kept) / rope["factor"])
        return frequency

    def within_window(self, mask: Tensor, positions: Tensor, layer: int) -> Tensor:
        """The mask without what lies a sliding window or more back. Positions count, not rows."""
        config = self.config
        window = config.get("sliding_window", 4096)
        has_window = config["model_type"] == "mistral"  # in all layers
        if config.get("use_sliding_window"):  # Qwen: from a layer on, or in those that are named
            has_window = layer >= config.get("max_window_layers", 28)
            if config.get("layer_types"):
                has_window = config["layer_types"][layer] == "sliding_attention"
        if not has_window or window is None:
            return mask
        return mask & (positions[:, None] - positions < window)


# ---- A checkpoint, and the README's question -----------------------------------------------------


class Model:
    """A folder with config.json, tokenizer.json and model.safetensors, in float64."""

    def __init__(self, folder: str) -> None:
        config = json.loads(Path(folder, "config.json").read_text())
        stored = load_file(Path(folder, "model.safetensors"))
        self.decoder = Decoder(config, {name: x.double() for name, x in stored.items()})
        self.tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder, "tokenizer.json")))

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text).ids)


def main(folder: str) -> None:
    model = Model(folder)
    question = "What is the capital of Canada?"
    choices = ["New Delhi", "Riyadh", "Ottawa", "Kingston", "Baghdad", "Athens", "Tokyo", "Nairobi"]
    [standard] = ask(model, question, [choices])  # standard inference: one prompt with all choices
    found = self_ensemble(model, question, choices, m=4, N=20, key="0/miniature-0-3")
    print(f"{question}\n{'':20}standard inference   Self-Ensemble: score and standard error")
    for choice, alone, listed in zip(choices, standard.tolist(), found, strict=False):
        error = stdev(listed) / len(listed) ** 0.5
        print(f"{choice:20}{alone:18.1%}{mean(listed):23.1%}{100 * error:6.1f}")
    print(f"{NULL_OPTION:20}{mean(found[-1]):41.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
