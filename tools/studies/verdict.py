"""What the plan of the second experiment asks for (`git show 34a8292:docs/verdict.md`), counted
from the records: B - A0 for each number of orders.

Committed before an answer was looked at. docs/real.md shows the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from minise.lab.evaluation.metrics import holm
from tools import markdown
from tools.studies.records import RESAMPLES, answers_of, numbers, sign_p

ORDERS = 5
LEVEL = 3  # points
SETS = {
    "QASC": "verdict-qasc-qwen15/qasc-",
    "Banking77": "verdict-banking-qwen15/banking77-k20-",
}
ARMS = {"A0": "full-list-null", "B": "short-lists"}


@dataclass(frozen=True)
class Difference:
    """B - A0 over some questions. accuracy and interval: in shares, not in points."""

    questions: int
    accuracy: float
    low: float
    high: float
    p: float

    @property
    def points(self) -> str:
        low, high = 100 * self.low, 100 * self.high
        return f"{100 * self.accuracy:+.1f} [{low:+.1f}, {high:+.1f}]"


def right_shares(cell: str) -> dict[int, np.ndarray]:
    """For each number of orders, the share of the subsets of so many orders by whose mean the
    answer is right; one number for each question. A tie goes to the lower index."""
    answers = answers_of(cell)
    by_order = np.full((ORDERS, len(answers), len(answers[0].normalized)), np.nan)
    for i, answer in enumerate(answers):
        for group in answer.groups or ():
            by_order[group.trial, i, group.choices] = group.probabilities
    assert not np.isnan(by_order).any(), f"an order of {cell} has not all choices"
    right_choice = np.array([answer.answer for answer in answers])
    shares = {}
    for count in range(1, ORDERS):
        subsets = list(combinations(range(ORDERS), count))
        hits = np.zeros(len(answers))
        for subset in subsets:
            hits += by_order[list(subset)].mean(axis=0).argmax(axis=1) == right_choice
        shares[count] = hits / len(subsets)
    # All orders: the answer of the run itself. A record has four digits of a probability.
    predictions = np.array([answer.prediction for answer in answers])
    shares[ORDERS] = (predictions == right_choice).astype(float)
    return shares


def gains() -> dict[str, dict[int, np.ndarray]]:
    """For each set and number of orders, the questions' differences."""
    found = {}
    for name, start in SETS.items():
        cells = {arm: start + end for arm, end in ARMS.items()}
        ids = {arm: [answer.id for answer in answers_of(cell)] for arm, cell in cells.items()}
        assert ids["A0"] == ids["B"], f"{name}: the arms have different questions"
        shares = {arm: right_shares(cell) for arm, cell in cells.items()}
        found[name] = {n: shares["B"][n] - shares["A0"][n] for n in shares["B"]}
    return found


def difference(parts: list[np.ndarray]) -> Difference:
    """Over the questions of all parts; the bootstrap draws within each."""
    generator = np.random.default_rng(0)
    whole = np.concatenate(parts)
    means = []
    for _ in range(RESAMPLES):
        drawn = [part[generator.integers(0, len(part), len(part))] for part in parts]
        means.append(np.concatenate(drawn).mean())
    low, high = np.quantile(means, [0.025, 0.975])
    return Difference(len(whole), whole.mean(), low, high, sign_p(whole))


def verdict(one: Difference, p: float) -> str:
    """What the plan says of such a result."""
    said = []
    if p < 0.05:
        said.append("a short list helps" if one.accuracy > 0 else "a short list harms")
    if 100 * one.low >= -LEVEL and 100 * one.high <= LEVEL:
        said.append("level")
    return ", ".join(said) or "open"


def as_tests() -> str:
    """The first comparison, and each set with Holm's correction over the two."""
    by_set = gains()
    together = difference([one[ORDERS] for one in by_set.values()])
    rows = [("both sets together", together, together.p)]
    alone = {name: difference([one[ORDERS]]) for name, one in by_set.items()}
    corrected = holm([one.p for one in alone.values()])
    for (name, one), p in zip(alone.items(), corrected, strict=True):
        rows.append((f"{name} alone", one, p))
    body = []
    for name, one, p in rows:
        body.append([name, f"{one.questions:,}", one.points, f"{p:.2g}", verdict(one, p)])
    return markdown.table(["B - A0, N = 5", "questions", "points", "p", "what is said"], body)


def as_curve() -> str:
    """B - A0 for each number of orders."""
    by_set = gains()
    body = []
    for n in range(1, ORDERS + 1):
        row = [str(n), difference([one[n] for one in by_set.values()]).points]
        row += [difference([one[n]]).points for one in by_set.values()]
        body.append(row)
    return markdown.table(["N", "both sets together", *by_set], body)


def as_arms() -> str:
    """Accuracy for each number of orders, tokens, and where the probability is."""
    body = []
    for name, start in SETS.items():
        for arm, end in ARMS.items():
            values = numbers(start + end)
            row = [name, arm]
            row += [f"{100 * share.mean():.1f}" for share in right_shares(start + end).values()]
            row += [f"{values['tokens']:,.0f}"]
            row += [f"{100 * values[key]:.1f}" for key in ("on_labels", "null")]
            body.append(row)
    sizes = [f"N = {n}" for n in range(1, ORDERS + 1)]
    return markdown.table(["data", "arm", *sizes, "tokens", "on labels, %", "null, %"], body)
