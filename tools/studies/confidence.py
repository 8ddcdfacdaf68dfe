"""The plan "is confidence mitigated?" (docs/confidence.md), counted from records.

python -m tools.studies.confidence [RUN-QASC [RUN-BANKING]]

Without a folder, standard inference is that of answers/. With one, of those shards of the run that
are complete. A set without either is not counted. Prints the tables as Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minise.lab.evaluation.metrics import holm
from minise.lab.evaluation.rows import read_rows
from minise.lab.methods.saved import SavedAnswer
from tools import markdown
from tools.studies.measures import IN_PERCENT, MEASURES, Array, Told, over, under
from tools.studies.records import RECORDS, RESAMPLES, answers_of

LEVEL = 0.05  # of the AUROC
ARMS = {
    "QASC": ("verdict-qasc-qwen15/qasc-", "confidence-qasc-qwen15/qasc-standard"),
    "Banking77": (
        "verdict-banking-qwen15/banking77-k20-",
        "confidence-banking-qwen15/banking77-k20-standard",
    ),
}


# The readings of f. Each is given the probabilities of all prompts, by trial (N, n, K), and those
# of the null option in the prompt that lists the choice, in the same shape.


def score(p: Array, null: Array) -> Array:
    return p.mean(axis=0)


def score_by_sum(p: Array, null: Array) -> Array:
    return by_sum(p.mean(axis=0))


def with_null(p: Array, null: Array) -> Array:
    scores = p.mean(axis=0)
    mean_null = null.mean(axis=(0, 2))  # the prompts list equally many choices
    return scores / (scores.sum(axis=1) + mean_null)[:, None]


def no_null(p: Array, null: Array) -> Array:
    return (p / (1 - null)).mean(axis=0)


def geometric(p: Array, null: Array) -> Array:
    return by_sum(np.exp(np.log(p).mean(axis=0)))


def odds(p: Array, null: Array) -> Array:
    return by_sum(np.exp((np.log(p) - np.log(null)).mean(axis=0)))


READINGS: dict[str, Callable[[Array, Array], Array]] = {
    "score": score,
    "score / sum": score_by_sum,
    "with null": with_null,
    "no null": no_null,
    "geometric": geometric,
    "odds": odds,
}


def by_sum(p: Array) -> Array:
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def by_trial(answers: Sequence[SavedAnswer]) -> tuple[Array, Array]:
    """The probability of each choice, and of the null option beside it: (N, n, K) each."""
    first = answers[0].groups
    assert first is not None, "recorded without its groups"
    N = 1 + max(group.trial for group in first)
    p = np.full((N, len(answers), len(answers[0].normalized)), np.nan)
    null = p.copy()
    for i, answer in enumerate(answers):
        for group in answer.groups or ():
            p[group.trial, i, group.choices] = group.probabilities
            null[group.trial, i, group.choices] = group.null
    assert not np.isnan(p).any()
    assert not np.isnan(null).any()
    return p, null


# The measures. Each is a number of f and of who is right.


@dataclass(frozen=True)
class Number:
    value: float
    low: float
    high: float
    p: float  # that it is 0

    def written(self, sign: str = "") -> str:
        ends = f"[{self.low:{sign}.3f}, {self.high:{sign}.3f}]"
        return f"{self.value:{sign}.3f} {ends}"


def measured(a: Told, name: str, b: Told | None = None) -> Number:
    """A measure of a, or that of a minus that of b, with what the plan says of intervals."""
    of = MEASURES[name]
    parts = [(a.f, a.right, 1)]
    if b is not None:
        parts.append((b.f, b.right, -1))
    generator = np.random.default_rng(0)
    n = len(a.answers)
    drawn = []
    for _ in range(RESAMPLES):
        some = generator.integers(0, n, n)
        drawn.append(sum(sign * of(f[some], right[some]) for f, right, sign in parts))
    low, high = np.quantile(drawn, [0.025, 0.975])
    side = min(np.mean(np.array(drawn) <= 0), np.mean(np.array(drawn) >= 0))
    value = sum(sign * of(f, right) for f, right, sign in parts)
    return Number(value, float(low), float(high), min(1.0, float(2 * side) + 1 / RESAMPLES))


def told(name: str, standard: Sequence[SavedAnswer]) -> dict[str, Told]:
    """All methods and readings on the questions of `standard`, in its order."""
    start = ARMS[name][0]
    answers = np.array([answer.answer for answer in standard])
    found = {"standard": Told(np.array([one.normalized for one in standard]), answers)}
    for arm, cell in (("A0", "full-list-null"), ("B", "short-lists")):
        of_question = {answer.question_hash: answer for answer in answers_of(start + cell)}
        same = [of_question[one.question_hash] for one in standard]
        assert [one.answer for one in same] == answers.tolist()
        p, null = by_trial(same)
        for reading, of in READINGS.items():
            found[f"{arm}, {reading}"] = Told(of(p, null), answers)
    return found


def standard_of(name: str, run: Path | None) -> list[SavedAnswer]:
    if run is None:
        return answers_of(ARMS[name][1])
    answers = []
    for path in sorted(run.glob("samples-*-standard.shard-*.jsonl")):
        i, n = map(int, path.stem.split(".shard-")[1].split("-of-"))
        rows = [row for row in read_rows(path) if isinstance(row, SavedAnswer)]
        questions = {"QASC": 614, "Banking77": 1000}[name]
        if len(rows) == len(range(i, questions, n)):
            answers += rows
    return answers


def comparisons(by_set: dict[str, dict[str, Told]]) -> list[tuple[str, Number | None]]:
    """The first one, and the seven that Holm's correction is over; None: not asked yet."""
    q = by_set["QASC"]
    b, a0, standard = q["B, score"], q["A0, score"], q["standard"]
    rows: list[tuple[str, Number | None]] = [
        ("QASC: AUROC, B", measured(b, "AUROC", standard)),
        ("QASC: equal ratio, B", measured(b, "equal", standard)),
        (
            "QASC: under on one scale, B",
            measured(b.on_one_scale(), "under", standard.on_one_scale()),
        ),
        ("QASC: over on one scale, B", measured(b.on_one_scale(), "over", standard.on_one_scale())),
        ("QASC: AUROC, B by score / sum", measured(q["B, score / sum"], "AUROC", standard)),
        ("QASC: AUROC, A0", measured(a0, "AUROC", standard)),
    ]
    for label, name in (("AUROC", "AUROC"), ("equal ratio", "equal")):
        number = None
        if "Banking77" in by_set:
            m = by_set["Banking77"]
            number = measured(m["B, score"], name, m["standard"])
        rows.append((f"Banking77: {label}, B", number))
    return rows


