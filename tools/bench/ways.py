"""Time the engines beside other libraries, in turn, on work like that of the data sets.

    python -m tools.bench --model FOLDER [--dtype bfloat16] [--work qasc,1400] [--rounds 5]
        [--record docs/costs/beside.jsonl]

Prints a Markdown table for each kind of work: seconds of one question, medians with the smallest
and largest. The prompts are random tokens in the shape of real ones; a number as work is that of a
long question's tokens. The other libraries that are installed run the same prompts (peers.py;
llama.cpp needs --gguf). The floor is what a pass over the tree must multiply, and nothing else. On
a CPU a last line says where the tree's time goes. --record adds what was seen to a file, a line
each; docs/costs.md shows such lines (tools/bench/costs.py).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from minise import LocalModel, branch_logits, load, pack
from minise.engines import token_counts
from minise.grouping import random_partitions
from minise.lab.equal_bits.decoder import EqualBits
from minise.prompts import Prompts
from minise.verify.recording import own_decoder
from minise.verify.words import in_words
from tools import markdown
from tools.bench.costs import by_tree
from tools.bench.flex import FlexDecoder
from tools.bench.peers import Way, peers


@dataclass(frozen=True)
class Work:
    """K choices in groups of m, N trials; tokens of the question and of each choice."""

    K: int
    m: int
    N: int
    question: int
    choice: int


WORK = {
    "qasc": Work(8, 4, 20, question=22, choice=6),
    "truthfulqa": Work(6, 3, 6, question=18, choice=14),
    "biology": Work(10, 5, 40, question=60, choice=14),
}
SHORT = 100  # tokens of a question, up to which separate prompts are timed
LONG = 60.0  # seconds of a pass, from which on it is not warmed up for a single round
LABELS = list(range(10, 15))  # ids that are read

FLOOR = "floor: the products of the tree alone"
# The operations of torch of which a stage of a pass is made, by the beginnings of their names.
STAGES = {
    "products": ("aten::mm", "aten::addmm", "aten::linear", "aten::bmm", "aten::mkldnn_linear"),
    "attention": ("aten::_scaled_dot", "aten::scaled_dot", "aten::_flash"),
    "activation": ("aten::silu",),
    "norms and rotation": (
        "aten::rms_norm",
        "aten::_fused_rms",
        "aten::mul",
        "aten::add",
        "aten::neg",
        "aten::cos",
        "aten::sin",
        "aten::rsqrt",
        "aten::mean",
        "aten::pow",
    ),
    "copies": (
        "aten::copy_",
        "aten::cat",
        "aten::index",
        "aten::_to_copy",
        "aten::clone",
        "aten::contiguous",
    ),
}


def prompts_of(work: Work, vocab_size: int, seed: int = 0) -> Prompts:
    """The token ids of a question's groups: a label and a text for each choice, then a cue."""
    draw = random.Random(seed)

    def text(length: int) -> list[int]:
        return [draw.randrange(20, vocab_size) for _ in range(length)]

    question = text(work.question)
    cue = text(3)
    choices = [text(work.choice) for _ in range(work.K)]
    null = text(6)
    groups = random_partitions(work.K, work.m, work.N, 0, "bench").flat
    branches = []
    for group in groups:
        branch = []
        for label, i in enumerate(group):
            branch += [label, *choices[i]]
        branches.append([*branch, len(group), *null, *cue])
    return Prompts(question, branches, [LABELS] * len(branches))


def labels_after(lm: LocalModel, prompts: Prompts, engine: str) -> Tensor:
    """The logits of the labels after each prompt: (G, L)."""
    logits_GV = branch_logits(lm, prompts.prefix, prompts.branches, engine)
    return logits_GV[:, LABELS]


