"""Print the tables of docs/sequential.md from finished runs of the experiment `sequential`.

    python -m tools.study_sequential runs/llama-8 runs/mistral-8 runs/qwen2-8 runs/llama-6 ...

For each run: what stopping by each rule costs and how often it is wrong; the errors over all runs;
the goal, tokens for a share of predictions equal to the exact one; and the block sizes.
"""

from __future__ import annotations

import json
import sys
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from tools.markdown import tell

Cell = dict[str, Any]
FIXED = (
    *(("fixed", 20, "random"), ("fixed", 80, "random")),
    *(("fixed", 8, "balanced"), ("fixed", 20, "balanced")),
)
VALID = tuple(("alpha", alpha, "random") for alpha in (0.1, 0.05, 0.01))
PLAIN = tuple(("z", z, "balanced") for z in (0.5, 0.75, 1, 1.5, 2))
OTHER = (("alpha", 0.05, "balanced"), ("z", 1, "random"))
SHARES = (0.95, 0.96, 0.97, 0.98, 0.99)


class Run:
    """One run's cells."""

    def __init__(self, folder: Path) -> None:
        held = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        ((self.task, study),) = held["sequential"].items()
        self.name = f"{Path(held['config']['model']).name}, {self.task}"
        self.cells, self.exact, self.n = study["cells"], study["exact"], study["questions"]
        self.block = 2 * study["group_size"]

    def find(self, **wanted: Any) -> list[Cell]:
        return [c for c in self.cells if all(c[name] == value for name, value in wanted.items())]

    def cell(self, rule: str, level: float, grouping: str, most: int = 80) -> Cell:
        where = {"rule": rule, "level": level, "grouping": grouping}
        if rule != "fixed":
            where |= {"block": self.block, "max_trials": most}
        (found,) = self.find(**where)
        return found

    def take(self, share: float, **wanted: Any) -> float | None:
        """How many tokens cells take for this share of equal predictions, interpolated; None if
        none of them has it."""
        cells = sorted(self.find(**wanted), key=lambda cell: float(cell["tokens"]))
        reached = np.maximum.accumulate([cell["same"] for cell in cells])
        shares, first = np.unique(reached, return_index=True)
        tokens = [cells[i]["tokens"] for i in first]
        return None if share > shares[-1] else float(np.interp(share, shares, tokens))


def percent(value: float, interval: list[float] | None = None) -> str:
    told = f"{100 * value:.1f}"
    return told if interval is None else f"{told} [{', '.join(map(percent, interval))}]"


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
        "-" if fixed else percent(1 - cell["decided"]),
        "-" if fixed else percent(cell["error"], cell["error_interval"]),
        percent(cell["same"], cell["same_interval"]),
        "-" if of_fixed is None else f"{of_fixed:.2f}",
        *(percent(cell["accuracy"]), f"{cell['nll']:.3f}", f"{100 * cell['bias']:+.1f}"),
    ]


HEADS = ["stop at", "trials: mean (10, 50, 90%)", "tokens: mean (10, 50, 90%)", "undecided"]
HEADS += ["decided wrongly", "as exact", "of fixed", "accuracy", "NLL", "bias"]


def reached(run: Run, share: float, rule: str, grouping: str) -> tuple[float | None, str]:
    """The tokens that a rule takes for a share, with the fewest trials allowed that reach it; and a
    note if these are not 80."""
    for most, note in ((80, ""), (320, " (320)")):
        where = {"rule": rule, "grouping": grouping, "block": run.block, "max_trials": most}
        if (own := run.take(share, **where)) is not None:
            return own, note
    return None, ""


def goal(run: Run, share: float, rule: str, grouping: str) -> str:
    """Tokens of a rule over those of fixed numbers of trials."""
    own, note = reached(run, share, rule, grouping)
    if own is None:
        return "-"
    fixed = run.take(share, rule="fixed", grouping="random")
    if fixed is None:
        return f"{own:,.0f}, not reached{note}"
    return f"{own:,.0f} of {fixed:,.0f} = {own / fixed:.2f}{note}"


def of_twenty(run: Run, share: float) -> str:
    """Tokens of the plain rule over those of 20 random trials."""
    own, note = reached(run, share, "z", "balanced")
    twenty = run.cell("fixed", 20, "random")["tokens"]
    return "-" if own is None else f"{own / twenty:.2f}{note}"


def errors(runs: list[Run], rule: str, level: float, grouping: str) -> str:
    """The share of questions decided wrongly over all runs, as if they were independent."""
    wrong = sum(run.cell(rule, level, grouping)["error"] * run.n for run in runs)
    n = sum(run.n for run in runs)
    interval = binomtest(ceil(round(wrong, 6)), n).proportion_ci()
    return f"{100 * wrong / n:.2f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}] of {n:,}"


def main() -> None:
    runs = [Run(Path(folder)) for folder in sys.argv[1:]]
    rules = (*FIXED, *VALID, OTHER[0], *PLAIN, OTHER[1])
    for run in runs:
        exact = f"accuracy {percent(run.exact['accuracy'])}, NLL {run.exact['nll']:.3f}"
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
            where = {"rule": rule, "level": level, "grouping": grouping, "max_trials": 80}
            found = [run.find(block=block, **where)[0] for block in sizes]
            told = [f"{c['tokens']:,.0f}, {percent(c['same'])}" for c in found]
            rows.append([f"{rule} = {level:g}, {grouping}", *told])
        tell(
            f"{run.name}: tokens and share as exact, by the trials of a round:",
            ["", *map(str, sizes)],
            rows,
        )


if __name__ == "__main__":
    main()
