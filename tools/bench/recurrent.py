"""Time the packed pass of Qwen3.5 beside the ways of the transformers library.

    python -m tools.bench.recurrent --dtype bfloat16 --case qasc [--layers 24] [--rounds 3]
        [--ways tree,kept-40]

The shape is that of Qwen3.5-0.8B with random weights and 1,000 token ids: the output layer is left
out. Prints CPU seconds of one thread, medians of rounds in which the ways take turns, and by how
much each raises the memory of the process at its peak. How far its hidden states are from those of
the first way stands beside them. Peaks need Linux.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from minise import pack
from minise.engines import separate, tree
from minise.lab.evaluation.peak import peak_of_memory, reset_peak
from minise.lab.recurrent.in_transformers import prepare
from minise.lab.recurrent.qwen35 import Qwen35
from minise.lab.recurrent.qwen35_config import read_hybrid_config
from minise.lab.serving.transformers import TransformersDecoder
from minise.loading.plugin import load_extra

SHAPE = {
    "vocab_size": 1000,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Case:
    """Tokens of the shared beginning, and how many prompts follow it: each lists 4 of 8 choices of
    5 tokens, after labels of 2."""

    beginning: int
    prompts: int


CASES = {
    "qasc": Case(22, 40),
    "1400+8": Case(1400, 8),
    "1400+40": Case(1400, 40),
    "4000": Case(3700, 10),
}


def prompts_of(case: Case) -> tuple[list[int], list[list[int]]]:
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(1000) for _ in range(count)]

    choices = [ids(5) for _ in range(8)]
    branches = []
    for _ in range(case.prompts):
        branch: list[int] = []
        for place, choice in enumerate(draw.sample(choices, 4)):
            branch += [2 * place, 2 * place + 1, *choice]
        branches.append([*branch, 999])
    return ids(case.beginning), branches


def models_of(layers: int, dtype: torch.dtype) -> tuple[Qwen35, Any]:
    """Ours and the library's, over the same random weights."""
    library = load_extra("transformers", "parity")
    config = library.Qwen3_5TextConfig(**SHAPE, num_hidden_layers=layers)
    known = {key: value for key, value in config.to_dict().items() if value is not None}
    with torch.device("meta"):
        ours = Qwen35(read_hybrid_config(known))
        theirs = library.Qwen3_5ForCausalLM(config)
    draw = torch.Generator().manual_seed(0)
    state = {}
    for name, tensor in ours.state_dict().items():
        values = torch.randn(tensor.shape, generator=draw) * (0.03 if tensor.dim() > 1 else 0.1)
        state[name] = (values - 3 * name.endswith("A_log")).to(dtype)
    ours.requires_grad_(False).load_state_dict(state, assign=True)
    tied = {"lm_head.weight": state["model.embed_tokens.weight"]}
    theirs.requires_grad_(False).load_state_dict(state | tied, assign=True, strict=False)
    theirs.model.rotary_emb = type(theirs.model.rotary_emb)(config)  # its frequencies are no weight
    prepare(theirs)
    return ours.eval(), theirs.to(dtype).eval()


def alone(model: Any, prefix: list[int], branches: list[list[int]]) -> Tensor:
    """Each prompt by the library."""
    ends = []
    for branch in branches:
        states = model.model(torch.tensor([prefix + branch]), use_cache=False).last_hidden_state
        ends.append(states[:, -1])
    return torch.cat(ends)


def kept(model: Any, at_once: int, prefix: list[int], branches: list[list[int]]) -> Tensor:
    """The library's own way: the beginning once, and its keys, values and states copied for so many
    prompts at a time."""
    cache = model.model(torch.tensor([prefix]), use_cache=True).past_key_values
    ends = []
    for start in range(0, len(branches), at_once):
        some = torch.tensor(branches[start : start + at_once])
        copied = copy.deepcopy(cache)
        for layer in copied.layers:
            if getattr(layer, "keys", None) is not None:
                layer.batch_repeat_interleave(len(some))
                continue
            for states in (layer.conv_states, layer.recurrent_states):
                for key, state in states.items():
                    states[key] = state.repeat_interleave(len(some), dim=0)
        out = model.model(some, past_key_values=copied, use_cache=True)
        ends.append(out.last_hidden_state[:, -1])
    return torch.cat(ends)


def in_library(model: Any, prefix: list[int], branches: list[list[int]]) -> Tensor:
    """The tree by the library's model, whose recurrent layers read along its paths."""
    layout = pack(prefix, branches, tree=True)
    last: list[Tensor] = []
    hook = model.model.register_forward_hook(lambda *given: last.append(given[2][0]))
    try:
        TransformersDecoder(model)(layout.tokens, layout.positions, layout.mask, layout.ends)
    finally:
        hook.remove()
    return last[0][0, layout.ends]


def measure(ways: dict[str, Callable[[], Tensor]], rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peaks = dict.fromkeys(ways, 0)
    states = {}
    for _ in range(rounds):
        for name, run in ways.items():
            reset_peak(on_gpu=False)
            before = peak_of_memory(on_gpu=False)
            start = time.process_time()
            states[name] = run().float()
            seconds[name].append(time.process_time() - start)
            peaks[name] = max(peaks[name], peak_of_memory(on_gpu=False) - before)
    first = next(iter(states.values()))
    for name in ways:
        off = float((states[name] - first).abs().max() / first.square().mean().sqrt())
        every = " ".join(f"{one:.2f}" for one in seconds[name])
        figures = f"{median(seconds[name]):7.2f} s ({every}), {peaks[name] / 1e6:5.0f} MB"
        print(f"  {name:16} {figures}, off {off:.0e}", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, default="qasc")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="tree,library-tree,kept-8,kept-40,separate,library-alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ours, theirs = models_of(options.layers, getattr(torch, options.dtype))
    prompts = prompts_of(CASES[options.case])
    known: dict[str, Callable[[], Tensor]] = {
        "tree": partial(tree, ours, *prompts),
        "library-tree": partial(in_library, theirs, *prompts),
        "kept-8": partial(kept, theirs, 8, *prompts),
        "kept-40": partial(kept, theirs, 40, *prompts),
        "separate": partial(separate, ours, *prompts),
        "library-alone": partial(alone, theirs, *prompts),
    }
    tree(ours, *prompts_of(Case(40, 4)))  # pages are read, kernels are chosen
    tokens = len(pack(*prompts, tree=True).tokens)
    print(f"{options.case}: a tree of {tokens:,} tokens, {options.dtype}, {options.layers} layers")
    measure({name: known[name] for name in options.ways.split(",")}, options.rounds)


if __name__ == "__main__":
    main()