def our_ways(lm: LocalModel, prompts: Prompts) -> dict[str, Way]:
    """The engines, separate for short questions alone; on a CPU the tree with equal bits, on a GPU
    tree and packed by FlexAttention, whose mask is made in each pass."""
    prefix = prompts.prefix
    branches = prompts.branches
    engines = ["tree", "packed"]
    if len(prefix) <= SHORT:
        engines.append("separate")
    ways: dict[str, Way] = {}
    for engine in engines:
        ways[engine] = partial(labels_after, lm, prompts, engine)
    if lm.decoder.device.type == "cpu":
        equal = replace(lm, decoder=EqualBits(own_decoder(lm)))
        ways["tree, equal bits"] = partial(labels_after, equal, prompts, "tree")
        return ways
    # transformers' FlexAttention gets a mask that is there: so does this.
    tree = pack(prefix, branches, tree=True)
    laid_out = tree.tokens, tree.positions, tree.mask, tree.ends
    ways["tree, laid out before"] = lambda: lm.decoder.logits(lm.decoder(*laid_out))[:, LABELS]
    flex = replace(lm, decoder=FlexDecoder(own_decoder(lm)))
    for engine in ("tree", "packed"):
        name = f"{engine}, FlexAttention"
        ways[name] = partial(labels_after, flex, prompts, engine)
    return ways


def floor_way(lm: LocalModel, prompts: Prompts) -> dict[str, Way]:
    """The products that a pass over the tree cannot do without: the linear layers on as many rows,
    with the model's own weights, and attention as one full call with as many pairs of a
    query and a key as the mask has. No norm, rotation, activation, mask or copy."""
    tree = pack(prompts.prefix, prompts.branches, tree=True)
    decoder = own_decoder(lm)
    config = decoder.config
    T, heads, h = len(tree.tokens), config.num_attention_heads, config.head_dim
    ends = len(tree.ends)
    side = round(int(tree.mask.sum()) ** 0.5)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=lm.decoder.dtype, device=lm.decoder.device)

    x = numbers(T, config.hidden_size)
    inner = numbers(T, config.intermediate_size)
    read = numbers(T, heads * h)
    q = numbers(1, heads, side, h)
    k = numbers(1, config.num_key_value_heads, side, h)
    v = numbers(1, config.num_key_value_heads, side, h)

    def run() -> Tensor:
        layers: Any = decoder.model.layers
        for i, layer in enumerate(layers):
            rows = ends if i == len(layers) - 1 else len(x)  # the top layer has few queries
            attention = layer.self_attn
            attention.q_proj(x[:rows])
            attention.k_proj(x)
            attention.v_proj(x)
            if rows == len(x):
                F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            attention.o_proj(read[:rows])
            layer.mlp.gate_proj(x[:rows])
            layer.mlp.up_proj(x[:rows])
            layer.mlp.down_proj(inner[:rows])
        return decoder.logits(x[:ends])[:, LABELS]

    return {FLOOR: run}


@dataclass
class Timing:
    """CPU and wall seconds of a way in each round, and how far the log-probabilities of its labels
    are from the first way's; None for the floor, which answers nothing."""

    cpu: list[float]
    wall: list[float]
    distance: float | None = None


