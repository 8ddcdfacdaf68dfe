"""Time the engines and the peers on the same prompts and weights, alternating, in one process."""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import tokenizers
import torch
from torch import Tensor, nn
from tqdm import tqdm

from minise.bench.peers import library_model, peers
from minise.checkpoint import LanguageModel
from minise.config import Config
from minise.ensemble import ENGINES, branch_logits
from minise.grouping import make_groups
from minise.layout import token_counts
from minise.model import Decoder
from minise.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True)
class Workload:
    """Prompts by their lengths alone, in tokens: the question, each choice after its label, the
    null option after its label, the answer cue. `choices` is K, `group_size` m, `trials` N."""

    choices: int
    group_size: int
    trials: int
    trunk: int
    choice: int
    null: int = 7
    cue: int = 3

    def prompts(self, vocabulary: int, seed: int) -> tuple[list[int], list[list[int]], list[int]]:
        """Prefix, branches and label ids: random ids, the same text wherever the same choice is."""
        draw = random.Random(f"bench/{seed}")
        labels = draw.sample(range(vocabulary), self.group_size + 1)

        def text(length: int) -> list[int]:
            return [int(draw.random() * vocabulary) for _ in range(length)]

        prefix, null, cue = text(self.trunk), text(self.null), text(self.cue)
        choices = [text(self.choice) for _ in range(self.choices)]
        branches = []
        for group in make_groups(self.choices, self.group_size, self.trials, seed, "bench"):
            listed = [*(choices[i] for i in group), null]
            lines = [[label, *line] for label, line in zip(labels, listed, strict=False)]
            branches.append([token for line in lines for token in line] + cue)
        return prefix, branches, labels


WORKLOADS = {
    "qasc": Workload(choices=8, group_size=4, trials=20, trunk=22, choice=6),
    "biology": Workload(choices=10, group_size=5, trials=40, trunk=60, choice=18),
    # As long as the longest real questions of the kind: some 20,000 packed tokens.
    "longest": Workload(choices=10, group_size=5, trials=40, trunk=200, choice=48),
}


@dataclass(frozen=True)
class Row:
    """One way of running the prompts: median seconds, tokens run (padding included), peak bytes
    above what was held before (None where it cannot be measured), and the largest difference of a
    label logit from the separate runs."""

    name: str
    seconds: float
    tokens: int
    peak_bytes: int | None
    max_difference: float


@dataclass(frozen=True)
class Report:
    """`floor_seconds`: the floating-point operations of the linear layers on the tree's distinct
    tokens, at the matrix-product rate measured in the same run at the model's own shapes."""

    floor_seconds: float
    rows: list[Row]

    def as_text(self) -> str:
        """A table; times also as multiples of the tree engine's."""
        tree = next(row for row in self.rows if row.name == "tree")
        lines = [
            f"torch {torch.__version__}, {torch.get_num_threads()} threads",
            "",
            f"{'':38}{'seconds':>9}{'/ tree':>8}{'tokens':>9}{'peak MiB':>10}{'max diff':>10}",
        ]
        for row in self.rows:
            peak = "?" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}"
            lines.append(
                f"{row.name:38}{row.seconds:9.3f}{row.seconds / tree.seconds:8.2f}{row.tokens:9,}"
                f"{peak:>10}{row.max_difference:10.1e}"
            )
        rate = self.floor_seconds / tree.seconds
        lines += [
            f"{'floor: linear layers on the tree':38}{self.floor_seconds:9.3f}{rate:8.2f}"
            f"{tree.tokens:9,}",
            "",
            "/ tree: multiples of the tree engine's time; for the floor, the share of its rate.",
            "peak: memory above the weights. max diff: of a label logit, from the separate runs.",
        ]
        if not any(row.name.startswith("library") for row in self.rows):
            lines.append("No peers: the reference library is not installed, or was left out.")
        return "\n".join(lines)


def random_model(raw: dict[str, object], dtype: torch.dtype, device: torch.device) -> LanguageModel:
    """A model of random weights, made where it will run: no file, and no copy on the way."""
    config = Config.from_dict(raw)
    with torch.device("meta"):
        decoder = Decoder(config).to(dtype)
    decoder.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    for parameter in decoder.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.02, generator=generator)
        else:
            nn.init.ones_(parameter)
    unused = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()), "none: prompts are ids")
    return LanguageModel("random weights", config, decoder.requires_grad_(False).eval(), unused)


@torch.inference_mode()
def measure(
    lm: LanguageModel, workload: Workload, rounds: int, seed: int, with_peers: bool = True
) -> Report:
    """Run every way `rounds` times in turn, after one run that warms up and checks the numbers."""
    prefix, branches, labels = workload.prompts(lm.config.vocab_size, seed)
    weight = lm.decoder.model.embed_tokens.weight
    columns = torch.tensor(labels, device=weight.device)
    counts = token_counts(prefix, branches)
    ways: dict[str, tuple[Callable[[], Tensor], int]] = {
        engine: (partial(branch_logits, lm, prefix, branches, engine, labels), counts[engine])
        for engine in ENGINES
    }
    model = library_model(lm.decoder) if with_peers else None
    if model is not None:
        ways |= peers(model, prefix, branches, columns)

    expected = ways["separate"][0]().double()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, int | None] = {}
    differences: dict[str, float] = {}
    for name, (way, _) in ways.items():
        peaks[name], logits = peak_bytes(way, weight.device)
        differences[name] = float((logits.double() - expected).abs().max())
    floors = []
    for _ in tqdm(range(rounds), desc="rounds", disable=None, leave=False):
        floors.append(floor_seconds(lm, counts["tree"]))
        for name, (way, _) in ways.items():
            seconds[name].append(timed(way, weight.device))
    rows = [
        Row(name, statistics.median(seconds[name]), tokens, peaks[name], differences[name])
        for name, (_, tokens) in ways.items()
    ]
    return Report(statistics.median(floors), rows)


@torch.inference_mode()
def engine_seconds(
    lm: LanguageModel, engine: str, prefix: list[int], branches: list[list[int]], labels: list[int]
) -> float:
    """The better of two runs of one engine."""
    run = partial(branch_logits, lm, prefix, branches, engine, labels)
    device = lm.decoder.model.embed_tokens.weight.device
    return min(timed(run, device) for _ in range(2))


def floor_seconds(lm: LanguageModel, tokens: int) -> float:
    """Seconds that the linear layers of all blocks take on `tokens` tokens, and nothing else."""
    layer = lm.decoder.model.layers[0]
    linears = [module for module in layer.modules() if isinstance(module, nn.Linear)]
    weight = linears[0].weight
    given = {
        size: torch.randn(tokens, size, dtype=weight.dtype, device=weight.device)
        for size in {linear.in_features for linear in linears}
    }

    def products() -> None:
        for linear in linears:
            linear(given[linear.in_features])

    products()
    return timed(products, weight.device) * len(lm.decoder.model.layers)


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run, to the end of the device's work."""
    _wait(device)
    began = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(run: Callable[[], T], device: torch.device) -> tuple[int | None, T]:
    """The peak of memory during a run above what was held before it, and what the run returned:
    allocated memory on CUDA, resident memory on a Linux CPU."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before, result
    try:
        # What the allocator keeps for reuse would hide a run's memory: give it back, then set the
        # kernel's mark of the highest resident size down to the present one.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except (OSError, AttributeError):  # not Linux, or another C library
        return None, run()
    result = run()
    return _status("VmHWM") - before, result


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
