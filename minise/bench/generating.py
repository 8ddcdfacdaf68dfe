"""Time the generation of text: after one prompt, and after all prompts of a question."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from minise.bench.peers import library_model
from minise.bench.workloads import Workload
from minise.engines import LanguageModel
from minise.evaluation.meter import peak_bytes, timed
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


@dataclass(frozen=True)
class _Way:
    """run: generates after the `prompts`. expected: the name of the way that it must equal."""

    prompts: list[list[int]]
    run: Callable[[], Texts]
    expected: str


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
    ways = _ways(lm, model, "one prompt", prompts[:1]) | _ways(lm, model, "all prompts", prompts)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts, peaks = {}, {}
    for name, way in ways.items():
        peaks[name], texts[name] = peak_bytes(way.run, lm.decoder.device)
    for _ in tqdm(range(rounds), desc="rounds", disable=None, leave=False):
        for name, way in ways.items():
            seconds[name].append(timed(way.run, lm.decoder.device))
    rows = []
    for name, way in ways.items():
        tokens = sum(map(len, texts[name]))
        median = statistics.median(seconds[name])
        differing = _differing(texts[name], texts[way.expected])
        rows.append(Written(name, len(way.prompts), tokens, median, peaks[name], differing))
    return rows


def _ways(
    lm: LanguageModel, model: Any | None, what: str, prompts: list[list[int]]
) -> dict[str, _Way]:
    """minise, and the library's model if there is one, by name."""
    ours = f"{what}: minise"
    ways = {ours: _Way(prompts, partial(_ours, lm, prompts), ours)}
    if model is None:
        return ways
    several = len(prompts) > 1
    name = f"{what}: library, one by one" if several else f"{what}: library"
    ways[name] = _Way(prompts, partial(_one_by_one, model, prompts), ours)
    if several:
        name = f"{what}: library, padded batch"
        ways[name] = _Way(prompts, partial(_batch, model, prompts), ours)
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
