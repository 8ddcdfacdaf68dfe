"""Measure a model of real size: write random weights of a published shape, load them, answer.

    python -m tools.real_size meta-llama/Meta-Llama-3-8B --format bf16,nf4 --folder DIR

The weights are bfloat16, in files of 5 GB, written piece by piece: no copy of the model is ever in
memory. A folder that holds them already is used as it is. The tokenizer is the shipped
weights/tiny-llama's, the vocabulary the shape's, which is larger. Each format is measured on the
CPU in a process of its own: the peak of resident memory, with the mapped pages of the files (as
Linux counts), and the seconds to load and to answer one question, m = 4, N = 20. Seconds are by the
clock; in parentheses is the CPU time of all threads, which other work on the machine affects less.
Delete DIR afterwards: 8 billion weights take 16 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minise import Question, SelfEnsemble, load
from minise.bench.shapes import PUBLISHED
from minise.evaluation.meter import high_water
from minise.loading.config_json import config_from_dict
from minise.loading.names import DEFAULT_MODEL, FOUR_BIT
from minise.loading.source import INDEX, finder
from minise.method import label_logits
from minise.model import Decoder

SHARD = 5 * 10**9  # bytes
POOL = (1 << 24) + 3  # random values, used again and again; odd, so that rows of a matrix differ
SPREAD = 0.02  # standard deviation
FORMATS = ("bf16", *FOUR_BIT)
# As long as one of QASC: 972 tokens for the engine tree.
QUESTION = Question(
    "Which country has the city of Rome as its capital?",
    ["France", "Spain", "Italy", "Peru", "Chile", "Japan", "China", "India"],
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_size", description=__doc__)
    parser.add_argument("shape", choices=tuple(PUBLISHED))
    parser.add_argument("--format", type=lambda text: text.split(","), default=FORMATS[:2])
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args(arguments)
    if unknown := [name for name in args.format if name not in FORMATS]:
        parser.error(f"--format {unknown[0]}: use some of {', '.join(FORMATS)}")
    write(PUBLISHED[args.shape], args.folder)
    print(f"{args.shape}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| format | peak, GB | load, s | answer, s | tokens | load of the machine |")
    print("|---|---|---|---|---|---|")
    for name in args.format:
        code = f"from tools.real_size import measure; measure({str(args.folder)!r}, {name!r})"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        numbers = json.loads(done.stdout)
        took = ["{:.1f} ({:.1f})".format(*numbers[what]) for what in ("load", "answer")]
        cells = [name, f"{numbers['peak'] / 1e9:.1f}", *took]
        cells += [f"{numbers['tokens']:,}", f"{numbers['busy']:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


def measure(folder: str, name: str) -> None:
    """Load, answer, and print what it took as JSON: bytes and seconds."""
    busy, began = os.getloadavg()[0], clocks()
    quantize = name if name in FOUR_BIT else None
    lm = load(folder, dtype=torch.bfloat16, device="cpu", quantize=quantize)
    loaded = clocks()
    plan = SelfEnsemble().plan(lm, QUESTION)
    label_logits(lm, plan)
    answered = clocks()
    report: dict[str, Any] = {"peak": high_water(), "tokens": plan.tokens("tree"), "busy": busy}
    report["load"] = [after - before for before, after in zip(began, loaded, strict=True)]
    report["answer"] = [after - before for before, after in zip(loaded, answered, strict=True)]
    print(json.dumps(report))


def clocks() -> tuple[float, float]:
    """Seconds by the clock, and of the CPU in this process."""
    return time.perf_counter(), time.process_time()


def write(raw: dict[str, Any], folder: Path, shard: int = SHARD) -> None:
    """A checkpoint of this config.json, unless it is there. Prints what it is about to write."""
    raw = {**raw, "torch_dtype": "bfloat16"}
    text = json.dumps(raw)
    config = folder / "config.json"
    if config.is_file() and config.read_text() == text:
        return
    folder.mkdir(parents=True)
    with torch.device("meta"):
        tensors = Decoder(config_from_dict(raw)).state_dict()
    shards = list(_shards(tensors, shard))
    size = sum(2 * tensor.numel() for tensor in tensors.values())
    print(f"writing {size / 1e9:.1f} GB to {folder}", file=sys.stderr)
    generator = torch.Generator().manual_seed(0)
    pool = (SPREAD * torch.randn(POOL, generator=generator)).bfloat16()
    index: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(folder / file, {name: tensors[name] for name in names}, pool)
        index |= dict.fromkeys(names, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    shutil.copy(finder(DEFAULT_MODEL, None)("tokenizer.json"), folder)
    config.write_text(text)  # last: it says that the folder is whole


def _shards(tensors: dict[str, Tensor], most: int) -> Iterator[list[str]]:
    """The names, in groups of at most `most` bytes."""
    names: list[str] = []
    size = 0
    for name, tensor in tensors.items():
        if names and size + 2 * tensor.numel() > most:
            yield names
            names, size = [], 0
        names.append(name)
        size += 2 * tensor.numel()
    yield names


def _write_file(path: Path, tensors: dict[str, Tensor], pool: Tensor) -> None:
    """A safetensors file: the length of its head, the head, the values one after the other."""
    head, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + 2 * tensor.numel()
        shape = list(tensor.shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    widest = max((tensor.numel() for tensor in tensors.values() if tensor.dim() == 1), default=1)
    ones = torch.ones(widest, dtype=pool.dtype)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            left = tensor.numel()
            while left:
                piece = (pool if tensor.dim() == 2 else ones)[:left]
                file.write(piece.view(torch.uint8).numpy().data)
                left -= len(piece)


if __name__ == "__main__":
    raise SystemExit(main())
