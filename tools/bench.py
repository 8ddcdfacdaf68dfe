"""Time the engines beside transformers, in turn, on work like that of the data sets.

    python -m tools.bench --model FOLDER [--dtype bfloat16] [--work qasc,1400] [--rounds 5]

Prints a Markdown table for each kind of work: CPU seconds and wall seconds of one question,
medians with the smallest and largest, and each way's CPU time over the tree's. The prompts are
random tokens in the shape of real ones: a question, and groups of choices that the trials share. A
number as work is that of a long beginning's tokens, before choices like QASC's. transformers is
timed where it is installed: with the question's keys and values kept, for one prompt after the
other and for 8 or 40 in a batch; short questions also with all prompts one by one.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from inspect import signature
from statistics import median

import torch
import torch.nn.functional as F

from minise import LanguageModel, branch_logits, load
from minise.engines import token_counts
from minise.grouping import random_partitions
from minise.verify.report import in_words


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
}
MOST = 1 << 16  # tokens whose keys a batch may hold
SHORT = 100  # tokens of a question, up to which whole prompts are run one by one
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

    short = len(prompts[0]) <= SHORT
    return {engine: way(engine) for engine in ("tree", "dense", "separate")[: 3 if short else 1]}


def library_ways(folder: str, dtype: torch.dtype, prompts: Prompts) -> dict[str, Way]:
    """The reference library's own ways to the same logits."""
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    prefix, branches = torch.tensor([prompts[0]]), [torch.tensor([ids]) for ids in prompts[1]]

    def one_by_one() -> object:
        whole = [torch.cat([prefix, branch], dim=1) for branch in branches]
        return [model(ids, logits_to_keep=1).logits for ids in whole]

    named = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"

    def kept_prefix(size: int) -> object:
        """Branches in batches of `size`, filled up at the right, where nobody sees it."""
        cache = DynamicCache(config=model.config)
        model(prefix, logits_to_keep=1, **{named: cache})
        outputs = []
        for start in range(0, len(branches), size):
            some, again = branches[start : start + size], copy.deepcopy(cache)
            if size > 1:
                again.batch_repeat_interleave(len(some))
            ends = torch.tensor([branch.shape[1] - 1 for branch in some])
            longest = int(ends.max()) + 1
            ids = torch.cat([F.pad(one, (0, longest - one.shape[1])) for one in some])
            place = torch.arange(prefix.shape[1] + longest)
            mask = (place <= prefix.shape[1] + ends[:, None]).long()
            more = {} if size == 1 else {"attention_mask": mask}
            hidden = model.model(ids, **{named: again}, **more).last_hidden_state
            outputs.append(model.lm_head(hidden[torch.arange(len(some)), ends]))
        return outputs

    ways: dict[str, Way] = {}
    for size in (1, 8, 40):
        if size * prefix.shape[1] < MOST:
            ways[f"transformers, kept question, {size} at once"] = partial(kept_prefix, size)
    if prefix.shape[1] <= SHORT:
        ways["transformers, one by one"] = one_by_one
    return ways


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
    parser.add_argument("--work", default="qasc,biology,500,1400,2800,8000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    lm = load(args.model, dtype=dtype)
    print(f"{args.model}, {args.dtype}, {args.rounds} rounds. {in_words()}")
    for name in args.work.split(","):
        work = WORK[name] if name in WORK else replace(WORK["qasc"], question=int(name))
        prompts = prompts_of(work, lm.config.vocab_size)
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
