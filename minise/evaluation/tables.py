"""The tables of a report. A cell is one task under one method of one run, with all its facts and
numbers; where the paper ran the same, its number stands beside."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from minise.errors import printable
from minise.evaluation.experiments import EXPERIMENTS, NO_EXPERIMENT
from minise.evaluation.metrics import LOSSES, NAMES, READ_OUT, SHARES
from minise.evaluation.results import Results
from minise.prompt import LABELS

Cell = dict[str, Any]
NUMBERED = [*LABELS, *map(str, range(len(LABELS) + 1, 1000))]
PAPER = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
# How a number is written, and by what it is multiplied; others are ".3f" and 1.
FORMS: dict[str, tuple[str, float]] = {
    **dict.fromkeys((*SHARES, *READ_OUT, "on_labels_p5"), (".1f", 100)),
    **dict.fromkeys(("seeds_mean", "seeds_sd"), (".2f", 100)),
    **dict.fromkeys(("n", "tokens", "peak_bytes"), (",.0f", 1)),
    "seconds": (".4f", 1),
}
WITH_INTERVAL = (*SHARES, *LOSSES, "ece", "auroc")
EACH = ("model", "task", "method")
ALL = ("n", *NAMES, "on_labels_p5")
# name -> title; what a row is of; the numbers shown; what has a column of its own
TABLES: dict[str, tuple[str, Sequence[str], Sequence[str], str]] = {
    "all": ("All numbers", EACH, ALL, ""),
    "accuracy": ("Accuracy", ("model", "task"), ["accuracy"], "method"),
    "weights": ("Accuracy", ("checkpoint", "task"), ["accuracy"], "weights"),
    "sizes": ("Accuracy by m and N", ("model", "task", "N"), ["accuracy"], "m"),
    "seeds": ("Accuracy over seeds", EACH, ["seeds_mean", "seeds_sd", "accuracy", "flips"], ""),
    "costs": ("Costs", EACH, ["tokens", "seconds", "peak_bytes", "accuracy"], ""),
}
READ = """Brackets: 95% bootstrap intervals over questions, those about one fact drawn together \
(percentile, 1,000 resamples). Shares in percent. under: of the right answers with a probability \
below 0.5; over: of the wrong ones with one above 0.5. flips: of the questions with another \
prediction under another seed. matched_nll: at the temperature that is best for other questions. \
ece: 15 bins of equal width."""


def labels(runs: Sequence[Results]) -> list[str]:
    """The runs by their models; by their folders, where that does not tell them apart."""
    names = [run.what["model"].rpartition("weights/")[2] for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def cells_of(runs: Sequence[Results]) -> list[Cell]:
    cells = []
    for label, run in zip(labels(runs), runs, strict=True):
        for task, numbers in run.content["results"].items():
            facts = run.what["tasks"][task]
            for name, of_method in numbers.items():
                one = facts["methods"][name]
                of = facts["methods"].get(one["settings"].get("of"), {})  # as of first trials
                settings = {**of.get("settings", {}), **one["settings"]}
                weights = run.what["quantize"] or "full precision"
                cell = {**run.what, **facts, **one, **of_method, "checkpoint": run.what["model"]}
                cell |= {"model": label, "task": task, "method": name, "settings": settings}
                cell |= {"m": f"m={settings.get('group_size')}", "N": f"{settings.get('trials')}"}
                cell["K"] = f"K={facts['choices']}"
                cell["weights"] = weights if name == "standard" else f"{weights} + {name}"
                cell["billions"] = round(run.what["parameters"] / 1e9, 3)
                cells.append(cell)
    return cells


def with_averages(cells: list[Cell]) -> list[Cell]:
    """After the cells their means over several data sets, without intervals, for methods on all."""
    averages = []
    count = len({cell["dataset"] for cell in cells})
    for _, group in pd.DataFrame(cells).groupby(["model", "method"], sort=False):
        if group.dataset.nunique() == len(group) == count > 1:
            cell = group.iloc[0].to_dict() | {f"{name}_interval": None for name in NAMES}
            cell |= {name: group[name].astype(float).mean() for name in NAMES}
            cell |= {"task": "average", "dataset": "average", "questions": group.questions.sum()}
            averages.append(cell)
    return cells + averages


def paper(cell: Cell, name: str) -> Any:
    """What the paper prints for this cell, in percent or seconds; None where it prints nothing, or
    ran something else."""
    facts = {**cell, **cell["settings"], "four_bit": cell["quantize"] is not None}
    count = PAPER["questions"].get(cell["dataset"], 0) * len(cell["seeds"])
    is_random = "random_partitions" in facts.get("grouping", "random_partitions")
    is_papers = is_random and facts.get("null_option", 1) and not facts.get("shuffled")
    if cell["limit"] or cell["questions"] != count or not is_papers:
        return None
    for number in PAPER["numbers"]:
        is_model = cell["checkpoint"] in PAPER["models"][number["model"]]
        if is_model and name in number and number["match"].items() <= facts.items():
            return number[name]
    return None


def text(cell: Cell, heading: str) -> str:
    """What a table shows of a cell; "-" for what is not defined or was not measured."""
    value, interval = cell.get(heading), cell.get(f"{heading}_interval")
    if value is None or value != value:  # NaN
        return "-"
    if not isinstance(value, int | float):
        return str(value)
    form, factor = FORMS.get(heading, (".3f", 1))
    shown = format(factor * value, form)
    if interval and heading in WITH_INTERVAL:
        shown += f" [{', '.join(format(factor * x, form) for x in interval)}]"
    printed = paper(cell, heading)
    return shown if printed is None else f"{shown} (paper {printed})"


def table(name: str, cells: list[Cell]) -> pd.DataFrame:
    """A row of texts for each cell; with `across` for each different `index`, and a column for each
    text of `across`. Columns without numbers are left out."""
    _, index, shown, across = TABLES[name]
    headings = [*index, *shown, *([across] if across else [])]
    frame = pd.DataFrame([{h: text(cell, h) for h in headings} for cell in with_averages(cells)])
    if across:
        frame = frame.pivot_table(shown[0], list(index), across, aggfunc="first", sort=False)
        frame = frame.fillna("-").reset_index()
    return frame.loc[:, [h in index or set(frame[h]) != {"-"} for h in frame]]


def picks(cells: Sequence[Cell]) -> pd.DataFrame:
    """How often each method predicts each label, and how often it is the answer."""
    rows = []
    for cell in cells:
        for name, counts in (("(answers)", "answers"), (cell["method"], "picks")):
            by_label = dict(zip(NUMBERED, map(str, cell.get(counts, [])), strict=False))
            rows.append({"model": cell["model"], "task": cell["task"], "method": name} | by_label)
    return pd.DataFrame(rows).drop_duplicates().fillna("-")


def differences(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    texts = []
    for one in rows:
        points = [f"{100 * x:+.2f}" for x in (one["accuracy"], *one["interval"])]
        right = f"{one['only_a']} / {one['only_b']} of {one['clusters']}"
        ps = [f"{one[name]:.2g}" for name in ("mcnemar_p", "holm_p")]
        names = one["task"], f"{one['a']} - {one['b']}"
        texts.append([*names, "{} [{}, {}]".format(*points), *ps, right, f"{one['changed']:,}"])
    headings = ["task", "difference", "points of accuracy", "McNemar p", "corrected p (Holm)"]
    return pd.DataFrame(texts, columns=[*headings, "only first / second right", "changed"])


def markdown(title: str, frame: pd.DataFrame, width: int | None = None) -> str:
    """A table whose columns line up as plain text, too. The model is left out where it is one; with
    `width` also columns at the right, until it fits."""
    if "model" in frame and frame.model.nunique() == 1:
        frame = frame.drop(columns="model")
    columns = [[clean(str(x)) for x in (name, *frame[name])] for name in frame]
    sizes = [max(map(len, column)) for column in columns]
    shown = len(columns)
    while width is not None and shown > 3 and sum(sizes[:shown]) + 3 * shown >= width:
        shown -= 1
    lines = [list(line) for line in zip(*columns[:shown], strict=True)]
    lines.insert(1, ["-" * size for size in sizes[:shown]])
    padded = [f"| {' | '.join(map(str.ljust, line, sizes))} |" for line in lines]
    more = ", ".join(column[0] for column in columns[shown:])
    return "\n".join([f"{title}\n", *padded, *([f"(more in report.md: {more})"] if more else [])])


def clean(words: str) -> str:
    return printable(" ".join(words.split()).replace("|", "\\|"))


def report(runs: Sequence[Results], between: Sequence[Any] = (), width: int | None = None) -> str:
    """All tables of one experiment's runs, and how to read them, as Markdown."""
    cells, names = cells_of(runs), labels(runs)
    experiment = EXPERIMENTS.get(runs[0].what["experiment"], NO_EXPERIMENT)
    frames = {TABLES[name][0]: table(name, cells) for name in experiment.tables}
    frames["Picks by label, in the question's order"] = picks(cells)
    for name, run in zip(names, runs, strict=True):
        inside = [one for each in run.content["differences"].values() for one in each]
        frames[f"Paired differences, {name}"] = differences(inside)
    frames["Paired differences of runs"] = differences(between)
    tables = [markdown(title, frame, width) for title, frame in frames.items() if len(frame)]
    lines = [clean(about(name, run)) for name, run in zip(names, runs, strict=True)]
    lines += filter(None, map(few_on_labels, cells))
    return "\n\n".join([*tables, READ, *lines]) + "\n"


def few_on_labels(cell: Cell) -> str:
    """A line where the labels have less than half of the probability."""
    if (share := cell.get("on_labels")) is None or share >= 0.5:
        return ""
    where = clean(f"{cell['task']}, {cell['method']}")
    return f"{where}: only {share:.0%} of the probability is on the labels; try another --template"


def about(name: str, run: Results) -> str:
    what = run.what
    tasks = ", ".join(f"{task}: {one['questions']:,}" for task, one in what["tasks"].items())
    line = f"{name}: {what['dtype']}, {what['device']}; questions: {tasks}; seeds {what['seeds']}"
    line += f"; template {what['template']}, {what['shots']} shots"
    part = "" if what["limit"] is None else f"not a full run: the first {what['limit']} questions"
    return ". ".join(filter(None, [line, part, *what["left_out"]]))
