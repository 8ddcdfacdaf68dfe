"""How close sampled groupings come to the exact expectation, and what they cost.

    python -m minise eval --task miniature --questions 100 \
        --method tools/studies/groupings.py:GroupingStudy --output-path runs/g
    python -m tools.studies.groupings runs/g

The method runs all ordered groups of a question once. The scores of any sample of groups then
follow from their probabilities: all groupings, numbers of trials and repetitions take one exact
run. The program prints a table of finished runs, and draws groupings.png in the first folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from minise.engines import LanguageModel
from minise.errors import InputError, one_line, say
from minise.evaluation.metrics import SMALLEST_PROBABILITY
from minise.evaluation.samples import DAMAGE, read_samples, samples_path
from minise.grouping import Group, Trial, make_groups
from minise.groupings.exact import all_ordered_groups
from minise.groupings.registry import GROUPINGS
from minise.layout import pack
from minise.method import Answer, Method, Plan, SelfEnsemble
from minise.methods.sample import Sample
from minise.question import Question
from minise.report.drawing import looks, sheet, style
from minise.report.results import Results, read_results
from minise.report.tables import Part, number, percent, render_parts
from tools.studies.facts import Array, resampled_sums

SAMPLED = ("random", "balanced")
TRIALS = (1, 2, 5, 7, 10, 14, 20, 28, 40, 80)
REPETITIONS = 16
_CELL = ("grouping", "trials", "variance", "accuracy", "nll", "tokens")
_CAPTION = (
    "Beside each point N: partitions of the choices into groups of m. Variance: mean squared "
    "distance of the scores from the expectation over all groups. Tokens: merged prompts. Below: "
    "how many random partitions have the variance of N balanced ones, with 95% bootstrap intervals "
    "by fact. "
)

Study = dict[str, Any]  # what `summarise_study` gives
Measure = Callable[[Sequence[dict[str, Any]], Sequence[str]], dict[str, Any]]


def trial_values(trials: Sequence[Trial], probabilities: Mapping[Group, Array], K: int) -> Array:
    """The probability that each trial gives each choice, (N, K), from those of each group."""
    values = np.empty((len(trials), K))
    for row, trial in enumerate(trials):
        for group in trial:
            values[row, list(group)] = probabilities[group]
    return values


@dataclass(frozen=True)
class GroupingStudy(Method):
    """Self-Ensemble over all ordered groups. The notes say how far samples of them are from it."""

    name: ClassVar[str] = "grouping-study"
    group_size: int = 4

    def plan(self, lm: LanguageModel, question: Question, seed: int = 0) -> Plan:
        return SelfEnsemble(self.group_size, grouping=all_ordered_groups).plan(lm, question, seed)

    def notes(self, lm: LanguageModel, plan: Plan, answer: Answer, seed: int) -> dict[str, Any]:
        """For each grouping and number of trials, means over the repetitions: the squared distance
        of the scores from the exact ones ("variance"), accuracy, NLL (nats), tokens. The
        last record is the exact grouping's, with 0 trials."""
        groups, id = AllGroups(lm, plan, answer), plan.question.id
        right, least = groups.right, SMALLEST_PROBABILITY
        rows: list[tuple[Any, ...]] = []
        for grouping, trials in product(SAMPLED, TRIALS):
            ids = [id, *(f"{id}/{i}" for i in range(REPETITIONS))]
            of_run, *drawn = [
                make_groups(groups.K, self.group_size, trials, seed, i, GROUPINGS[grouping])
                for i in ids
            ]
            scores = np.stack([groups.values(one.trials).mean(axis=0) for one in drawn])
            variance = float(np.mean((scores - answer.scores.numpy()) ** 2))
            accuracy = float(np.mean(scores.argmax(1) == right))
            nll = float(np.mean(-np.log(np.maximum(scores[:, right] / scores.sum(1), least))))
            tokens = groups.tokens(of_run.flat)
            rows.append((grouping, trials, variance, accuracy, nll, tokens))
        nll = -float(answer.probabilities[right].clamp_min(least).log())
        rows.append(("exact", 0, 0.0, float(answer.prediction == right), nll, groups.size))
        cells = [dict(zip(_CELL, row, strict=True)) for row in rows]
        return {"group_size": self.group_size, "repetitions": REPETITIONS, "cells": cells}


