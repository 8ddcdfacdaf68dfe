"""Time the generation of text: after one prompt, and after all prompts of a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minise.bench.measure import time_in_turn
from minise.bench.peers import library_model
from minise.bench.workloads import Workload
from minise.engines import LanguageModel
from minise.exact import machine
from minise.loading.quantize import format_of
from minise.writing.generation import generate

NEW_TOKENS = 64  # for each prompt

Texts = list[list[int]]  # the new tokens of each prompt


@dataclass(frozen=True)
class Written:
    """One way of generating text after the prompts. seconds: the median of the rounds. new_tokens:
    of all prompts together. peak_bytes: the peak of memory above what was in use before; None if
    the system does not say. differing: how many of the new tokens are not those of minise."""

    name: str
    prompts: int
    new_tokens: int
    seconds: float
    peak_bytes: int | None
    differing: int


@torch.inference_mode()
def time_generation(
    lm: LanguageModel, workload: Workload, rounds: int, seed: int, with_peers: bool = True
) -> list[Written]:
    """Generate NEW_TOKENS tokens greedily after the first prompt of a question alone, and after all
    of its prompts, by minise and by the reference library with its cache. Each way runs `rounds`
    times in turn, after one run that warms up."""
    prefix, branches, _ = workload.prompts(lm.config.vocab_size, seed)
    prompts = [[*prefix, *branch] for branch in branches]
    shared = with_peers and format_of(lm.decoder) is None
    model = library_model(lm.decoder) if shared else None
    rows = []
    for what, some in {"one prompt": prompts[:1], "all prompts": prompts}.items():
        measured = time_in_turn(_ways(lm, model, some), rounds, lm.decoder.device)
        for name, one in measured.items():
            tokens = sum(map(len, one.result))
            differing = _differing(one.result, measured["minise"].result)
            row = (len(some), tokens, one.seconds, one.peak_bytes, differing)
            rows.append(Written(f"{what}: {name}", *row))
    return rows


def _ways(
    lm: LanguageModel, model: Any | None, prompts: list[list[int]]
) -> dict[str, Callable[[], Texts]]:
    """The ways to generate after prompts: minise, and the library's model if there is one."""
    ways: dict[str, Callable[[], Texts]] = {"minise": partial(_ours, lm, prompts)}
    if model is not None and len(prompts) == 1:
        ways["library"] = partial(_batch, model, prompts)
    elif model is not None:
        ways["library, one by one"] = partial(_one_by_one, model, prompts)
        ways["library, padded batch"] = partial(_batch, model, prompts)
    return ways


def as_text(rows: Sequence[Written]) -> str:
    """A table."""
    heads = ("new tokens", "seconds", "tokens/s", "peak MiB", "other tokens")
    lines = [
        machine.in_words(),
        f"{NEW_TOKENS} new tokens for each prompt",
        "",
        f"{'':38}" + "".join(f"{head:>13}" for head in heads),
    ]
    for row in rows:
        peak = "?" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}"
        lines.append(
            f"{row.name:38}{row.new_tokens:13,}{row.seconds:13.3f}"
            f"{row.new_tokens / row.seconds:13.1f}{peak:>13}{row.differing:13,}"
        )
    return "\n".join(lines)


def _ours(lm: LanguageModel, prompts: list[list[int]]) -> Texts:
    return [generation.tokens for generation in generate(lm, prompts, NEW_TOKENS, stop=[])]


def _one_by_one(model: Any, prompts: list[list[int]]) -> Texts:
    return [_batch(model, [prompt])[0] for prompt in prompts]


def _batch(model: Any, prompts: list[list[int]]) -> Texts:
    """The library's `generate`, the prompts padded on the left."""
    device = model.model.embed_tokens.weight.device
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    real = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    output: Tensor = model.generate(
        torch.tensor(ids, device=device),
        attention_mask=torch.tensor(real, device=device),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    return [row[width:] for row in output.tolist()]


def _differing(texts: Texts, expected: Texts) -> int:
    """How many tokens are not the expected ones."""
    different = 0
    for text, right in zip(texts, expected, strict=True):
        different += sum(a != b for a, b in zip(text, right, strict=True))
    return different
