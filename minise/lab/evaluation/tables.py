"""The tables of a report. A cell is one task under one method of one run, with all its facts and
numbers; where the paper ran the same, its number stands beside."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from minise.errors import printable
from minise.lab.evaluation.experiments import EXPERIMENTS, NO_EXPERIMENT
from minise.lab.evaluation.metrics import LOSSES, NAMES, READ_OUT, SHARES
from minise.lab.evaluation.results import Results
from minise.template import LABELS

Cell = dict[str, Any]  # facts and numbers by their names: headings, and those of paper.json
NUMBERED = [*LABELS, *map(str, range(len(LABELS) + 1, 1000))]
PAPER = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Format:
    """How a number is written: `digits` as for `format`, after it is multiplied by `factor`."""

    digits: str
    factor: float = 1

    def write(self, number: float) -> str:
        return format(self.factor * number, self.digits)


PERCENT = Format(".1f", 100)
COUNT = Format(",.0f")
FORMATS = {  # of those that have other than three digits
    **dict.fromkeys((*SHARES, *READ_OUT), PERCENT),
    "on_labels_p5": PERCENT,
    "seeds_mean": Format(".2f", 100),
    "seeds_sd": Format(".2f", 100),
    "n": COUNT,
    "scored": COUNT,
    "tokens": COUNT,
    "peak_bytes": COUNT,
    "seconds": Format(".4f"),
}
COUNTS = ("asked", "n", "scored")  # of questions: an average has those of all its data sets
WITH_INTERVAL = (*SHARES, *LOSSES, "ece", "auroc")
EACH = ("model", "task", "method")
FIRST = ("n", "scored", "accuracy", "nll", "tokens")  # a terminal may have no room for more
EVERY_NUMBER = (*FIRST, *[name for name in NAMES if name not in FIRST], "on_labels_p5")


@dataclass(frozen=True)
class Table:
    """row: what a row is of. numbers: those shown. across: what has a column of its own."""

    title: str
    row: Sequence[str]
    numbers: Sequence[str]
    across: str = ""


TABLES = {
    "all": Table("All numbers", EACH, EVERY_NUMBER),
    "accuracy": Table("Accuracy", ("model", "task"), ["accuracy"], "method"),
    "weights": Table("Accuracy", ("checkpoint", "task"), ["accuracy"], "weights"),
    "sizes": Table("Accuracy by m and N", ("model", "task", "N"), ["accuracy"], "m"),
    "seeds": Table("Accuracy over seeds", EACH, ["seeds_mean", "seeds_sd", "accuracy", "flips"]),
    "costs": Table("Costs", EACH, ["tokens", "seconds", "peak_bytes", "accuracy"]),
}
BRACKETS = (
    "Brackets: 95% bootstrap intervals over questions, those about one fact drawn together "
    "(percentile, 1,000 resamples)."
)
READ = {  # what a column is, where its name does not say it
    "under": "under: of the right answers whose score, the mean (Eq. 2), is below 0.5.",
    "over": "over: of the wrong ones with one above 0.5.",
    "normalized_under": "normalized: the same by the score divided by the sum of all choices'.",
    "matched_under": "matched: at the temperature that is best for other questions.",
    "flips": "flips: of the questions with another prediction under another seed.",
    "matched_nll": "matched_nll: at the same temperature.",
    "auroc": "auroc: how often a right answer has a larger score than a wrong one; no scale.",
    "ece": "ece: 15 bins of equal width.",
}


def labels(runs: Sequence[Results]) -> list[str]:
    """The runs by their models; by their folders, where that does not tell them apart."""
    names = [run.facts.model.rpartition("weights/")[2] for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def cells_of(runs: Sequence[Results]) -> list[Cell]:
    cells = []
    for label, run in zip(labels(runs), runs, strict=True):
        for task, by_method in run.content["results"].items():
            for method, numbers in by_method.items():
                cell = facts_of(run, task, method)
                cell.update(numbers)
                cell.update(model=label, task=task, method=method)
                cells.append(cell)
    if any("scored" in cell for cell in cells):
        for cell in cells:
            cell.setdefault("scored", cell["n"])  # where that is all, no number says it
    return cells


def facts_of(run: Results, task_name: str, method_name: str) -> Cell:
    """What a cell is: the facts of its run, of its task and of its method."""
    task = run.facts.tasks[task_name]
    method = task.methods[method_name]
    settings: dict[str, Any] = {}
    source = task.methods.get(str(method.settings.get("of")))  # of first trials
    if source is not None:
        settings.update(source.settings)
    settings.update(method.settings)
    weights = run.facts.quantize or "full precision"
    if method_name != "standard":
        weights += f" + {method_name}"
    return {
        "checkpoint": run.facts.model,
        "experiment": run.facts.experiment,
        "quantize": run.facts.quantize,
        "limit": run.facts.limit,
        "seeds": run.facts.seeds,
        "dataset": task.dataset,
        "choices": task.choices,
        "asked": task.questions,
        "kind": method.kind,
        "engine": method.engine,
        "settings": settings,
        "m": f"m={settings.get('group_size')}",
        "N": f"{settings.get('trials')}",
        "K": f"K={task.choices}",
        "weights": weights,
    }


def with_averages(cells: list[Cell]) -> list[Cell]:
    """After the cells their means over several data sets, without intervals, for methods on all."""
    count = len({cell["dataset"] for cell in cells})
    if count < 2:
        return cells
    averages = []
    for _, group in pd.DataFrame(cells).groupby(["model", "method"], sort=False):
        if len(group) != count or group.dataset.nunique() != count:
            continue
        average = group.iloc[0].to_dict()
        for name in NAMES:
            average[name] = group[name].astype(float).mean()
            average[f"{name}_interval"] = None
        average["task"] = "average"
        average["dataset"] = "average"
        for name in COUNTS:
            if name in average:
                average[name] = int(group[name].sum())
        averages.append(average)
    return cells + averages


def paper(cell: Cell, name: str) -> Any:
    """What the paper prints for this cell, in percent or seconds; None where it prints nothing, or
    ran something else."""
    engine: str = cell["engine"]
    if ":" in engine:
        return None  # it is the user's own
    facts = cell | cell["settings"]
    facts["four_bit"] = cell["quantize"] is not None
    if engine.startswith("without-"):
        facts["kind"] = engine  # runs before had the ablations as methods
    count = PAPER["questions"].get(cell["dataset"], 0) * len(cell["seeds"])
    is_random = "random_partitions" in str(facts.get("grouping", "random_partitions"))
    is_papers = is_random and facts.get("null_option", 1)
    if cell["limit"] or cell["asked"] != count or not is_papers:
        return None
    for number in PAPER["numbers"]:
        is_model = cell["checkpoint"] in PAPER["models"][number["model"]]
        if is_model and name in number and number["match"].items() <= facts.items():
            return number[name]
    return None


def text(cell: Cell, heading: str) -> str:
    """What a table shows of a cell; "-" for what is not defined or was not measured."""
    value = cell.get(heading)
    if value is None or value != value:  # NaN
        return "-"
    if not isinstance(value, int | float):
        return str(value)
    form = FORMATS.get(heading, Format(".3f"))
    shown = form.write(value)
    interval = cell.get(f"{heading}_interval")
    if interval and heading in WITH_INTERVAL:
        bounds = ", ".join(form.write(bound) for bound in interval)
        shown += f" [{bounds}]"
    printed = paper(cell, heading)
    return shown if printed is None else f"{shown} (paper {printed})"


def table(name: str, cells: list[Cell]) -> pd.DataFrame:
    """A row of texts for each cell; with `across` for each different `row`, and a column for each
    text of `across`. Columns without numbers are left out."""
    form = TABLES[name]
    headings = [*form.row, *form.numbers]
    if form.across:
        headings.append(form.across)
    rows = []
    for cell in with_averages(cells):
        rows.append({heading: text(cell, heading) for heading in headings})
    frame = pd.DataFrame(rows)
    if form.across:
        number = form.numbers[0]
        frame = frame.pivot_table(number, list(form.row), form.across, aggfunc="first", sort=False)
        frame = frame.fillna("-").reset_index()
    shown = [heading in form.row or set(frame[heading]) != {"-"} for heading in frame]
    return frame.loc[:, shown]


def picks(cells: Sequence[Cell]) -> pd.DataFrame:
    """How often each method predicts each label, and how often it is the answer."""
    rows = []
    for cell in cells:
        for name, counts in (("(answers)", "answers"), (cell["method"], "picks")):
            row = {"model": cell["model"], "task": cell["task"], "method": name}
            for label, count in zip(NUMBERED, cell.get(counts, []), strict=False):
                row[label] = str(count)
            rows.append(row)
    return pd.DataFrame(rows).drop_duplicates().fillna("-")


def differences(found: Sequence[dict[str, Any]]) -> pd.DataFrame:
    rows = []
    for numbers in found:
        row = {
            "task": numbers["task"],
            "difference": f"{numbers['a']} - {numbers['b']}",
            "points of accuracy": points(numbers),
            "McNemar p": f"{numbers['mcnemar_p']:.2g}",
            "corrected p (Holm)": f"{numbers['holm_p']:.2g}",
            "only first / second right": (
                f"{numbers['only_a']} / {numbers['only_b']} of {numbers['clusters']}"
            ),
            "changed": f"{numbers['changed']:,}",
        }
        rows.append(row)
    return pd.DataFrame(rows)


def points(numbers: dict[str, Any]) -> str:
    """A difference of accuracies. Where every resample has the same, an interval of no width would
    look like a proof."""
    low, high = numbers["interval"]
    if numbers["changed"] == 0:
        return "the same answers"
    if low == high:
        return f"{100 * numbers['accuracy']:+.2f}, no interval"
    return f"{100 * numbers['accuracy']:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"


def markdown(title: str, frame: pd.DataFrame, width: int | None = None) -> str:
    """A table whose columns line up as plain text, too. The model is left out where it is one; with
    `width` also columns at the right, until it fits."""
    frame = one_model_left_out(frame)
    columns = []  # of each the heading, and the texts below it
    for heading in frame:
        columns.append([clean(str(words)) for words in (heading, *frame[heading])])
    sizes = [max(map(len, column)) for column in columns]
    shown = len(columns)
    while width is not None and shown > 3 and sum(sizes[:shown]) + 3 * shown >= width:
        shown -= 1
    padded = []
    for column, size in zip(columns[:shown], sizes, strict=False):
        heading, *texts = [words.ljust(size) for words in column]
        padded.append([heading, "-" * size, *texts])
    lines = [f"{title}\n"]
    for cells in zip(*padded, strict=True):
        lines.append(f"| {' | '.join(cells)} |")
    if shown < len(columns):
        more = ", ".join(column[0] for column in columns[shown:])
        lines.append(prose(f"(more in report.md: {more})", width))
    return "\n".join(lines)


def one_model_left_out(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without the column of the model, where it is one."""
    if "model" in frame and frame.model.nunique() == 1:
        return frame.drop(columns="model")
    return frame


