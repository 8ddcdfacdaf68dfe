"""How often `guard` says "not equal" of calls that are right: tiny random models of 20
architectures of the library transformers, 4 of them with experts, and for each 25 calls of 2 to 4
documents of 2 to 150 tokens, in five forms.

    python -m tests.lab.packing.alarms [DTYPE]

DTYPE: float32 (if it is missing), bfloat16 or float16. Prints for each architecture how many calls
were called equal and not equal, and how many had no verdict, with the reason.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections import Counter
from typing import Any

import torch
import transformers

import minise
from minise.layout import causal_mask
from tests.lab.serving import zoo

ROTARY = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral", "gpt_oss", "gemma2"),
    *("gemma3_text", "olmo2", "phi3", "phi", "gpt_neox", "starcoder2", "cohere", "granite"),
    *("stablelm", "olmoe", "glm4"),
)
NAMES = (*ROTARY, "gpt2")
FORMS = ("mask", "positions", "trunk", "two rows", "positions run on")
MODELS = 5  # of each architecture, each of which gets a call in each form
LENGTHS = ((2, 12), (20, 60), (60, 150))  # of a document: from, to


def tiny(name: str, seed: int, dtype: torch.dtype) -> Any:
    """Every parameter is random, and no window is shorter than a document."""
    config = zoo.tiny_config(name)
    if getattr(config, "sliding_window", None):
        config.sliding_window = 4096
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        width = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
        parameter.data += width * torch.randn(parameter.shape, generator=draw)
    return model.to(dtype).eval()


def form_of(name: str, form: str) -> str:
    """Another form, where the architecture does not go by this one."""
    is_lost = form == "positions run on" and name not in ROTARY
    is_lost |= form in ("positions", "two rows") and name == "gpt_oss"
    return "mask" if is_lost else form


def call_of(draw: random.Random, form: str, dtype: torch.dtype) -> dict[str, Any]:
    """A right call in this form."""
    fewest = 3 if form == "trunk" else 2
    lengths = [draw.randint(*draw.choice(LENGTHS)) for _ in range(draw.randint(fewest, 4))]
    of = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    T = len(of)
    mask = causal_mask(T) & (of[:, None] == of)
    positions = torch.cat([torch.arange(length) for length in lengths])
    ids = torch.tensor([[draw.randrange(5, 288) for _ in range(T)]])
    if form == "trunk":  # the first document, and the others are branches behind it
        mask = causal_mask(T) & ((of[:, None] == of) | (of == 0))
        positions = positions + lengths[0] * (of > 0)
    elif form == "positions run on":  # rotary angles are then those of a shift
        positions = torch.arange(T)
    elif form == "two rows":
        ids = torch.cat([ids, ids.flip(1)])
    call = {"input_ids": ids, "position_ids": positions.repeat(len(ids), 1), "use_cache": False}
    if form not in ("positions", "two rows"):
        added = torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)
        call["attention_mask"] = added[None, None]
    return call


def main(dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    started = time.process_time()
    in_all: Counter[str] = Counter()
    for name in NAMES:
        counts: Counter[str] = Counter()
        for seed in range(MODELS):
            model = tiny(name, seed, dtype)
            for form in FORMS:
                draw = random.Random(f"{name} {seed} {form}")
                call = call_of(draw, form_of(name, form), dtype)
                watch = minise.guard(model, lambda words, again: None)
                with torch.no_grad():
                    model(**call)
                watch.remove()
                said = "equal" if watch.compared else "no verdict"
                counts["not equal" if watch.mismatches else said] += 1
                if not watch.compared or watch.mismatches:
                    print(f"  {name}, model {seed}, {form}: {watch.report()}")
        print(name, dict(counts), flush=True)
        in_all += counts
    seconds = time.process_time() - started
    print(f"{sum(in_all.values())} calls in {dtype}: {dict(in_all)}; {seconds:.0f} s of CPU")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "float32"))
