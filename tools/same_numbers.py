"""Show that a change of the code leaves every answer as it was.

    python -m tools.same_numbers BEFORE AFTER [--within 5e-6]

BEFORE and AFTER are folders of the same `minise eval`, one made before the change and one after it.
Prints for each samples file how many predictions differ, and the largest difference of a
probability. Exit status 1 if a prediction differs, a probability differs by more than `--within`, a
run has lines that the other has not, or nothing was compared.

Without equal bits the last digits may differ between machines. In bfloat16 a few predictions may.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTION = ("id", "seed", "question_hash")  # the fields that say which question a line answers


@dataclass(frozen=True)
class Comparison:
    """Of the lines of one file: how many there are, how many predictions differ, the largest
    difference of a probability, and whether both files answer the same questions."""

    lines: int
    predictions: int
    probability: float
    same_questions: bool


def compare(before: Path, after: Path) -> Comparison:
    """Compare two samples files line by line."""
    old = read(before)
    new = read(after)
    predictions = 0
    probability = 0.0
    same_questions = len(old) == len(new)
    for a, b in zip(old, new, strict=False):
        same_questions = same_questions and all(a[name] == b[name] for name in QUESTION)
        predictions += a["prediction"] != b["prediction"]
        for p, q in zip(a["normalized"], b["normalized"], strict=True):
            difference = abs(p - q)
            probability = max(probability, math.inf if math.isnan(difference) else difference)
    return Comparison(len(new), predictions, probability, same_questions)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--within", type=float, default=5e-6, help="of a probability")
    args = parser.parse_args()
    names = {path.name for path in args.before.glob("samples-*.jsonl")}
    names |= {path.name for path in args.after.glob("samples-*.jsonl")}
    failed = not names
    for name in sorted(names):
        before = args.before / name
        after = args.after / name
        if not (before.exists() and after.exists()):
            print(f"{name}: only one of the runs has it")
            failed = True
            continue
        found = compare(before, after)
        words = f"{found.lines} answers, {found.predictions} other predictions"
        words += f", probabilities within {found.probability:.1e}"
        if not found.same_questions:
            words += ", NOT the same questions"
        print(f"{name}: {words}")
        is_same = found.same_questions and not found.predictions
        failed = failed or not is_same or not found.probability <= args.within
    print("different" if failed else "the same")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