class AllGroups:
    """The probabilities of every ordered group of a question, and the tokens of its prompt."""

    def __init__(self, lm: LanguageModel, plan: Plan, answer: Answer) -> None:
        tree = pack(plan.prefix, plan.branches, tree=lm.counted_as("tree") == "tree")
        self.rows = dict(zip(plan.groups.flat, map(np.array, tree.paths()), strict=True))
        self.shares = {group.choices: group.probabilities.numpy() for group in answer.groups}
        self.size, self.K = len(tree.tokens), len(plan.question.choices)
        assert plan.question.answer is not None, "the questions of a task have answers"
        self.right, self.prediction = plan.question.answer, answer.prediction
        self.exact: Array = answer.probabilities.numpy()

    def values(self, trials: Sequence[Trial]) -> Array:
        """The probability that each trial gives each choice: (N, K)."""
        return trial_values(trials, self.shares, self.K)

    def tokens(self, groups: Sequence[Group]) -> int:
        """Of one pass of the engine tree."""
        used = np.zeros(self.size)
        for group in groups:
            used[self.rows[group]] = 1
        return int(used.sum())


def summarise_study(samples: Sequence[Sample]) -> Study:
    """A task's study, from the samples of GroupingStudy: means over its questions under the first
    seed.

    A balanced number of trials also gets "worth": how many random trials have its variance, with a
    95% bootstrap interval by fact ("worth_interval"), and how many tokens they take
    ("tokens_of_worth", None beyond the largest number measured). The variance of N random trials is
    that of one, divided by N: that one number is fitted on all N. Where no number of trials has a
    variance, because all groups are the same, a balanced number has no worth.

    Raises InputError for notes that are not those of GroupingStudy.
    """
    return measure_notes(samples, _measure)


def measure_notes(samples: Sequence[Sample], measure: Measure) -> Study:
    """A task's study, from the notes under the first seed: its sizes, and the numbers of
    `measure(notes, facts)`; `facts` says what each question is about. Raises InputError where the
    notes are not such as it reads."""
    try:
        read = [s for s in samples if s.notes is not None and s.seed == samples[0].seed]
        notes = [s.notes for s in read if s.notes is not None]
        facts = [s.cluster or s.id for s in read]
        sizes = {size: notes[0][size] for size in ("group_size", "repetitions")}
        sizes |= {"questions": len(notes), "facts": len(set(facts))}
        return {**sizes, **measure(notes, facts)}
    except DAMAGE as error:
        remedy = "delete the samples file, then go on with --resume"
        raise InputError(f"the notes are damaged ({one_line(error)}); {remedy}") from error


def sizes_of(study: Study) -> str:
    m, questions, facts = study["group_size"], study["questions"], study["facts"]
    return f"m = {m}, {questions} questions of {facts} facts x {study['repetitions']} repetitions"


def by_cell(notes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], ...]]:
    """For each cell its records, one of each question."""
    return list(zip(*(note["cells"] for note in notes), strict=True))


def means(records: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, float]:
    return {name: float(np.mean([record[name] for record in records])) for name in names}


def _measure(notes: Sequence[dict[str, Any]], facts: Sequence[str]) -> dict[str, Any]:
    cells = [{**records[0], **means(records, _CELL[2:])} for records in by_cell(notes)]
    variances = [np.array([one["variance"] for one in records]) for records in by_cell(notes)]
    both = list(zip(cells, variances, strict=True))
    random = [(cell, variance) for cell, variance in both if cell["grouping"] == "random"]
    trials, tokens = ([cell[name] for cell, _ in random] for name in ("trials", "tokens"))
    of_one = np.mean([cell["trials"] * variance for cell, variance in random], axis=0)
    for cell, variance in both:
        if cell["grouping"] == "balanced" and variance.mean() > 0:
            worth = float(of_one.mean() / variance.mean())
            resampled = resampled_sums(np.stack([of_one, variance], axis=1), facts)
            ratios = np.divide(*resampled[resampled[:, 1] > 0].T)
            inside = worth <= trials[-1]
            cell["worth"] = worth
            cell["worth_interval"] = np.quantile(ratios, [0.025, 0.975]).tolist()
            cell["tokens_of_worth"] = float(np.interp(worth, trials, tokens)) if inside else None
    return {"cells": cells}


