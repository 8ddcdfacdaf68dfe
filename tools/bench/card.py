"""What only a GPU can show, in one command and ten minutes: python -m tools.bench.card card.json

Each stage is a process of its own with a time limit; one that fails takes no other along, and the
file is written after each. The weights are random, in bfloat16 and in the shape of Llama-3-8B,
unless --model is a folder. On a CPU: --device cpu --dtype float32 --model weights/tiny-llama

- tests of the CUDA device; verify.
- bench: one question at a time, by each engine, by FlexAttention, and by the libraries that are
  installed.
- rate: questions a second beside the goals, as many in a pass as a run puts there; and how fast the
  linear layers are beside the card's best product of two matrices.
- vllm: 8 questions by vLLM with its prefix cache, if it is installed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from minise import LocalModel, load, pack
from minise.lab.evaluation.pipeline import join, most_together, tokens_of
from minise.lab.files import write_file
from minise.layout import Layout
from minise.loading.config_json import read_config
from minise.model import Decoder
from minise.prompts import Prompts
from minise.verify.recording import own_decoder
from tools.bench.peers import vllm_model, vllm_way
from tools.bench.ways import WORK, prompts_of, timed

SHAPE = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
GOALS = {"qasc": 50, "truthfulqa": 100, "biology": 8}  # questions a second at 8B
SHIPPED = Path("weights/tiny-llama")
QUESTIONS_OF_VLLM = 8
ROUNDS = 5
SQUARES = (2048, 4096, 8192)  # sides of the matrices whose product is timed
PRODUCTS = 10  # of them at once


def write_model(folder: Path, device: str) -> None:
    """A checkpoint of SHAPE with random weights, and with a shipped tokenizer."""
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((SHIPPED / name).read_bytes())
    with torch.device("meta"):
        state = Decoder(read_config(SHAPE)).to(torch.bfloat16).state_dict()
    for name, x in state.items():
        state[name] = torch.empty_like(x, device=device).normal_(0, 0.02).cpu()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SHAPE))


def questions(name: str, vocabulary: int, count: int) -> Prompts:
    """The prompts of so many questions, which share nothing."""
    return join([prompts_of(WORK[name], vocabulary, seed) for seed in range(count)])


def rate(folder: str, device: str, dtype: str) -> dict[str, Any]:
    """For each kind of work: questions a second, and the linear layers' TFLOP/s as a share of the
    best product's."""
    lm = load(folder, dtype=dtype, device=device)
    best = best_product(lm.decoder.device, lm.decoder.dtype)
    found: dict[str, Any] = {"TFLOP/s of the best product": round(best, 3)}
    for name, goal in GOALS.items():
        one = questions(name, lm.config.vocab_size, 1)
        count = ceil(most_together(lm) / tokens_of(lm, one))  # one more joins while there is room
        prompts = questions(name, lm.config.vocab_size, count)
        tree = pack(prompts.prefix, prompts.branches, tree=True)
        way = partial(lm.hidden_at_ends, prompts.prefix, prompts.branches)
        seconds = median(timed({"tree": way}, ROUNDS)["tree"].wall)
        achieved = linear_flop(lm, tree) / seconds / 1e12
        found[name] = {
            "questions": count,
            "tokens": len(tree.tokens),
            "goal": goal,
            "a second": round(count / seconds, 3),
            "TFLOP/s of the linear layers": round(achieved, 3),
            "share of the best product": round(achieved / best, 3),
        }
    return found


@torch.inference_mode()
def best_product(device: torch.device, dtype: torch.dtype) -> float:
    """TFLOP/s of the fastest product of two square matrices that this device shows."""
    best = 0.0
    for side in SQUARES:
        a = torch.randn(side, side, device=device, dtype=dtype)
        b = torch.randn(side, side, device=device, dtype=dtype)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for _ in range(PRODUCTS):
                out = a @ b
            out[0, 0].item()  # waits for a GPU
            seconds = time.perf_counter() - began
            best = max(best, PRODUCTS * 2 * side**3 / seconds / 1e12)
        if seconds > 1:
            break  # a CPU: the next side takes eight times as long
    return best


def linear_flop(lm: LocalModel, tree: Layout) -> int:
    """Operations of a pass's linear layers: two for each weight and row. The top layer has queries
    and an MLP for the ends of the prompts only."""
    layers = own_decoder(lm).model.layers
    flop = 0
    for i, layer in enumerate(layers):
        for name, module in layer.named_modules():
            if not isinstance(module, nn.Linear):
                continue
            reads_all = i < len(layers) - 1 or name.endswith(("k_proj", "v_proj"))
            rows = len(tree.tokens) if reads_all else len(tree.ends)
            flop += 2 * rows * module.weight.numel()
    return flop


def vllm(folder: str, device: str, dtype: str) -> dict[str, Any]:
    """Questions a second by vLLM, which takes the device that it finds."""
    if not find_spec("vllm"):
        return {"vllm": "not installed"}
    vocabulary = json.loads((Path(folder) / "config.json").read_text())["vocab_size"]
    asked = {name: questions(name, vocabulary, QUESTIONS_OF_VLLM) for name in GOALS}
    longest = max(prompts.longest for prompts in asked.values())
    model = vllm_model(folder, dtype, longest)
    found: dict[str, Any] = {}
    for name, prompts in asked.items():
        seconds = median(timed({"vllm": vllm_way(model, prompts)}, ROUNDS)["vllm"].wall)
        found[name] = {"goal": GOALS[name], "a second": QUESTIONS_OF_VLLM / seconds}
    return found


def stages(folder: str, device: str, dtype: str) -> dict[str, tuple[int, list[str]]]:
    """The seconds that each stage may take, and its command."""
    model = ["--model", folder, "--device", device, "--dtype", dtype]
    python = [sys.executable, "-m"]
    works = ["--work", "qasc,truthfulqa,biology", "--rounds", "3"]
    return {
        "tests": (
            60,
            [*python, "pytest", "-rs", "-k", "cuda", "tests/lab/claims/test_devices.py"],
        ),
        "verify": (60, [*python, "minise", "verify", *model]),
        "bench": (240, [*python, "tools.bench", *model, *works]),
        "rate": (120, [*python, "tools.bench.card", "--stage", "rate", *model]),
        "vllm": (120, [*python, "tools.bench.card", "--stage", "vllm", *model]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?", default=Path("card.json"))
    parser.add_argument("--model", default="runs/card/random-8b", help="a folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--stage", choices=("rate", "vllm"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        stage = {"rate": rate, "vllm": vllm}[args.stage]
        print(json.dumps(stage(args.model, args.device, args.dtype)))
        return 0
    if not Path(args.model).exists():
        write_model(Path(args.model), args.device)
    cuda = torch.cuda.get_device_name() if args.device.startswith("cuda") else None
    report: dict[str, Any] = {"card": cuda, "torch": torch.__version__, "cuda": torch.version.cuda}
    for name, (limit, command) in stages(args.model, args.device, args.dtype).items():
        began = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            status = str(done.returncode)
            lines = (done.stdout or done.stderr).splitlines()[-60:]
        except subprocess.TimeoutExpired:
            status = f"more than {limit} s"
            lines = []
        seconds = round(time.perf_counter() - began, 1)
        report[name] = {"status": status, "seconds": seconds, "lines": lines}
        write_file(args.output, json.dumps(report, indent=1) + "\n")
        print(f"{name}: {status}, {seconds} s", *lines[-1:], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
