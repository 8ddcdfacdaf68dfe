"""Time the parts of one answer, and what several questions, chunks and 4 bits change.

    python -m tools.bench.parts --model FOLDER [--dtype bfloat16] [--rounds 5]
        [--record docs/costs/parts.jsonl]

Prints Markdown tables of CPU seconds: medians of rounds, the ways of a table in turn. The question
is the one that `minise ask` asks (8 choices), by Self-Ensemble unless a table says otherwise.
--record adds a line with all of them to a file; docs/costs.md shows such lines (costs.py).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from minise import LocalModel, attention, load, pack
from minise.commands.options import QUESTION
from minise.lab.evaluation.peak import peak_of_memory
from minise.lab.evaluation.pipeline import join
from minise.method import SelfEnsemble, Standard
from minise.prompts import Prompts
from minise.verify.words import in_words
from tools import markdown
from tools.bench.ways import commit, in_turn

QUESTIONS_IN_A_PASS = (1, 2, 4, 8)
CHUNKS = (64, 128, 256, 512)  # queries of a chunk of attention

Ways = dict[str, Callable[[], Any]]


@torch.inference_mode()
def medians(ways: Ways, rounds: int) -> dict[str, float]:
    """Median CPU seconds of each way, in turn, after a round that warms up."""
    for way in ways.values():
        way()
    return {name: median(timing.cpu) for name, timing in in_turn(ways, rounds).items()}


def prompts_of(lm: LocalModel) -> Prompts:
    return SelfEnsemble().prompts(lm, QUESTION, 0)[1]


def parts(lm: LocalModel) -> Ways:
    """What `lm.logits` does for a question, step by step, and what comes before it."""
    prompts = prompts_of(lm)
    hidden = lm.hidden_at_ends(prompts.prefix, prompts.branches)
    return {
        "groups and their tokens": partial(prompts_of, lm),
        "tree, mask and positions": partial(pack, prompts.prefix, prompts.branches, tree=True),
        "these, and the pass": partial(lm.hidden_at_ends, prompts.prefix, prompts.branches),
        "logits of the labels, and the total": partial(lm.read_labels, hidden, prompts.label_ids),
        "all": lambda: lm.logits(prompts_of(lm)),
    }


def side_by_side(lm: LocalModel) -> Ways:
    """Standard inference for 8 questions, so many of them in a pass."""
    method = Standard()
    prompts = []
    for number in range(max(QUESTIONS_IN_A_PASS)):
        question = replace(QUESTION, text=f"{number}: {QUESTION.text}")
        prompts.append(method.prompts(lm, question, 0)[1])

    def run(size: int) -> None:
        for start in range(0, len(prompts), size):
            lm.logits(join(prompts[start : start + size]))

    return {str(size): partial(run, size) for size in QUESTIONS_IN_A_PASS}


def chunks(lm: LocalModel) -> Ways:
    """The pass of a question, with other numbers of queries in a chunk."""
    prompts = prompts_of(lm)

    def run(size: int) -> None:
        usual = attention.CHUNK
        attention.CHUNK = size
        lm.hidden_at_ends(prompts.prefix, prompts.branches)
        attention.CHUNK = usual

    return {str(size): partial(run, size) for size in CHUNKS}


def four_bits(lm: LocalModel, packed: LocalModel) -> Ways:
    prompts = prompts_of(lm)
    return {
        "as stored": partial(lm.hidden_at_ends, prompts.prefix, prompts.branches),
        "nf4": partial(packed.hidden_at_ends, prompts.prefix, prompts.branches),
    }


def table(title: str, seconds: dict[str, float], beside: str) -> str:
    """Markdown: a row for each way; its time, and as a part of the time of the way `beside`."""
    rows = []
    for name, one in seconds.items():
        rows.append([name, f"{one:.4f}", f"{one / seconds[beside]:.3f}"])
    return "\n" + markdown.table([title, "CPU seconds", f"by that of {beside}"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="weights/tiny-llama", help="a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path, help="add a line of JSON to this file")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = time.process_time()
    lm = load(args.model, dtype=args.dtype, device="cpu")
    loaded = time.process_time() - began
    print(f"{args.model}, {args.dtype}, {args.rounds} rounds. {in_words()}", flush=True)
    of_question = medians(parts(lm), args.rounds)
    print(table("one question", of_question, "all"), flush=True)
    peak = peak_of_memory(on_gpu=False) / 1e9
    print(f"\nLoaded in {loaded:.1f} s of CPU; at most {peak:.1f} GB of resident memory.")
    in_a_pass = medians(side_by_side(lm), args.rounds)
    print(table("8 questions by standard, in a pass", in_a_pass, "1"), flush=True)
    by_chunk = medians(chunks(lm), args.rounds)
    print(table("queries in a chunk", by_chunk, str(attention.CHUNK)), flush=True)
    began = time.process_time()
    packed = load(args.model, dtype=args.dtype, device="cpu", quantize="nf4")
    loaded_nf4 = time.process_time() - began
    by_weights = medians(four_bits(lm, packed), args.rounds)
    print(table("weights", by_weights, "as stored"))
    print(f"\nnf4 was loaded in {loaded_nf4:.1f} s of CPU.")
    if args.record:
        line = {
            "model": Path(args.model).name,
            "dtype": args.dtype,
            "machine": in_words(),
            "commit": commit(),
            "date": datetime.now(timezone.utc).date().isoformat(),
            "source": "recorded",
            "rounds": args.rounds,
            "load": loaded,
            "peak_gb": peak,
            "question": of_question,
            "in a pass": in_a_pass,
            "chunks": by_chunk,
            "load_nf4": loaded_nf4,
            "weights": by_weights,
        }
        with args.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
