"""Everything that needs a GPU, in one command and ten minutes, into one JSON file.

    python -m tools.card --output card.json
    python -m tools.card --output card.json --stages bits,bench --shape meta-llama/Meta-Llama-3-8B
    python -m tools.card --output cpu.json --device cpu --shape small    # a stand-in, to try it
    python -m tools.card --dry-run    # the kernel calls of each pass, without a card

Random bfloat16 weights of a published shape (Meta-Llama-3-8B). The stages, each in a process of its
own with a time limit, so that one that fails or hangs takes no other along; the file is written
after each of them:

- tests: all tests of the CUDA device (`pytest -k cuda`).
- bits: which numbers of rows share their bits in this card's kernels, for each linear layer, and
  what a call of each costs.
- cost: what equal bits would cost: the linear layers of a tree in calls of one class, beside one
  call of all rows. (On a GPU minise makes one call.)
- bench: `minise bench` of three workloads, several questions to a pass, beside the reference
  library if it is installed; questions a second beside the goals.
- building: seconds to lay out a question and to make its attention calls, as part of its pass.
- graph: the same pass replayed as a CUDA graph, whose calls are fixed by the tree.
- flex: FlexAttention on the same prompts: whether its bits are equal, and seconds (card_peers.py).
- vllm: questions a second of vLLM with its prefix cache, if it is installed (card_peers.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from minise import LanguageModel, pack
from minise.bench.measure import empty_decoder, random_model, time_engines, time_in_turn
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.bench.workloads import WORKLOADS
from minise.engines import token_counts
from minise.exact.attention import tree_reader
from minise.exact.calls import in_calls
from minise.exact.layers import shapes_of
from minise.exact.probe import LARGER, NUMBERS, Shape, alike, choose, samples
from minise.exact.run import read_ends
from minise.files import json_text, write_file
from minise.layout import Tree
from minise.loading.config_json import config_from_dict
from tools import card_peers

SMALL = {
    **BENCH_SHAPE,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 512,
    "head_dim": 16,
}
SHAPES = {**PUBLISHED, "small": SMALL}
GOALS = {"qasc": 50, "truthfulqa": 100, "biology": 8}  # questions a second, on an H200
PER_PASS = 32_000  # tokens of several questions together
SECONDS = {
    "tests": 120,
    "bits": 60,
    "cost": 45,
    "bench": 150,
    "building": 30,
    "graph": 30,
    "flex": 60,
    "vllm": 105,
}
ROOT = Path(__file__).parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, metavar="FILE")
    parser.add_argument("--dry-run", action="store_true", help="print the kernel calls")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="meta-llama/Meta-Llama-3-8B")
    parser.add_argument("--stages", default=",".join(SECONDS))
    parser.add_argument("--stage", choices=tuple(STAGES), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.stage is not None:
        print(json_text(STAGES[args.stage](args.device, args.shape)))
        return 0
    if args.dry_run:
        print("\n".join(kernel_calls(args.shape)))
        return 0
    if args.output is None:
        parser.error("--output FILE is missing")
    report: dict[str, Any] = {"shape": args.shape, **about(args.device), "stages": {}}
    for name in args.stages.split(","):
        report["stages"][name] = run_stage(name, args.device, args.shape)
        write_file(args.output, json_text(report, indent=1) + "\n")
        print(f"{name}: {summary(report['stages'][name])}", flush=True)
    return int(any("failed" in stage for stage in report["stages"].values()))


def about(device: str) -> dict[str, Any]:
    """The card, and the versions that decide how it computes."""
    facts: dict[str, Any] = {"device": device, "torch": torch.__version__}
    if device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(device)
        facts |= {"card": properties.name, "bytes": properties.total_memory}
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return facts


def run_stage(name: str, device: str, shape: str) -> dict[str, Any]:
    """What a stage measured in its own process, or {"failed": why}, with its seconds."""
    command = [sys.executable, "-m", "tools.card", "--stage", name, "--device", device]
    command += ["--shape", shape]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS[name], cwd=ROOT, check=False
        )
        last = (done.stdout or "").strip().splitlines()[-1:]
        if done.returncode:
            result = {"failed": f"status {done.returncode}: {done.stderr[-2000:]}"}
        else:
            result = json.loads(last[0])
    except subprocess.TimeoutExpired:
        result = {"failed": f"took more than {SECONDS[name]} seconds"}
    return {**result, "seconds": round(time.perf_counter() - began, 1)}


def summary(stage: dict[str, Any]) -> str:
    return stage.get("failed") or stage.get("summary") or f"{stage['seconds']} s"


def tests(device: str, shape: str) -> dict[str, Any]:
    """The tests of the CUDA device. Without one they would be skipped, which is said."""
    if not device.startswith("cuda"):
        return {"summary": "skipped: no CUDA device"}
    command = [sys.executable, "-m", "pytest", "-q", "-k", "cuda", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = done.stdout.strip().splitlines()
    return {"status": done.returncode, "summary": lines[-1] if lines else "", "tail": lines[-60:]}


def bits(device: str, shape: str) -> dict[str, Any]:
    """The classes of this device's products, by linear layer, and microseconds by rows."""
    layers = []
    for one in layer_shapes(shape):
        weight, classes = classes_on(device, one)
        rows = samples(one)[2]
        inputs = {n: rows[torch.arange(n) % len(rows)].to(device) for n in (*NUMBERS, *LARGER)}
        calls = {str(n): partial(F.linear, x, weight) for n, x in inputs.items()}
        times = time_in_turn(calls, 5, torch.device(device))
        microseconds = {n: round(1e6 * one.seconds, 1) for n, one in times.items()}
        layers.append({"layer": str(one), "classes": classes, "microseconds": microseconds})
    return {"layers": layers, "summary": f"{len(layers)} layers"}


