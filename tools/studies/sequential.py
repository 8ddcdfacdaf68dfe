"""What stopping when it is decided costs, and how often it is wrong, against the exact expectation.

    python -m minise eval --task miniature --cut-to 8 --group-size 4 --questions 200 \
        --method tools/studies/sequential.py:SequentialStudy --output-path runs/llama-8
    python -m tools.studies.sequential runs/llama-8 runs/mistral-8 ...

Run both at the root of the repository. All ordered groups of a question are run once (groupings.py
beside this file). Any rounds of groups, and the verdict of a rule on them, then follow from their
probabilities. So all rules, block sizes and repetitions take one exact run.

The program prints a table with all cells of each run, and the tables of docs/sequential.md: what
stopping by each rule costs and how often it is wrong; the errors over all runs; the goal, tokens
for a share of predictions equal to the exact one; and the block sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from math import ceil, log
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.stats import binomtest

from minise.engines import LanguageModel
from minise.evaluation.metrics import SMALLEST_PROBABILITY
from minise.grouping import Group, Groups, random_partitions
from minise.groupings.balanced import balanced_partitions
from minise.groupings.registry import GROUPINGS
from minise.method import Answer, Plan
from minise.methods.sample import Sample
from minise.methods.sequential import UntilDecided, fresh, log_wealth, standard_leads
from minise.report import tables
from minise.report.results import Results
from tools.markdown import tell
from tools.studies.facts import Array, share_interval
from tools.studies.groupings import (
    AllGroups,
    GroupingStudy,
    Study,
    by_cell,
    means,
    measure_notes,
    read_runs,
    sizes_of,
)

Cell = dict[str, Any]
BLOCKS = (3, 4, 5, 6, 7, 8, 10)
LEVELS: dict[str, tuple[float, ...]] = {"alpha": (0.1, 0.05, 0.01), "z": (0.5, 0.75, 1, 1.5, 2)}
FIXED = (3, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 640, 1280)
BALANCED = (8, 20, 40, 80)
MOST_TRIALS = (80, 320)  # the second for the default block alone
REPETITIONS = 4
_KEY = ("rule", "level", "grouping", "block", "max_trials")
# By repetition: the trials asked and the tokens they took. Means over the repetitions: the shares
# that are decided, predict as the exact expectation does ("same"), are decided but do not ("error")
# and are right; NLL (nats); the predicted choice's probability minus its exact one ("bias").
_LISTS = ("trials", "tokens")
_MEANS = ("decided", "same", "error", "accuracy", "nll", "bias")


class SequentialStudy(GroupingStudy):
    """Self-Ensemble over all ordered groups. The notes say where rules would have stopped."""

    name: ClassVar[str] = "sequential-study"

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """A cell for each rule with its level, grouping and block; rule "fixed" has a number of
        trials as its level and asks them in one pass."""
        groups = _Scored(lm, plan, answer)
        ids = [f"{plan.question.id}/{i}" for i in range(REPETITIONS)]
        cells = []
        for outcomes in zip(*(self._outcomes(groups, seed, id) for id in ids), strict=True):
            lists = {name: [one[name] for one in outcomes] for name in _LISTS}
            cells.append({**outcomes[0], **lists, **means(outcomes, _MEANS)})
        right = float(answer.prediction == groups.right)
        exact = {"accuracy": right, "nll": groups.nll(groups.exact)}
        facts = {"group_size": self.group_size, "repetitions": REPETITIONS}
        return {**facts, "exact": exact, "cells": cells}

    def _outcomes(self, groups: _Scored, seed: int, id: str) -> Iterator[Cell]:
        """Each cell in one repetition."""
        yield from self._fixed(groups, seed, id)
        m = self.group_size
        sizes = [*((block, MOST_TRIALS[0]) for block in BLOCKS), (2 * m, MOST_TRIALS[1])]
        for grouping, (block, most) in product(("random", "balanced"), sizes):
            yield from self._in_rounds(groups, seed, id, grouping, block, most)

    def _fixed(self, groups: _Scored, seed: int, id: str) -> Iterator[Cell]:
        """Fixed numbers of trials."""
        fixed = [("random", random_partitions, N) for N in FIXED]
        fixed += [("balanced", balanced_partitions, N) for N in BALANCED]
        for grouping, draw, N in fixed:
            drawn = draw(groups.K, self.group_size, N, seed, id)
            scores = groups.values(drawn.trials).mean(axis=0)
            cell = dict(zip(_KEY, ("fixed", N, grouping, N, N), strict=True))
            yield cell | groups.outcome(N, groups.tokens(drawn.flat), scores)

    def _in_rounds(
        self, groups: _Scored, seed: int, id: str, grouping: str, block: int, most: int
    ) -> Iterator[Cell]:
        """Each rule and level, in rounds of one size."""
        K, m = groups.K, self.group_size
        method = UntilDecided(m, max_trials=most, block=block, grouping=GROUPINGS[grouping])
        numbers = range(most // block)
        rounds = [method.draw(K, number, seed, id) for number in numbers]
        tokens = list(accumulate(groups.tokens_of_rounds(rounds)))
        values = np.stack([groups.values(one.trials) for one in rounds])  # (R, block, K)
        so_far = np.cumsum(values.mean(axis=1), axis=0) / np.arange(1, len(rounds) + 1)[:, None]
        leader = so_far.argmax(axis=1)
        for rule, level, excluded in _excluded(values, grouping == "random"):
            # Where the leader itself is excluded there is no decision.
            done = (excluded.sum(axis=1) == K - 1) & ~excluded[numbers, leader]
            decided = bool(done.any())
            at = int(done.argmax()) if decided else len(rounds) - 1
            cell = dict(zip(_KEY, (rule, level, grouping, block, most), strict=True))
            yield cell | groups.outcome((at + 1) * block, tokens[at], so_far[at], decided)


def _excluded(values_RBK: Array, independent: bool) -> Iterator[tuple[str, float, Any]]:
    """For each rule and level which choices are excluded after each round: (R, K) bool."""
    R, B, K = values_RBK.shape
    values_NK = values_RBK.reshape(R * B, K)
    if independent:
        most = np.maximum.accumulate(log_wealth(values_NK))[B - 1 :: B]
    else:
        most = np.maximum.accumulate(log_wealth(values_RBK.mean(axis=1)))
    leads = np.stack([standard_leads(values_NK[: r * B]) for r in range(1, R + 1)])
    for alpha in LEVELS["alpha"]:
        yield "alpha", alpha, most >= -log(alpha)
    for z in LEVELS["z"]:
        yield "z", z, leads > z


class _Scored(AllGroups):
    """Also how good an answer from some of the groups is."""

    def tokens_of_rounds(self, rounds: Sequence[Groups]) -> Iterator[int]:
        """Of each round: groups that an earlier one asked are not asked again."""
        before = set[Group]()
        for drawn in rounds:
            new = fresh(drawn, before)
            before.update(new)
            yield self.tokens(new)

    def nll(self, p: Array) -> float:
        return -log(max(float(p[self.right]), SMALLEST_PROBABILITY))

    def outcome(self, trials: int, tokens: int, scores: Array, decided: bool = False) -> Cell:
        """The numbers of a cell in one repetition."""
        p, best = scores / scores.sum(), int(scores.argmax())
        same = best == self.prediction
        return {
            "trials": trials,
            "tokens": tokens,
            "decided": decided,
            "same": same,
            "error": decided and not same,
            "accuracy": best == self.right,
            "nll": self.nll(p),
            "bias": float(p[best] - self.exact[best]),
        }


def summarise_sequential(samples: Sequence[Sample]) -> Study:
    """A task's study, from the samples of SequentialStudy: for each cell means over its questions
    under the first seed, and the quantiles of trials and tokens over questions and repetitions
    ("_quantiles": 10%, 50%, 90%).

    "error_interval": 95%, exact binomial, in which a fact counts once, and the errors are rounded
    up. "same_interval": 95%, bootstrap by fact. "tokens_of_fixed": how many tokens fixed numbers of
    random trials take for the same share of equal predictions, interpolated; None where none of
    them has that share.

    Raises InputError for notes that are not those of SequentialStudy.
    """
    return measure_notes(samples, _measure)


def _measure(notes: Sequence[dict[str, Any]], facts: Sequence[str]) -> dict[str, Any]:
    cells = []
    for records in by_cell(notes):
        cell = {name: records[0][name] for name in _KEY}
        for name in _LISTS:
            values = np.array([record[name] for record in records], dtype=np.float64)
            cell[name] = float(values.mean())
            cell[f"{name}_quantiles"] = np.quantile(values, [0.1, 0.5, 0.9]).tolist()
        cell |= means(records, _MEANS)
        same = [record["same"] for record in records]
        cell["same_interval"] = share_interval(same, facts).tolist()
        cell["error_interval"] = error_interval(cell["error"], len(set(facts)))
        cells.append(cell)
    fixed = [c for c in cells if c["rule"] == "fixed" and c["grouping"] == "random"]
    most = np.maximum.accumulate([cell["same"] for cell in fixed])
    shares, first = np.unique(most, return_index=True)
    tokens = [fixed[i]["tokens"] for i in first]
    for cell in cells:
        reached = cell["same"] <= shares[-1]
        of_fixed = float(np.interp(cell["same"], shares, tokens)) if reached else None
        cell["tokens_of_fixed"] = of_fixed
    exact = means([note["exact"] for note in notes], ("accuracy", "nll"))
    return {"exact": exact, "cells": cells}


def error_interval(share: float, facts: int) -> list[float]:
    """The exact 95% interval of a share of this many facts."""
    return [*binomtest(ceil(round(share * facts, 6)), facts).proportion_ci()]


# The table of a run

_STOPPED = (
    "As exact: predictions equal to those of infinitely many trials. Decided wrongly: of all. Of "
    "fixed: tokens over those of a fixed number of random trials with the same share. Bias: of the "
    "predicted choice's probability, in points"
)
_TYPICAL = (("alpha", 0.05), ("z", 1))  # levels of the rules


def table_of(run: Results, studies: dict[str, Study]) -> Iterator[tables.Part]:
    """Rules of stopping and fixed numbers of trials. Of other block sizes than the default one a
    level of each rule."""
    for task, study in studies.items():
        m, exact = study["group_size"], study["exact"]
        accuracy, nll = tables.percent(exact["accuracy"]), tables.number(exact["nll"])
        title = f"{run.model}, {task}, {sizes_of(study)}; exact: accuracy {accuracy}, NLL {nll}."
        for cell in study["cells"]:
            rule, level, of_fixed = cell["rule"], cell["level"], cell["tokens_of_fixed"]
            row = {
                "trials": cell["grouping"],
                "stop at": f"{rule} = {level:g}",
                "block": str(cell["block"]),
                "at most": str(cell["max_trials"]),
                "mean trials": f"{cell['trials']:.1f}",
                "median": f"{cell['trials_quantiles'][1]:.0f}",
                "tokens": f"{cell['tokens']:,.0f}",
                "tokens, 10, 50, 90%": ", ".join(f"{x:.0f}" for x in cell["tokens_quantiles"]),
                "undecided": f"{100 - 100 * cell['decided']:.1f}",
                "as exact": tables.percent(cell["same"], cell["same_interval"]),
                "decided wrongly": tables.percent(cell["error"], cell["error_interval"], ".2f"),
                "of fixed": f"{cell['tokens'] / of_fixed:.2f}" if of_fixed else "-",
                "accuracy": tables.percent(cell["accuracy"]),
                "NLL": tables.number(cell["nll"]),
                "bias": tables.percent(cell["bias"], form="+.1f"),
            }
            if rule == "fixed":
                row |= dict.fromkeys(("block", "undecided", "decided wrongly"), "-")
                row["stop at"] = f"N = {level}"
            if rule == "fixed" or cell["block"] == 2 * m or (rule, level) in _TYPICAL:
                yield f"{title} {_STOPPED}", row, {}


# The tables of docs/sequential.md

SHOWN_FIXED = (
    *(("fixed", 20, "random"), ("fixed", 80, "random")),
    *(("fixed", 8, "balanced"), ("fixed", 20, "balanced")),
)
VALID = tuple(("alpha", alpha, "random") for alpha in (0.1, 0.05, 0.01))
PLAIN = tuple(("z", z, "balanced") for z in (0.5, 0.75, 1, 1.5, 2))
OTHER = (("alpha", 0.05, "balanced"), ("z", 1, "random"))
SHARES = (0.95, 0.96, 0.97, 0.98, 0.99)


class Cells:
    """The cells of one run."""

    def __init__(self, run: Results, studies: dict[str, Study]) -> None:
        ((task, study),) = studies.items()
        self.name = f"{Path(run.raw['config']['model']).name}, {task}"
        self.cells, self.exact = study["cells"], study["exact"]
        self.questions, self.facts = study["questions"], study["facts"]
        self.block = 2 * study["group_size"]

    def find(self, **facts: Any) -> list[Cell]:
        return [c for c in self.cells if all(c[name] == value for name, value in facts.items())]

    def cell(self, rule: str, level: float, grouping: str, most: int = 80) -> Cell:
        facts = {"rule": rule, "level": level, "grouping": grouping}
        if rule != "fixed":
            facts |= {"block": self.block, "max_trials": most}
        (cell,) = self.find(**facts)
        return cell

    def tokens(self, share: float, **facts: Any) -> float | None:
        """How many tokens cells take for this share of equal predictions, interpolated; None if
        none of them has it."""
        cells = sorted(self.find(**facts), key=lambda cell: float(cell["tokens"]))
        reached = np.maximum.accumulate([cell["same"] for cell in cells])
        shares, first = np.unique(reached, return_index=True)
        tokens = [cells[i]["tokens"] for i in first]
        return None if share > shares[-1] else float(np.interp(share, shares, tokens))


def row(cell: Cell) -> list[str]:
    fixed = cell["rule"] == "fixed"
    trials, tokens = f"{cell['trials']:.1f}", f"{cell['tokens']:,.0f}"
    if not fixed:
        trials += f" ({', '.join(f'{x:.0f}' for x in cell['trials_quantiles'])})"
        tokens += f" ({', '.join(f'{x:,.0f}' for x in cell['tokens_quantiles'])})"
    of_fixed = cell["tokens"] / cell["tokens_of_fixed"] if cell["tokens_of_fixed"] else None
    if fixed and cell["grouping"] == "random":
        of_fixed = None
    return [
        f"{'N' if fixed else cell['rule']} = {cell['level']:g}, {cell['grouping']}",
        *(f"{cell['level']}" if fixed else trials, tokens),
        "-" if fixed else tables.percent(1 - cell["decided"]),
        "-" if fixed else tables.percent(cell["error"], cell["error_interval"]),
        tables.percent(cell["same"], cell["same_interval"]),
        "-" if of_fixed is None else f"{of_fixed:.2f}",
        *(tables.percent(cell["accuracy"]), f"{cell['nll']:.3f}", f"{100 * cell['bias']:+.1f}"),
    ]


HEADS = ["stop at", "trials: mean (10, 50, 90%)", "tokens: mean (10, 50, 90%)", "undecided"]
HEADS += ["decided wrongly", "as exact", "of fixed", "accuracy", "NLL", "bias"]


def reached(run: Cells, share: float, rule: str, grouping: str) -> tuple[float | None, str]:
    """The tokens that a rule takes for a share, with the fewest trials allowed that reach it; and a
    note if these are not 80."""
    for most, note in ((80, ""), (320, " (320)")):
        facts = {"rule": rule, "grouping": grouping, "block": run.block, "max_trials": most}
        tokens = run.tokens(share, **facts)
        if tokens is not None:
            return tokens, note
    return None, ""


def goal(run: Cells, share: float, rule: str, grouping: str) -> str:
    """Tokens of a rule over those of fixed numbers of trials."""
    tokens, note = reached(run, share, rule, grouping)
    if tokens is None:
        return "-"
    fixed = run.tokens(share, rule="fixed", grouping="random")
    if fixed is None:
        return f"{tokens:,.0f}, not reached{note}"
    return f"{tokens:,.0f} of {fixed:,.0f} = {tokens / fixed:.2f}{note}"


def of_twenty(run: Cells, share: float) -> str:
    """Tokens of the plain rule over those of 20 random trials."""
    tokens, note = reached(run, share, "z", "balanced")
    twenty = run.cell("fixed", 20, "random")["tokens"]
    return "-" if tokens is None else f"{tokens / twenty:.2f}{note}"


def errors(runs: Sequence[Cells], rule: str, level: float, grouping: str) -> str:
    """The share of questions decided wrongly over all runs. In its interval a fact counts once, as
    if all runs asked about the same ones."""
    n = sum(run.questions for run in runs)
    share = sum(run.cell(rule, level, grouping)["error"] * run.questions for run in runs) / n
    interval = error_interval(share, min(run.facts for run in runs))
    return f"{tables.percent(share, interval, '.2f')} of {n:,}"


def print_page(runs: Sequence[Cells]) -> None:
    """The tables of docs/sequential.md."""
    rules = (*SHOWN_FIXED, *VALID, OTHER[0], *PLAIN, OTHER[1])
    for run in runs:
        exact = f"accuracy {tables.percent(run.exact['accuracy'])}, NLL {run.exact['nll']:.3f}"
        tell(f"{run.name} (exact: {exact}):", HEADS, [row(run.cell(*rule)) for rule in rules])
    rows = [[f"{r} = {x:g}, {g}", errors(runs, r, x, g)] for r, x, g in (*VALID, *PLAIN, *OTHER)]
    tell("Decided wrongly, of all questions of all runs:", ["rule", "percent"], rows)
    names = ["as exact", *(run.name for run in runs)]
    for rule, grouping in (("z", "balanced"), ("alpha", "random")):
        rows = [[f"{s:.0%}", *(goal(run, s, rule, grouping) for run in runs)] for s in SHARES]
        tell(f"Tokens of {rule}, {grouping}, of those of fixed trials:", names, rows)
    rows = [[f"{s:.0%}", *(of_twenty(run, s) for run in runs)] for s in SHARES]
    tell("Tokens of z, balanced, of those of N = 20:", names, rows)
    for run in runs:
        sizes = sorted({c["block"] for c in run.find(rule="z", max_trials=80)})
        rows = []
        for rule, level, grouping in (VALID[1], OTHER[0], PLAIN[0], PLAIN[2], OTHER[1]):
            facts = {"rule": rule, "level": level, "grouping": grouping, "max_trials": 80}
            cells = [run.find(block=block, **facts)[0] for block in sizes]
            texts = [f"{cell['tokens']:,.0f}, {tables.percent(cell['same'])}" for cell in cells]
            rows.append([f"{rule} = {level:g}, {grouping}", *texts])
        title = f"{run.name}: tokens and share as exact, by the trials of a round:"
        tell(title, ["", *map(str, sizes)], rows)


def main() -> None:
    folders = [Path(folder) for folder in sys.argv[1:]]
    if not folders:
        sys.exit("give folders of finished runs of SequentialStudy")
    pairs = read_runs(folders, summarise_sequential)
    runs = [run for run, _ in pairs]
    print(tables.render_parts(runs, [table_of(run, of_run) for run, of_run in pairs]))
    print_page([Cells(run, of_run) for run, of_run in pairs])


if __name__ == "__main__":
    main()
