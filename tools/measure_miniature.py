"""Measure a checkpoint of the miniature world on held-out questions.

    python tools/measure_miniature.py weights/tiny-llama --questions 500 --seed 0

For each number of choices: accuracy of standard inference and of Self-Ensemble (m=4, N=20) on the
same questions, with 95% Wilson intervals, and how many questions only one of the two got right.
"""

from __future__ import annotations

import argparse
import math
import time

from tqdm import tqdm

from minise import load, self_ensemble, standard
from minise.evaluation.miniature import evaluation_questions


def wilson(right: int, n: int) -> str:
    """Accuracy in percent with its 95% Wilson score interval."""
    z, p = 1.96, right / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return f"{100 * p:5.1f} [{100 * (centre - half):.1f}, {100 * (centre + half):.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the questions and of the groups")
    parser.add_argument("--choices", type=int, nargs="+", default=[2, 4, 6, 8])
    args = parser.parse_args()
    lm = load(args.model)
    began = time.time()
    print(" K    n  standard             Self-Ensemble        only standard / only ensemble right")
    for k in args.choices:
        questions = evaluation_questions(args.questions, k, args.seed)
        right = []
        for question in tqdm(questions, desc=f"K={k}", disable=None, leave=False):
            one = standard(lm, question).prediction == question.answer
            other = self_ensemble(lm, question, seed=args.seed).prediction == question.answer
            right.append((one, other))
        n, alone = len(right), sum(one for one, _ in right)
        together = sum(other for _, other in right)
        print(
            f"{k:2} {n:4}  {wilson(alone, n):20} {wilson(together, n):20} "
            f"{sum(a and not b for a, b in right)} / {sum(b and not a for a, b in right)}"
        )
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