def clean(words: str) -> str:
    return printable(" ".join(words.split()).replace("|", "\\|"))


def report(runs: Sequence[Results], between: Sequence[Any] = (), width: int | None = None) -> str:
    """All tables of one experiment's runs, and how to read them, as Markdown."""
    frames = frames_of(runs, between)
    parts = [markdown(title, frame, width) for title, frame in frames.items()]
    parts.append(prose(how_to_read("\n".join(parts)), width))
    for name, run in zip(labels(runs), runs, strict=True):
        parts.append(prose(clean(about(name, run)), width))
    for run in runs:
        parts += [prose(clean(warning), width) for warning in run.content["warnings"]]
    return "\n\n".join(parts) + "\n"


def latex(runs: Sequence[Results], between: Sequence[Any] = ()) -> str:
    """The same tables for a paper, with the package booktabs."""
    parts = []
    for title, frame in frames_of(runs, between).items():
        texts = one_model_left_out(frame).map(lambda words: printable(str(words)))
        parts.append(texts.to_latex(index=False, escape=True, caption=title))
    return "\n".join(parts)


def frames_of(runs: Sequence[Results], between: Sequence[Any]) -> dict[str, pd.DataFrame]:
    """The tables of one experiment's runs that have a row, by their titles."""
    cells = cells_of(runs)
    names = labels(runs)
    experiment = EXPERIMENTS.get(runs[0].facts.experiment or "", NO_EXPERIMENT)
    frames = {TABLES[name].title: table(name, cells) for name in experiment.tables}
    frames["Picks by label, in the question's order"] = picks(cells)
    for name, run in zip(names, runs, strict=True):
        inside = []
        for found in run.content["differences"].values():
            inside.extend(found)
        frames[f"Paired differences, {name}"] = differences(inside)
    frames["Paired differences of runs"] = differences(between)

    return {title: frame for title, frame in frames.items() if len(frame)}


