"""Time the engines beside transformers, in turn, on work like that of the data sets.

    python -m tools.bench --model FOLDER [--dtype bfloat16] [--work qasc,long] [--rounds 5]

Prints a Markdown table for each kind of work: CPU seconds and wall seconds of one question,
medians with the smallest and largest, and each way's CPU time over the tree's. The prompts are
random tokens in the shape of real ones: a question, and groups of choices that the trials share.
transformers is timed where it is installed: all prompts one by one, and with the question's keys
and values kept.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median

import torch

from minise import LanguageModel, branch_logits, load
from minise.engines import token_counts
from minise.exact import machine
from minise.grouping import random_partitions


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
    "biology": Work(10, 5, 40, question=60, choice=14),
    "long": Work(8, 4, 20, question=1400, choice=6),
}
LABELS = range(10, 15)  # ids that are read

Prompts = tuple[list[int], list[list[int]]]  # prefix and branches
Way = Callable[[], object]


def prompts_of(work: Work, vocab_size: int) -> Prompts:
    """The token ids of a question's groups: a label and a text for each choice, then a cue."""
    draw = random.Random(0)

    def text(length: int) -> list[int]:
        return [draw.randrange(20, vocab_size) for _ in range(length)]

    question, cue = text(work.question), text(3)
    choices, null = [text(work.choice) for _ in range(work.K)], text(6)
    branches = []
    for group in random_partitions(work.K, work.m, work.N, 0, "bench").flat:
        listed = [choices[i] for i in group] + [null]
        lines = [token for label, one in enumerate(listed) for token in (label, *one)]
        branches.append(lines + cue)
    return question, branches


def our_ways(lm: LanguageModel, prompts: Prompts) -> dict[str, Way]:
    """The engines but plain, whose memory grows with the square of the tokens."""

    def way(engine: str) -> Way:
        return lambda: branch_logits(lm, *prompts, engine, columns=LABELS)

    return {engine: way(engine) for engine in ("tree", "dense", "separate")}


def library_ways(folder: str, dtype: torch.dtype, prompts: Prompts) -> dict[str, Way]:
    """The reference library's own ways to the same logits."""
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    prefix, branches = torch.tensor([prompts[0]]), [torch.tensor([ids]) for ids in prompts[1]]

    def one_by_one() -> object:
        whole = [torch.cat([prefix, branch], dim=1) for branch in branches]
        return [model(ids, logits_to_keep=1).logits for ids in whole]

    def kept_prefix() -> object:
        cache = DynamicCache(config=model.config)
        model(prefix, past_key_values=cache, logits_to_keep=1)
        outputs = []
        for branch in branches:
            again = copy.deepcopy(cache)
            outputs.append(model(branch, past_key_values=again, logits_to_keep=1).logits)
        return outputs

    return {"transformers, one by one": one_by_one, "transformers, kept question": kept_prefix}


@torch.inference_mode()
def timed(ways: dict[str, Way], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """CPU and wall seconds of each way in each round. The ways run in turn; a first round, which
    warms up, is not kept."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time(), time.perf_counter()
            way()
            if number:
                now = time.process_time(), time.perf_counter()
                seconds[name].append((now[0] - began[0], now[1] - began[1]))
    return seconds


def table(seconds: dict[str, list[tuple[float, float]]]) -> str:
    """Markdown: a row for each way."""
    rows = ["| way | CPU seconds | wall seconds | CPU time over the tree's |", "|---|---|---|---|"]
    tree = median(cpu for cpu, _ in seconds["tree"])
    for name, pairs in seconds.items():
        columns = []
        for values in zip(*pairs, strict=True):
            columns.append(f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        ratio = median(cpu for cpu, _ in pairs) / tree
        rows.append(f"| {name} | {' | '.join(columns)} | {ratio:.2f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="weights/tiny-llama", help="a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--work", default="qasc,biology,long")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    lm = load(args.model, dtype=dtype)
    print(f"{args.model}, {args.dtype}, {args.rounds} rounds. {machine.in_words()}")
    for name in args.work.split(","):
        prompts = prompts_of(WORK[name], lm.config.vocab_size)
        counts = ", ".join(f"{engine} {n:,}" for engine, n in token_counts(*prompts).items())
        longest = len(prompts[0]) + max(map(len, prompts[1]))
        if longest > lm.config.max_position_embeddings:
            print(f"\n{name}: left out, prompts of {longest:,} tokens are too long for this model")
            continue
        ways = our_ways(lm, prompts)
        if find_spec("transformers"):
            ways |= library_ways(args.model, dtype, prompts)
        print(f"\n{name}: {len(prompts[1])} prompts; tokens: {counts}\n")
        print(table(timed(ways, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
