"""Time forward passes that hold several questions, against a pass for each.

    python tools/time_passes.py --model weights/tiny-llama

Prints the time of each way as a share of one question a pass, medians of alternating rounds: why
`minise eval` puts four standard prompts, but one ensemble, into a pass.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from functools import partial

import torch

from minise import LanguageModel, load
from minise.bench.measure import timed
from minise.ensemble import Plan
from minise.evaluation.methods import Method
from minise.evaluation.miniature import evaluation_questions

QUESTIONS = 32


def answer_all(lm: LanguageModel, method: Method, plans: Sequence[Plan], size: int) -> None:
    """Run all plans, `size` in a pass."""
    for start in range(0, len(plans), size):
        method.logits(lm, plans[start : start + size])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="weights/tiny-llama")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    lm = load(args.model, device=args.device)
    questions = evaluation_questions(QUESTIONS, 8, seed=1000)
    print(f"{torch.get_num_threads()} threads, {args.device}; share of the time of one a pass")
    for kind in ("standard", "self-ensemble"):
        method = Method(kind, kind)
        plans = [method.plan(lm, question, 0) for question in questions]
        seconds: dict[int, list[float]] = {size: [] for size in (1, 2, 4, 8)}
        for _ in range(args.rounds):
            for size, times in seconds.items():
                work = partial(answer_all, lm, method, plans, size)
                times.append(timed(work, torch.device(args.device)))
        medians = {size: statistics.median(times) for size, times in seconds.items()}
        shares = ", ".join(f"{size} a pass {t / medians[1]:.2f}" for size, t in medians.items())
        print(f"{kind}: {shares}")


if __name__ == "__main__":
    main()