def cost(device: str, shape: str) -> dict[str, Any]:
    """Seconds of all linear layers of a block on a tree's tokens: in one call each, and in calls of
    the class that serves best. `part`: how much longer, by workload."""
    report: dict[str, Any] = {}
    layers = [(one.inputs, *classes_on(device, one)) for one in layer_shapes(shape)]
    chosen = [(size, weight, choose(classes)) for size, weight, classes in layers]
    for name, prefix, branches in questions(SHAPES[shape]["vocab_size"]):
        tokens = token_counts(prefix, branches)["tree"]
        x = {size: torch.randn(tokens, size).to(weight) for size, weight, _ in layers}
        whole = [partial(F.linear, x[size], weight) for size, weight, _ in layers]
        parts = [
            partial(in_calls, partial(F.linear, weight=weight), x[size], numbers)
            for size, weight, numbers in chosen
        ]
        ways = {"one call": partial(in_turn, whole), "calls of one class": partial(in_turn, parts)}
        seconds = seconds_of(ways, device)
        part = seconds["calls of one class"] / seconds["one call"] - 1
        report[name] = {"tokens": tokens, "seconds": seconds, "part": round(part, 4)}
    parts_text = ", ".join(f"{name} {one['part']:+.1%}" for name, one in report.items())
    numbers = {f"{size}": list(numbers) for size, _, numbers in chosen}
    return {"workloads": report, "numbers": numbers, "summary": parts_text}


def bench(device: str, shape: str) -> dict[str, Any]:
    """`minise bench` of the three workloads."""
    lm, report = model(device, shape), {}
    for name, goal in GOALS.items():
        timings = time_engines(lm, WORKLOADS[name], 3, 0, tokens_per_pass=PER_PASS)
        best = max(1 / row.seconds for row in timings.rows if row.name.startswith("tree"))
        report[name] = {**asdict(timings), "questions_per_second": round(best, 2), "goal": goal}
    rates = [f"{name} {one['questions_per_second']} a second" for name, one in report.items()]
    return {"workloads": report, "summary": ", ".join(rates)}


def building(device: str, shape: str) -> dict[str, Any]:
    """Seconds to lay out a tree, to make its calls, and of its whole pass, which has both."""
    lm, report = model(device, shape), {}
    windows, where = lm.config.sliding_windows, torch.device(device)
    for name, prefix, branches in questions(lm.config.vocab_size):
        layout = partial(pack, prefix, branches, tree=True)
        ways: dict[str, Callable[[], Any]] = {
            "layout": layout,
            "calls": partial(tree_reader, layout(), windows, where),
            "pass": partial(_pass, lm, layout),
        }
        seconds = seconds_of(ways, device)
        part = (seconds["layout"] + seconds["calls"]) / seconds["pass"]
        report[name] = {"seconds": seconds, "part": round(part, 4)}
    parts = ", ".join(f"{name} {one['part']:.1%}" for name, one in report.items())
    return {"workloads": report, "summary": f"of a pass: {parts}"}


def _pass(lm: LanguageModel, layout: Callable[[], Tree]) -> Tensor:
    return read_ends(lm.decoder, layout())


def graph(device: str, shape: str) -> dict[str, Any]:
    """A pass whose calls were made before, run as it is and replayed as a CUDA graph. On another
    device the pass is its own replay. equal: whether the replay gives the bits of `read_ends`."""
    lm = model(device, shape)
    report: dict[str, Any] = {}
    where = torch.device(device)
    for name, prefix, branches in questions(lm.config.vocab_size):
        tree = pack(prefix, branches, tree=True)
        with torch.inference_mode():
            reader = tree_reader(tree, lm.config.sliding_windows, where)
            tokens, positions = tree.tokens[None].to(where), tree.positions[None].to(where)
            ends = tree.ends.to(where)
            run = partial(lm.decoder.run, tokens, positions, reader.attend, ends)
            replay = captured(run, where)
            equal = torch.equal(replay()[0], read_ends(lm.decoder, tree))
        seconds = seconds_of({"pass": run, "replay": replay}, device)
        report[name] = {"seconds": seconds, "equal": equal}
    ratios = [
        f"{name} {one['seconds']['replay'] / one['seconds']['pass']:.2f} of the pass"
        + ("" if one["equal"] else ", OTHER BITS")
        for name, one in report.items()
    ]
    return {"workloads": report, "summary": ", ".join(ratios)}