@torch.inference_mode()
def in_turn(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """The seconds of ways that run one after the other in each round."""
    timings = {name: Timing([], []) for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            cpu = time.process_time()
            wall = time.perf_counter()
            result = way()
            if isinstance(result, Tensor):
                result.cpu()  # waits for a GPU
            timings[name].cpu.append(time.process_time() - cpu)
            timings[name].wall.append(time.perf_counter() - wall)
    return timings


@torch.inference_mode()
def timed(ways: dict[str, Way], rounds: int) -> dict[str, Timing]:
    """The ways run in turn, after a round that warms up, of which the distances are. Where a pass
    is long and one round is asked for, that round is the one: only the first way, which reads the
    weights before any other has, and what torch compiles run again."""
    first = next(iter(ways))
    logs: dict[str, Tensor] = {}

    def kept(name: str) -> None:
        logs[name] = ways[name]().cpu().double().log_softmax(dim=-1)

    timings = in_turn({name: partial(kept, name) for name in ways}, 1)
    if rounds == 1 and max(timing.cpu[0] for timing in timings.values()) > LONG:
        again: dict[str, Way] = {}
        for name, way in ways.items():
            if name == first or "FlexAttention" in name:
                again[name] = way
        timings |= in_turn(again, rounds)
    else:
        timings = in_turn(ways, rounds)
    for name, log_p in logs.items():
        if name != FLOOR:
            timings[name].distance = float((log_p - logs[first]).abs().max())
    return timings


def table(timings: dict[str, Timing]) -> str:
    """Markdown: a row for each way."""
    titles = ["way", "CPU seconds", "wall seconds", "CPU time / tree", "log-probs differ by"]
    tree = timings["tree"].cpu
    rows = []
    for name, timing in timings.items():
        ratio = f"{median(by_tree(timing.cpu, tree)):.2f}"
        distance = "-" if timing.distance is None else f"{timing.distance:.0e}"
        rows.append([name, spread(timing.cpu), spread(timing.wall), ratio, distance])
    return markdown.table(titles, rows)


@torch.inference_mode()
def where_it_goes(way: Way) -> dict[str, float]:
    """The shares of a pass's time by torch's profiler: products, attention and so on. What no such
    operation takes is Python, and the starting of operations."""
    with profile(activities=[ProfilerActivity.CPU]) as seen, record_function("the pass"):
        way()
    whole = 0.0
    taken = dict.fromkeys(STAGES, 0.0)
    for event in seen.key_averages():
        if event.key == "the pass":
            whole = event.cpu_time_total
        for stage, names in STAGES.items():
            if event.key.startswith(names):
                taken[stage] += event.self_cpu_time_total
                break
    taken["the rest"] = whole - sum(taken.values())
    return {stage: microseconds / whole for stage, microseconds in taken.items()}


def commit() -> str:
    """The commit of this code; with "-dirty" where files of it were edited. Records are no code."""
    edited = git("status", "--porcelain", "--untracked-files=no", "--", "minise", "tools")
    return git("describe", "--always", "--exclude=*") + ("-dirty" if edited else "")


def git(*words: str) -> str:
    top = Path(__file__).parents[2]
    return subprocess.run(["git", *words], cwd=top, capture_output=True, text=True).stdout.strip()


def spread(seconds: list[float]) -> str:
    return f"{median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/tiny-llama", help="a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", default="qasc,biology")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gguf", help="the same weights as a file for llama.cpp")
    parser.add_argument("--record", type=Path, help="add a line of JSON for each work to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lm = load(args.model, dtype=getattr(torch, args.dtype), device=args.device)
    machine = in_words()
    print(f"{args.model}, {args.dtype}, {args.rounds} rounds. {machine}")
    for name in args.work.split(","):
        work = WORK[name] if name in WORK else replace(WORK["qasc"], question=int(name))
        prompts = prompts_of(work, lm.config.vocab_size)
        ways = our_ways(lm, prompts)
        ways |= floor_way(lm, prompts)
        ways |= peers(args.model, args.gguf, own_decoder(lm), prompts)
        counts = token_counts(prompts.prefix, prompts.branches)
        print(f"\n{name}: {len(prompts.branches)} prompts; tokens: {counts}\n")
        timings = timed(ways, args.rounds)
        print(table(timings), flush=True)
        stages: dict[str, float] = {}
        if args.device == "cpu":
            stages = where_it_goes(ways["tree"])
            shares = [f"{stage} {share:.0%}" for stage, share in stages.items()]
            print(f"\nOf the tree's time: {', '.join(shares)}.", flush=True)
        if args.record:
            line = {
                "model": Path(args.model).name,
                "dtype": args.dtype,
                "work": name,
                "machine": machine,
                "commit": commit(),
                "tokens": counts,
                "ways": {way: asdict(timing) for way, timing in timings.items()},
                "stages": stages,
            }
            with args.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
