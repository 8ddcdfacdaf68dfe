"""A second implementation of RoToR and PINE: one reader and one head at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from minise import LanguageModel, Question
from minise.rope import cos_sin, rotate

# (token t, owners, q (T, h) and k (T, h) of one head, both unrotated) -> the choices, nearest first
Nearest = Callable[[int, list[int], Tensor, Tensor], list[int]]


def text_log_probability(
    lm: LanguageModel, question: Question, choice: str, nearest: Nearest, lines: list[str]
) -> float:
    """The log-probability of a choice's text after the cue. `lines`: the choices as laid out."""

    def ids(text: str) -> list[int]:  # without the beginning token
        return lm.tokenizer.encode([text])[0][len(lm.tokenizer.encode([""])[0]) :]

    start, answer = lm.tokenizer.encode([f"{question.text}\n"])[0], ids(f" {choice}")
    parts = [start, *(ids(f"{line}\n") for line in lines), ids("Answer:") + answer]
    tokens = [token for part in parts for token in part]
    owner = [number - 1 for number, part in enumerate(parts) for _ in part]
    hidden = hidden_states(lm, tokens, owner, [len(part) for part in parts[1:-1]], nearest)
    log_p = lm.decoder.logits(hidden).log_softmax(dim=-1)
    T = len(tokens)
    return sum(float(log_p[T - len(answer) + k - 1, token]) for k, token in enumerate(answer))


@torch.no_grad()
def hidden_states(
    lm: LanguageModel, tokens: list[int], owner: list[int], lengths: list[int], nearest: Nearest
) -> Tensor:
    """(T, D). owner: -1 in the question, then the number of the choice, C in the cue and after."""
    model, config = lm.decoder.model, lm.config
    x = model.embed_tokens(torch.tensor(tokens))
    cos, sin = cos_sin(config, torch.arange(len(tokens)), x.dtype)
    for number, layer in enumerate(model.layers):
        normed, attention = layer.input_layernorm(x), layer.self_attn
        q, k, v = (
            projection(normed).unflatten(-1, (-1, config.head_dim))
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = attention.q_norm(q), attention.k_norm(k)
        out = torch.zeros_like(q)
        group = q.shape[1] // k.shape[1]
        window = config.sliding_windows[number]
        for head in range(q.shape[1]):
            qh, kh, vh = q[:, head], k[:, head // group], v[:, head // group]
            for t in range(len(tokens)):
                order = nearest(t, owner, qh, kh) if owner[t] >= 0 else []
                at = key_positions(owner, lengths, order)
                seen = [
                    u
                    for u in range(len(tokens))
                    if (u <= t or -1 < owner[t] < owner[u] < len(lengths))
                    and (window is None or at[t] - at[u] < window)
                ]
                where = [at[t], *(at[u] for u in seen)]
                turned = rotate(torch.cat([qh[t][None], kh[seen]]), cos[where], sin[where])
                weights = (turned[1:] @ turned[0] / math.sqrt(config.head_dim)).softmax(dim=-1)
                out[t, head] = weights @ vh[seen]
        x = x + attention.o_proj(out.flatten(-2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.norm(x)


def key_positions(owner: list[int], lengths: list[int], nearest: list[int]) -> list[int]:
    """Each token's position for a reader that has the choices in this order, nearest first."""
    question = owner.count(-1)
    end = question + sum(lengths)
    begins = {}
    for choice in nearest:
        end -= lengths[choice]
        begins[choice] = end
    begins[len(lengths)] = question + sum(lengths)
    begins[-1] = 0
    at, passed = [], dict.fromkeys(range(-1, len(lengths) + 1), 0)
    for one in owner:
        at.append(begins.get(one, -1) + passed[one])
        passed[one] += 1
    return at