def how_to_read(tables: str) -> str:
    """What is in the tables, as they are printed."""
    heads: set[str] = set()
    for line in tables.splitlines():
        heads.update(cell.strip() for cell in line.split("|"))
    words = ["Shares in percent."]
    if "[" in tables:
        words.insert(0, BRACKETS)
    words += [sentence for column, sentence in READ.items() if column in heads]
    return " ".join(words)


def prose(text: str, width: int | None) -> str:
    """The text in lines of at most `width` columns; in one line without it."""
    if width is None:
        return text
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def about(name: str, run: Results) -> str:
    """A line on a run: the model, how it ran, the questions, and what is left out."""
    facts = run.facts
    ran = [fact for fact in (facts.dtype, facts.device, facts.server) if fact]
    if facts.equal_bits:
        ran.append("equal bits")
    engines: set[str] = set()
    counts = []
    for task_name, task in facts.tasks.items():
        engines.update(method.engine for method in task.methods.values())
        counts.append(f"{task_name}: {task.questions:,}")
    if len(engines) == 1 and engines != {"tree"}:
        ran.append(f"engine {engines.pop()}")
    line = f"{name}: {', '.join(ran)}; questions: {', '.join(counts)}; seeds {facts.seeds}"
    line += f"; template {facts.template}, {facts.shots} shots"
    parts = [line]
    if facts.limit is not None:
        parts.append(f"not a full run: the first {facts.limit} questions")
    return ". ".join([*parts, *run.left_out])