def captured(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """A function that replays a run and gives its result."""
    if device.type != "cuda":
        return run
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # warms up: what is loaded at first use cannot be captured
        for _ in range(2):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        result = run()

    def replay() -> Tensor:
        recorded.replay()
        return result

    return replay


def flex(device: str, shape: str) -> dict[str, Any]:
    return card_peers.flex(device, SHAPES[shape])


def vllm(device: str, shape: str) -> dict[str, Any]:
    return card_peers.vllm(device, SHAPES[shape], GOALS, PER_PASS)


def kernel_calls(shape: str) -> Iterator[str]:
    """A line for every kernel call of a pass that multiplies, by workload, as the engine tree makes
    it on a card. What multiplies nothing (norms, angles, activations, indexing) is left out."""
    config = config_from_dict(SHAPES[shape])
    top = config.num_hidden_layers - 1
    shared = config.num_attention_heads // config.num_key_value_heads  # query heads of a key head
    heads = f"{config.num_key_value_heads} key heads of {config.head_dim}"
    yield f"{shape}: {config.num_hidden_layers} layers, bfloat16"
    for name, prefix, branches in questions(config.vocab_size):
        tree = pack(prefix, branches, tree=True)
        reader = tree_reader(tree, config.sliding_windows, torch.device("cpu"))
        tokens, ends = len(tree.tokens), len(tree.ends)
        yield f"{name}: {tokens:,} tokens in the tree, {ends} ends"
        for layers, rows, calls in (
            (f"layers 0 to {top - 1}", tokens, reader.calls),
            (f"layer {top}", ends, reader.top),
        ):
            yield f"  {layers}, each:"
            for part, inputs, outputs in linear_layers(shape):
                number = tokens if part in ("k_proj", "v_proj") else rows
                yield f"    {part}: {number:,} x {inputs:,} x {outputs:,}"
            for call in calls:
                (N, Q), S = call.queries.shape, call.keys.shape[1]
                yield f"    attention: {N} items of {Q} x {shared} queries by {S} keys, {heads}"


def linear_layers(shape: str) -> list[tuple[str, int, int]]:
    """Name, inputs and outputs of the linear layers of a block."""
    block = empty_decoder(config_from_dict(SHAPES[shape]), torch.bfloat16).model.layers[0]
    return [
        (name.rpartition(".")[2], one.in_features, one.out_features)
        for name, one in block.named_modules()
        if isinstance(one, torch.nn.Linear)
    ]


def seconds_of(ways: Mapping[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """The median of 5 rounds in turn, by way."""
    with torch.inference_mode():
        measured = time_in_turn(ways, 5, torch.device(device))
    return {name: one.seconds for name, one in measured.items()}


def in_turn(calls: Sequence[Callable[[], Tensor]]) -> Tensor:
    """The last result."""
    return [call() for call in calls][-1]


@torch.inference_mode()
def classes_on(device: str, shape: Shape) -> tuple[Tensor, list[list[int]]]:
    """A weight of this shape on the device, and the numbers of rows in classes of equal bits."""
    weight, _, rows = samples(shape)
    weight = weight.to(device)
    product = partial(_product, weight)
    return weight, alike(product, rows, [*NUMBERS, *LARGER])


def _product(weight: Tensor, x: Tensor) -> Tensor:
    return F.linear(x.to(weight.device), weight).cpu()


def questions(vocabulary: int) -> Iterator[tuple[str, list[int], list[list[int]]]]:
    """A question of each workload: its name, prefix and branches."""
    for name in GOALS:
        prefix, branches, _ = WORKLOADS[name].prompts(vocabulary, 0)
        yield name, prefix, branches


def model(device: str, shape: str) -> LanguageModel:
    return random_model(SHAPES[shape], torch.bfloat16, torch.device(device))


def layer_shapes(shape: str) -> list[Shape]:
    """The different linear layers of a block, in bfloat16."""
    decoder = empty_decoder(config_from_dict(SHAPES[shape]), torch.bfloat16)
    return list(dict.fromkeys(shapes_of(decoder, torch.bfloat16, output=False)))


STAGES = {
    "tests": tests,
    "bits": bits,
    "cost": cost,
    "bench": bench,
    "building": building,
    "graph": graph,
    "flex": flex,
    "vllm": vllm,
}


if __name__ == "__main__":
    sys.exit(main())
