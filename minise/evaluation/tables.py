"""The tables of a report. A cell is one task under one method of one run, with all its facts and
numbers; where the paper ran the same, its number stands beside."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Table:
    """row: what a row is of. numbers: those shown. across: what has a column of its own."""

    title: str
    row: Sequence[str]
    numbers: Sequence[str]
    across: str = ""


TABLES = {
    "all": Table("All numbers", EACH, ALL),
    "accuracy": Table("Accuracy", ("model", "task"), ["accuracy"], "method"),
    "weights": Table("Accuracy", ("checkpoint", "task"), ["accuracy"], "weights"),
    "sizes": Table("Accuracy by m and N", ("model", "task", "N"), ["accuracy"], "m"),
    "seeds": Table("Accuracy over seeds", EACH, ["seeds_mean", "seeds_sd", "accuracy", "flips"]),
    "costs": Table("Costs", EACH, ["tokens", "seconds", "peak_bytes", "accuracy"]),
}
OLD_ENGINES = {"dense": "packed", "plain": "packed"}  # in run.json of runs before
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
            for method, of_method in numbers.items():
                facts = facts_of(run, task, method)
                cells.append({**facts, **of_method, "model": label, "task": task, "method": method})
    return cells


def facts_of(run: Results, task: str, method: str) -> Cell:
    """What a cell is: the facts of its run, of its task and of its method."""
    of_task = run.what["tasks"][task]
    own = of_task["methods"][method]
    source = of_task["methods"].get(own["settings"].get("of"), {})  # of first trials
    settings = {**source.get("settings", {}), **own["settings"]}
    weights = run.what["quantize"] or "full precision"
    if method != "standard":
        weights += f" + {method}"
    return {
        **run.what,
        **of_task,
        **own,
        "checkpoint": run.what["model"],
        "settings": settings,
        "m": f"m={settings.get('group_size')}",
        "N": f"{settings.get('trials')}",
        "K": f"K={of_task['choices']}",
        "weights": weights,
        "billions": round((run.what["parameters"] or 0) / 1e9, 3),
    }


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
    engine: str = cell["engine"]
    engine = OLD_ENGINES.get(engine, engine)
    if ":" in engine:
        return None  # it is the user's own
    facts = {**cell, **cell["settings"], "engine": engine, "four_bit": cell["quantize"] is not None}
    if engine.startswith("without-"):
        facts["kind"] = engine  # runs before had the ablations as methods
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
    """A row of texts for each cell; with `across` for each different `row`, and a column for each
    text of `across`. Columns without numbers are left out."""
    form = TABLES[name]
    headings = [*form.row, *form.numbers]
    if form.across:
        headings.append(form.across)
    rows = [{heading: text(cell, heading) for heading in headings} for cell in with_averages(cells)]
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
    cells = cells_of(runs)
    names = labels(runs)
    experiment = EXPERIMENTS.get(runs[0].what["experiment"], NO_EXPERIMENT)
    frames = {TABLES[name].title: table(name, cells) for name in experiment.tables}
    frames["Picks by label, in the question's order"] = picks(cells)
    for name, run in zip(names, runs, strict=True):
        inside = []
        for found in run.content["differences"].values():
            inside.extend(found)
        frames[f"Paired differences, {name}"] = differences(inside)
    frames["Paired differences of runs"] = differences(between)

    parts = [markdown(title, frame, width) for title, frame in frames.items() if len(frame)]
    parts.append(READ)
    for name, run in zip(names, runs, strict=True):
        parts.append(clean(about(name, run)))
    for cell in cells:
        line = few_on_labels(cell)
        if line:
            parts.append(line)
    return "\n\n".join(parts) + "\n"


def few_on_labels(cell: Cell) -> str:
    """A line where the labels have less than half of the probability."""
    share = cell.get("on_labels")
    if share is None or share >= 0.5:
        return ""
    where = clean(f"{cell['task']}, {cell['method']}")
    return f"{where}: only {share:.0%} of the probability is on the labels; try another --template"


def about(name: str, run: Results) -> str:
    """A line on a run: the model, how it ran, the questions, and what is left out."""
    what = run.what
    ran = []
    for fact in ("dtype", "device", "server"):
        if what.get(fact):
            ran.append(what[fact])
    if what.get("equal_bits"):  # runs before do not say
        ran.append("equal bits")
    engines: set[str] = set()
    for task in what["tasks"].values():
        engines.update(method["engine"] for method in task["methods"].values())
    if len(engines) == 1 and engines != {"tree"}:
        ran.append(f"engine {engines.pop()}")
    tasks = ", ".join(f"{task}: {one['questions']:,}" for task, one in what["tasks"].items())
    line = f"{name}: {', '.join(ran)}; questions: {tasks}; seeds {what['seeds']}"
    line += f"; template {what['template']}, {what['shots']} shots"
    parts = [line]
    if what["limit"] is not None:
        parts.append(f"not a full run: the first {what['limit']} questions")
    return ". ".join([*parts, *what["left_out"]])
