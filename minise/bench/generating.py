"""Time writing: one prompt, and the branches of a question over their shared trunk."""

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

Way = Callable[[], list[list[int]]]


@dataclass(frozen=True)
class Written:
    """One way of writing on after the prompts. seconds: the median of the rounds. new_tokens: of
    all prompts together. peak_bytes: the peak of memory above what was held before; None where the
    system does not say. differing: how many of the new tokens are not those of minise."""

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
    """Greedy text of NEW_TOKENS tokens after the first prompt of a question alone, and after all of
    them, by minise and by the reference library with its cache. Each way runs `rounds` times in
    turn, after one run that warms up."""
    prefix, branches, _ = workload.prompts(lm.config.vocab_size, seed)
    prompts = [[*prefix, *branch] for branch in branches]
    plain = with_peers and format_of(lm.decoder) is None
    model = library_model(lm.decoder) if plain else None
    ways: dict[str, tuple[Way, list[list[int]]]] = {}
    for what, asked in {"one prompt": prompts[:1], "all prompts": prompts}.items():
        ways[f"{what}: minise"] = partial(_ours, lm, asked), asked
        if model is not None:
            one = "library, one by one" if len(asked) > 1 else "library"
            ways[f"{what}: {one}"] = partial(_one_by_one, model, asked), asked
            if len(asked) > 1:
                ways[f"{what}: library, padded batch"] = partial(_batch, model, asked), asked
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts, peaks = {}, {}
    for name, (way, _) in ways.items():
        peaks[name], texts[name] = peak_bytes(way, lm.decoder.device)
    for _ in tqdm(range(rounds), desc="rounds", disable=None, leave=False):
        for name, (way, _) in ways.items():
            seconds[name].append(timed(way, lm.decoder.device))
    return [
        Written(
            name,
            len(asked),
            sum(map(len, texts[name])),
            statistics.median(seconds[name]),
            peaks[name],
            _differing(texts[name], texts[f"{name.partition(':')[0]}: minise"]),
        )
        for name, (_, asked) in ways.items()
    ]


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


def _ours(lm: LanguageModel, prompts: list[list[int]]) -> list[list[int]]:
    return [made.tokens for made in generate(lm, prompts, NEW_TOKENS, stop=[])]


def _one_by_one(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    return [_batch(model, [prompt])[0] for prompt in prompts]


def _batch(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The library's `generate`, the prompts padded on the left."""
    device = model.model.embed_tokens.weight.device
    width = max(map(len, prompts))
    rows = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    kept = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    made: Tensor = model.generate(
        torch.tensor(rows, device=device),
        attention_mask=torch.tensor(kept, device=device),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=0,
    )
    return [row[width:] for row in made.tolist()]


def _differing(texts: list[list[int]], expected: list[list[int]]) -> int:
    pairs = zip(texts, expected, strict=True)
    return sum(a != b for text, same in pairs for a, b in zip(text, same, strict=True))
