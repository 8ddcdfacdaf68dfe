"""What `guard` says of long documents in a real model, in a half type: rows of three documents of
180 to 320 tokens of this project's pages, right and with one fault that moves most tokens by less
than rounding does.

    python -m tests.lab.packing.real_rows FOLDER [ROWS] [DTYPE]

FOLDER holds a checkpoint of the library transformers, with its tokenizer. Prints for each fault how
many rows were called equal and not equal, and how many had no verdict. Linear layers sum in float32
and round once, as kernels for half types do: a CPU without such kernels is slower by four times.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

import minise
from minise.layout import causal_mask

PAGES = Path(__file__).parents[3] / "docs"
LINEAR = functional.linear
FAULTS = ("none", "border off by one", "position skipped", "one token seen")


def rounded_once(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer, by float32."""
    wide = None if bias is None else bias.float()
    return LINEAR(x.float(), weight.float(), wide).to(x.dtype)


def call_of(ids: Tensor, lengths: list[int], fault: str, dtype: torch.dtype) -> Any:
    """A packed row by a mask that is added, and positions."""
    given = list(lengths)
    if fault == "border off by one":
        given = [lengths[0] + 1, lengths[1] - 1, lengths[2]]
    of = torch.arange(3).repeat_interleave(torch.tensor(given))
    mask = causal_mask(len(ids)) & (of[:, None] == of)
    positions = torch.cat([torch.arange(length) for length in lengths])
    if fault == "position skipped":
        positions[-lengths[2] // 2 :] += 1
    if fault == "one token seen":
        mask[lengths[0] :, lengths[0] - 1] = True
    added = torch.where(mask, 0.0, torch.finfo(dtype).min).to(dtype)
    call = {"input_ids": ids[None], "position_ids": positions[None], "use_cache": False}
    return call | {"attention_mask": added[None, None]}


def main(folder: str, rows: int, dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pages = "\n".join(page.read_text("utf-8") for page in sorted(PAGES.glob("*.md")))
    tokens = torch.tensor(tokenizer(pages[:200_000])["input_ids"])
    for fault in FAULTS:
        counts: Counter[str] = Counter()
        started = time.process_time()
        for seed in range(rows):
            draw = random.Random(seed)
            lengths = [draw.randint(180, 320) for _ in range(3)]
            starts = [draw.randrange(len(tokens) - length) for length in lengths]
            parts = []
            for start, length in zip(starts, lengths, strict=True):
                parts.append(tokens[start : start + length])
            call = call_of(torch.cat(parts), lengths, fault, dtype)
            watch = minise.guard(model, lambda words, again: None, documents=lengths)
            with torch.no_grad(), patch.object(functional, "linear", rounded_once):
                model(**call)
            watch.remove()
            said = "equal" if watch.compared else "no verdict"
            counts["not equal" if watch.mismatches else said] += 1
        seconds = time.process_time() - started
        print(f"{fault}: {dict(counts)}; {seconds:.0f} s of CPU", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    main(sys.argv[1], count, getattr(torch, sys.argv[3] if len(sys.argv) > 3 else "bfloat16"))