def verdict(one: Number) -> str:
    said = []
    if one.p < 0.05:
        said.append("mitigated" if one.value > 0 else "worse")
    if one.low >= -LEVEL and one.high <= LEVEL:
        said.append("level")
    return ", ".join(said) or "open"


def of_paper(method: Told, standard: Told) -> str:
    """What the plan says of the paper's own table."""
    both = [measured(method, name, standard) for name in ("under", "over")]
    falls = [one.high < 0 for one in both]
    grows = [one.low > 0 for one in both]
    if all(falls):
        return "both fall, as in the paper"
    return "the scale moved" if any(falls) and any(grows) else "open"


def as_methods(methods: dict[str, Told], names: Sequence[str]) -> str:
    """The methods of these names, of which the first is what the others are compared with."""
    body = []
    for name in names:
        one = methods[name]
        row = [name, f"{100 * one.right.mean():.1f}"]
        for title, of in MEASURES.items():
            value = of(one.f, one.right)
            row.append(f"{100 * value:.1f}" if title in IN_PERCENT else f"{value:.3f}")
        matched_one = one.on_one_scale()
        row += [f"{100 * of(matched_one.f, one.right):.1f}" for of in (under, over)]
        row.append("-" if name == names[0] else of_paper(one, methods[names[0]]))
        body.append(row)
    return markdown.table(
        ["f", "right", *MEASURES, "under, one scale", "over, one scale", "at .5"], body
    )


def as_tests(rows: Sequence[tuple[str, Number | None]]) -> str:
    corrected = holm([1.0 if one is None else one.p for _, one in rows[1:]])
    body = []
    for i, (label, one) in enumerate(rows):
        if one is None:
            body.append([label, "not asked", "-", "-", "-"])
            continue
        p = one.p if i == 0 else corrected[i - 1]
        body.append(
            [label, one.written("+"), f"{one.p:.2g}", f"{p:.2g}", verdict(one) if i == 0 else "-"]
        )
    return markdown.table(["minus standard", "difference", "p", "Holm", "what is said"], body)


def kept() -> dict[str, dict[str, Told]]:
    """All methods and readings of the sets whose standard inference is in answers/."""
    by_set = {}
    for name, (_, cell) in ARMS.items():
        if (RECORDS / f"{cell}.jsonl.gz").exists():
            by_set[name] = told(name, standard_of(name, None))
    return by_set


def main(words: Sequence[str] | None = None) -> int:
    folders = [Path(word) for word in (sys.argv[1:] if words is None else words)]
    by_set = {} if folders else kept()
    for name, folder in zip(ARMS, folders, strict=False):
        by_set[name] = told(name, standard_of(name, folder))
    for name, methods in by_set.items():
        print(f"{name}: {len(methods['standard'].answers)} questions\n")
        print(f"{as_methods(methods, [*methods])}\n")
    print(as_tests(comparisons(by_set)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
