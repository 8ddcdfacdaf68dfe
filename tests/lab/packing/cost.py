"""What `guard` costs a training step: CPU seconds of a step in which it looks beside those of one
in which it does not, in a LLaMA of 4 layers, with rows of 4, 16 and 64 documents of 32 tokens.

    python -m tests.lab.packing.cost
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import transformers

import minise

STEPS = 3
LENGTH = 32  # tokens of a document


def step(model: Any, count: int) -> float:
    """CPU seconds of a step on one row of so many documents."""
    ids = torch.randint(5, 1000, (1, count * LENGTH))
    positions = torch.arange(LENGTH).repeat(count)[None]
    start = time.process_time()
    model(input_ids=ids, position_ids=positions, labels=ids, use_cache=False).loss.backward()
    model.zero_grad()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(**sizes, **heads, vocab_size=1000)
    model = transformers.LlamaForCausalLM(config).train()
    for count in (4, 16, 64):
        plain = median(step(model, count) for _ in range(STEPS))
        watch = minise.guard(model, "raise", every=1)
        looking = median(step(model, count) for _ in range(STEPS))
        watch.remove()
        times = looking / plain
        words = f"{count} documents, {count * LENGTH} tokens: {plain:.2f} s, with a look"
        share = 100 * (times - 1) / 1000
        print(f"{words} {times:.1f} times as long; one look in 1,000 steps: {share:.2f}%")


if __name__ == "__main__":
    main()