def read_studies(
    folder: Path, run: Results, summarise: Callable[[Sequence[Sample]], Study]
) -> dict[str, Study]:
    """The study of each task of a run of one method. Raises InputError for another run, and for
    notes of another method, naming the file."""
    studies = {}
    for task, methods in run.raw["results"].items():
        if len(methods) != 1:
            raise InputError(f"{folder}: has {len(methods)} methods; give a run of the study alone")
        path = samples_path(folder, task, *methods)
        try:
            studies[task] = summarise(read_samples(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    return studies


def read_runs(
    folders: Sequence[Path], summarise: Callable[[Sequence[Sample]], Study]
) -> list[tuple[Results, dict[str, Study]]]:
    """The finished runs with the study of each task. Ends the program with one line and status 2
    where one cannot be read."""
    try:
        runs = [read_results(folder) for folder in folders]
        return [
            (run, read_studies(folder, run, summarise))
            for folder, run in zip(folders, runs, strict=True)
        ]
    except InputError as error:
        say(str(error))
        sys.exit(2)


def table_of(run: Results, studies: dict[str, Study]) -> Iterator[Part]:
    """Random and balanced groupings at equal N, and what a balanced N is worth in random trials."""
    for task, study in studies.items():
        what = "mean squared distance of the scores from the exact expectation"
        title = f"{run.model}, {task}, {sizes_of(study)}: {what}"
        most = max(cell["tokens"] for cell in study["cells"] if cell["grouping"] == "random")
        for cell in study["cells"]:
            exact = cell["grouping"] == "exact"
            side = "random" if exact else cell["grouping"]  # exact stands in the left columns
            texts = {
                f"{side}: tokens": f"{cell['tokens']:,.0f}",
                f"{side}: variance": f"{cell['variance']:.2e}" if cell["variance"] else "0",
                f"{side}: accuracy": percent(cell["accuracy"]),
                f"{side}: NLL": number(cell["nll"]),
            }
            if "worth" in cell:
                worth, tokens = cell["worth"], cell["tokens_of_worth"]
                texts["worth random trials"] = number(worth, cell["worth_interval"], ".1f")
                texts["which take tokens"] = f"{tokens:,.0f}" if tokens else f"over {most:,.0f}"
            yield title, {"N": "exact" if exact else str(cell["trials"])}, texts


def draw(runs: Sequence[tuple[Results, dict[str, Study]]]) -> Any:
    """Matplotlib's figure, with a panel for each model and task."""
    panels = [
        (f"{run.model}, {task}, m={study['group_size']}", study)
        for run, studies in runs
        for task, study in studies.items()
    ]
    rows = {
        "variance of the scores": ("tokens a question", 2.7),
        "worth random trials": ("trials N", 2.2),
    }
    return sheet(panels, _draw_panel, rows, _CAPTION)


def _draw_panel(study: Study, above: Any, below: Any) -> None:
    """The variance of the scores against the tokens spent; and what balanced trials are worth."""
    beside = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 7}
    styles = looks(("random", "balanced"))
    for grouping, look in styles.items():
        line = [cell for cell in study["cells"] if cell["grouping"] == grouping]
        x, y = ([cell[name] for cell in line] for name in ("tokens", "variance"))
        above.plot(x, y, label=grouping, **look.line)
        for cell in line:
            above.annotate(cell["trials"], (cell["tokens"], cell["variance"]), **beside)
    worthy = [cell for cell in study["cells"] if "worth" in cell]
    n, worth = ([cell[name] for cell in worthy] for name in ("trials", "worth"))
    bounds = np.array([cell["worth_interval"] for cell in worthy]).reshape(-1, 2).T
    below.plot(n, n, **styles["random"].line)
    below.errorbar(n, worth, abs(bounds - worth), **styles["balanced"].line)
    for ax in (above, below):
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:g}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print and draw the study of groupings.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of `minise eval`")
    folders = parser.parse_args().folders
    pairs = read_runs(folders, summarise_study)
    runs = [run for run, _ in pairs]
    print(render_parts(runs, [table_of(run, of_run) for run, of_run in pairs]), end="")
    with style():
        draw(pairs).savefig(folders[0] / "groupings.png")


if __name__ == "__main__":
    main()
