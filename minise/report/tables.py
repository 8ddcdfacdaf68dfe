"""Results as Markdown tables in the paper's layout, with the paper's number where it compares.

An experiment has a list of sources, each of which turns a run into parts of tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from minise.errors import InputError, printable
from minise.report.results import Cell, Results, and_averages, typed

Texts = dict[str, str]  # heading -> text
Part = tuple[str, Texts, Texts]  # a title, the texts that name a row, and texts that stand in it
Source = Callable[[Results], Iterator[Part]]


def render(
    runs: Sequence[Results], across: Sequence[dict[str, Any]] = (), width: int | None = None
) -> str:
    """The tables of one or more runs of one experiment, usually one run for each model. Different
    titles make different tables, different runs different rows. `across`: differences between runs.
    With `width`, in letters, a table shows what fits in a line. Raises InputError where the runs
    are of different experiments."""
    names = {str(run.experiment) for run in runs}
    if len(names) > 1:
        which = ", ".join(sorted(names))
        raise InputError(f"these folders hold different experiments ({which}); report each alone")
    # A checkpoint in 4 bits and in full precision: two runs make one row.
    joined = runs[0].experiment == "quantized"
    tables: dict[str, dict[Any, Texts]] = {}
    for source in _TABLES.get(runs[0].experiment, _TABLES[None]):
        for number, run in enumerate(runs):
            for title, named, filled in source(run):
                rows = tables.setdefault(title, {})
                row = rows.setdefault((0 if joined else number, *named.values()), named)
                if twice := filled.keys() & row.keys():
                    raise InputError(f"two folders hold {', '.join(sorted(twice))}; report one")
                row.update(filled)
    if across:
        told = [({"task": d["task"], "questions": f"{d['questions']:,}"}, d) for d in across]
        title = "Paired differences between runs, over the questions that both asked"
        tables[title] = dict(enumerate(_compared(told)))
    parts = [_markdown(title, list(rows.values()), width) for title, rows in tables.items()]
    return printable("\n\n".join([*parts, _notes(runs)]) + "\n")


# Columns: what is shown of a cell; "-" for what is undefined or was not measured


def _number(value: float, interval: Sequence[float] | None = None, form: str = ".3f") -> str:
    """A number, and its interval beside it."""
    if interval is None:  # of a mean over tasks
        return format(value, form)
    shown, low, high = (format(x, form) for x in (value, *interval))
    return f"{shown} [{low}, {high}]"


def _percent(share: float, interval: Sequence[float] | None = None, form: str = ".1f") -> str:
    return _number(100 * share, interval and [100 * x for x in interval], form)


def _beside(text: str, form: str, *paper: Any) -> str:
    """The text, and beside it the paper's numbers, if it prints them."""
    return text if None in paper else f"{text} (paper{form.format(*paper)})"


def _metric(name: str, show: Callable[..., str], cell: Cell) -> str:
    if cell.metrics[name] is None:
        return "-"
    text = show(cell.metrics[name], cell.metrics[f"{name}_interval"])
    return _beside(text, " {:.2f}", cell.paper(name))


def _seconds(cell: Cell) -> str:
    seconds = cell.timing["seconds_per_question"]
    text = "-" if seconds is None else f"{seconds:.4f}"
    return _beside(text, ", {}: {}", cell.paper("device"), cell.paper("seconds_per_question"))


def _over_seeds(cell: Cell) -> str:
    mean, std = (cell.metrics[f"accuracy_seeds_{name}"] for name in ("mean", "std"))
    text = f"{100 * mean:.2f}" + ("" if std is None else f" ± {100 * std:.2f}")
    paper = (cell.paper(f"accuracy_seeds_{name}") for name in ("mean", "std"))
    return _beside(text, " {:.2f} ± {:.2f}", *paper)


_RATIOS = {"under": "under_confidence", "over": "over_confidence"}
_RATIOS |= {"under, score": "under_confidence_scores", "over, score": "over_confidence_scores"}
_NUMBERS = {"NLL": "nll", "Brier": "brier", "ECE": "ece_width", "AUROC": "auroc"}
_NUMBERS |= {"matched NLL": "nll_matched"}
_COLUMNS: dict[str, Callable[[Cell], str]] = {
    "accuracy": partial(_metric, "accuracy", _percent),
    **{heading: partial(_metric, name, _percent) for heading, name in _RATIOS.items()},
    **{heading: partial(_metric, name, _number) for heading, name in _NUMBERS.items()},
    "model": lambda cell: cell.label,
    "checkpoint": lambda cell: cell.model,
    "weights": lambda cell: " + ".join(
        [cell.quantize or "full precision", *([] if cell.method == "standard" else [cell.name])]
    ),
    "task": lambda cell: cell.task,
    "method": lambda cell: cell.name,
    "group size": lambda cell: f"m={cell.settings['group_size']}",
    "trials": lambda cell: (
        "exact" if cell.settings.get("grouping") == "exact" else f"N={cell.settings['trials']}"
    ),
    "n": lambda cell: f"{cell.metrics['n']:,}",
    "tokens": lambda cell: f"{cell.metrics['tokens']:,.0f}",
    "s/question": _seconds,
    "peak MiB": lambda cell: f"{peak / 2**20:,.0f}" if (peak := cell.timing["peak_bytes"]) else "-",
    "mean": _over_seeds,
    "each seed": lambda cell: ", ".join(f"{100 * x:.2f}" for x in cell.metrics["seeds"].values()),
    "decisions changed": lambda cell: (  # compared with the first variant
        f"{d[0]['changed']:,} of {cell.metrics['n']:,}" if (d := cell.differences) else "-"
    ),
}


def _cells(
    title: str,
    columns: Sequence[str],
    across: str | None = None,
    shown: str = "accuracy",
    averages: bool = False,
) -> Source:
    """A row for each different text of `columns`. With `across` there is one more column for each
    text of `across`, in which a cell shows `shown`. With `averages` there are those over tasks."""

    def parts(run: Results) -> Iterator[Part]:
        for cell in and_averages(run.cells) if averages else run.cells:
            named = {heading: _COLUMNS[heading](cell) for heading in columns}
            filled = {_COLUMNS[across](cell): _COLUMNS[shown](cell)} if across else {}
            yield title.format(cell=cell), named, filled

    return parts


def _groupings(run: Results) -> Iterator[Part]:
    """Random and balanced groupings at equal N, and what a balanced N is worth in random trials."""
    for task, study in run.extra["groupings"].items():
        what = f"m = {study['group_size']}, {study['questions']} questions x"
        what += f" {study['repetitions']} repetitions: mean squared distance of the scores from"
        title = f"{run.model}, {task}, {what} the exact expectation"
        most = max(cell["tokens"] for cell in study["cells"] if cell["grouping"] == "random")
        for cell in study["cells"]:
            exact = cell["grouping"] == "exact"
            side = "random" if exact else cell["grouping"]  # exact stands in the left columns
            filled = {
                f"{side}: tokens": f"{cell['tokens']:,.0f}",
                f"{side}: variance": f"{cell['variance']:.2e}" if cell["variance"] else "0",
                f"{side}: accuracy": _percent(cell["accuracy"]),
                f"{side}: NLL": _number(cell["nll"]),
            }
            if "worth" in cell:
                worth, take = cell["worth"], cell["tokens_of_worth"]
                filled["worth random trials"] = _number(worth, cell["worth_interval"], ".1f")
                filled["which take tokens"] = f"{take:,.0f}" if take else f"over {most:,.0f}"
            yield title, {"N": "exact" if exact else str(cell["trials"])}, filled


def _sequential(run: Results) -> Iterator[Part]:
    """Rules of stopping and fixed numbers of trials. Of other block sizes than the default one a
    level of each rule."""
    for task, study in run.extra["sequential"].items():
        m, exact = study["group_size"], study["exact"]
        what = f"m = {m}, {study['questions']} questions x {study['repetitions']} repetitions"
        whole = f"exact: accuracy {_percent(exact['accuracy'])}, NLL {_number(exact['nll'])}"
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
                "as exact": _percent(cell["same"], cell["same_interval"]),
                "decided wrongly": _percent(cell["error"], cell["error_interval"], ".2f"),
                "of fixed": f"{cell['tokens'] / of_fixed:.2f}" if of_fixed else "-",
                "accuracy": _percent(cell["accuracy"]),
                "NLL": _number(cell["nll"]),
                "bias": _percent(cell["bias"], form="+.1f"),
            }
            if rule == "fixed":
                row |= dict.fromkeys(("block", "undecided", "decided wrongly"), "-")
                row["stop at"] = f"N = {level}"
            if rule == "fixed" or cell["block"] == 2 * m or (rule, level) in _TYPICAL:
                yield f"{run.model}, {task}, {what}; {whole}. {_STOPPED}", row, {}


def _reasoning(run: Results) -> Iterator[Part]:
    """What the texts themselves answer, and what they cost."""
    for cell in run.cells:
        if said := run.extra["reasoning"].get(cell.task, {}).get(cell.name):
            row = {"model": cell.label, "task": cell.task, "method": cell.name}
            row["accuracy, as read"] = _COLUMNS["accuracy"](cell)
            row["accuracy, as said"] = _percent(said["accuracy"], said["interval"])
            row["names none"] = _percent(said["names_none"])
            row["cut"] = _percent(said["cut"])
            row["new tokens"] = f"{said['new_tokens']:,.0f}"
            row["tokens"] = _COLUMNS["tokens"](cell)
            yield _READ_AND_SAID, row, {}


def _accuracies(run: Results) -> Iterator[Part]:
    """The paper's main table: by task and on average, each with what it is above standard."""
    cells = and_averages(run.cells)
    bases = {cell.task: cell for cell in reversed(cells) if cell.method == "standard"}
    for cell in cells:
        above, base = "-", bases.get(cell.task, cell)
        if base is not cell:
            gain = 100 * (cell.metrics["accuracy"] - base.metrics["accuracy"])
            above = _beside(f"{gain:+.1f}", " {:+.2f}", cell.paper("improve"))
        filled = {cell.task: _COLUMNS["accuracy"](cell), f"{cell.task}: improve": above}
        yield "Accuracy", {"model": cell.label, "method": cell.name}, filled


def _differences(run: Results) -> Iterator[Part]:
    """Paired differences, each method against those before it."""
    every = [({"model": c.label, "task": c.task}, d) for c in run.cells for d in c.differences]
    for row in _compared(every):
        yield "Paired differences", row, {}


def holm(ps: Sequence[float]) -> list[float]:
    """Each p value, corrected for how many there are (Holm 1979): that any of those which are then
    below 0.05 is there by chance has a probability of 5% at most.

    >>> holm([0.03, 0.01, 0.04])
    [0.06, 0.03, 0.06]
    """
    found, least = [1.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        found[i] = least = max(least, min(1.0, (len(ps) - rank) * ps[i]))
    return found


def _compared(every: Sequence[tuple[Texts, dict[str, Any]]]) -> Iterator[Texts]:
    """The rows of paired differences, each after the texts that name it."""
    corrected = holm([d["mcnemar_p"] for _, d in every])
    for (named, d), p in zip(every, corrected, strict=True):
        yield named | {
            "difference": f"{d['a']} - {d['b']}",
            "points of accuracy": _percent(d["accuracy"], d["interval"], "+.2f"),
            "McNemar p": f"{d['mcnemar_p']:.2g}",
            "corrected p (Holm)": f"{p:.2g}",
            "only first / second right": f"{d['only_a']} / {d['only_b']}",
        }


_CONFIDENCE = (
    "Under-confidence: share of the right answers with f < {cell.metrics[tau]}. Over-confidence: "
    "share of the wrong answers with f > {cell.metrics[tau]}. f is the probability of the "
    "predicted choice. In the last two columns f is its score (the mean, Eq. 2), which is not "
    "normalised over the choices"
)
_MAIN = {"Accuracy": "accuracy", "NLL (nats)": "NLL", "ECE (15 bins of equal width)": "ECE"}
_MAIN |= {"NLL (nats) at the temperature that is best for other questions": "matched NLL"}
_MAIN |= {"Under-confidence": "under", "Over-confidence": "over", "Tokens a question": "tokens"}
_BY_TASK = [_cells(title, ("model", "method"), "task", shown) for title, shown in _MAIN.items()]
_BY_METHOD = _cells("Accuracy", ("model", "task"), across="method")
_BY_SIZES = _cells("{cell.label}, {cell.task}: accuracy", ["trials"], across="group size")
_READ_AND_SAID = (
    "What the texts answer. As read: the probabilities of the labels after the text. As said: the "
    "choice that the text names last; a text that names none counts as wrong. Cut: texts that the "
    "budget ended"
)
_STOPPED = (
    "As exact: predictions equal to those of infinitely many trials. Decided wrongly: of all. Of "
    "fixed: tokens over those of a fixed number of random trials with the same share. Bias: of the "
    "predicted choice's probability, in points"
)
_TYPICAL = (("alpha", 0.05), ("z", 1))  # levels of the rules
_EACH, _TIMES = ("model", "task", "method"), ("s/question", "peak MiB")
_MORE = ("Brier", "matched NLL", "ECE", "AUROC", *_TIMES)
_SECOND = (*_MORE, "only first / second right")  # left out first where the width is too small
_ALL = ("task", "method", "n", "accuracy", "NLL", "under", "over", "tokens", *_MORE)
_SEEDS = "Accuracy over seeds, mean and standard deviation"
_ENGINES = "Multi-pass (separate) against single-pass (dense), and the tree"
_TABLES: dict[str | None, list[Source]] = {
    None: [_cells("{cell.label}", _ALL), _differences],
    "choices": [_BY_TASK[0], _differences],
    "main": [_accuracies, *_BY_TASK[1:], _differences],
    "scale": [_BY_METHOD, _differences],
    "ablation": [_BY_METHOD, _differences],
    "sensitivity": [_BY_SIZES],
    "seeds": [_cells(_SEEDS, (*_EACH, "mean", "each seed")), _differences],
    "confidence": [_cells(_CONFIDENCE, (*_EACH, *_RATIOS), averages=True), _differences],
    "efficiency": [_cells(_ENGINES, (*_EACH, "tokens", *_TIMES, "accuracy", "decisions changed"))],
    "reasoning": [_BY_TASK[0], _reasoning, _BY_TASK[-1], _differences],
    "quantized": [_cells("Accuracy", ("checkpoint", "task"), "weights"), _differences],
    "groupings": [_groupings],
    "sequential": [_sequential],
}


def _notes(runs: Sequence[Results]) -> str:
    """How to read the tables, and what was run."""
    cells = [cell for run in runs for cell in run.cells]
    several = any(0 < (c.metrics["clusters"] or 0) < c.metrics["questions"] for c in cells)
    of = "questions, those about one fact drawn together" if several else "questions"
    brackets = f"Brackets: 95% bootstrap intervals over {of} (percentile, 1,000 resamples)."
    lines = [f"{brackets} Percent unless said.\n"] if cells else []
    for run in runs:
        config = run.config
        what = ", ".join(
            f"{t}: {q['questions']:,} questions"
            + ("" if q.get("answered", True) else " without answers, so nothing is scored")
            for t, q in config["tasks"].items()
        )
        if len(config["seeds"]) > 1:
            what += f" over seeds {', '.join(map(str, config['seeds']))}"
        if not config["full_run"]:
            what += f". Not a full run: the first {config['limit']} questions"
        for task, fits in config["left_out"].items():
            what += "".join(f". {name} of {task} is left out: {why}" for name, why in fits.items())
        lines.append(
            " ".join(f"- {run.model} ({config['dtype']}, {config['device']}): {what}.".split())
        )
        if settings := settings_of(run.cells):
            lines.append(f"  Settings: {settings}.")
    return "\n".join(lines)


def settings_of(cells: Sequence[Cell]) -> str:
    """The settings of each method, by their names after --method. The first trials of a variant
    have the settings of that one."""
    told: dict[str, list[str]] = {}
    for cell in cells:
        if cell.used and cell.method != "first-trials":
            told.setdefault(f"{cell.name}: {typed(cell.used)}", []).append(cell.task)
    tasks = {cell.task for cell in cells}
    return "; ".join(
        text if {*of} == tasks else f"{text} ({', '.join(of)})" for text, of in told.items()
    )


def _markdown(title: str, rows: Sequence[Texts], width: int | None) -> str:
    """A Markdown table whose columns line up as plain text too.

    With `width` the model and the task stand in the title where they are one. Where lines are still
    longer, intervals go, then columns, which are named below the table.
    """
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    columns = [[name, *(row.get(name, "-") for row in rows)] for name in headings]
    columns = [[" ".join(text.replace("|", "\\|").split()) for text in each] for each in columns]
    left_out: list[str] = []

    def too_wide() -> bool:
        return width is not None and len(_lines(columns)[0]) > width

    for name, *texts in columns[:2]:
        one = name in ("model", "task") and len(set(texts)) == 1 and len(columns) > 2
        if one and too_wide():
            title += f", {texts[0]}"
            columns = [each for each in columns if each[0] != name]
    points, every = "points of accuracy", [each[0] for each in columns]
    for with_interval, second in ((("accuracy", points), _SECOND), ((points,), every)):
        if too_wide():
            for each in columns:
                if each[0] not in with_interval:
                    each[:] = [re.sub(r" \[.*?\]", "", text) for text in each]
        while too_wide() and columns[-1][0] in second and len(columns) > 2:
            left_out.insert(0, columns.pop()[0])
    below = [f"(more in report.md: {', '.join(left_out)})"] if left_out else []
    return "\n".join([f"{title}\n", *_lines(columns), *below])


def _lines(columns: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in columns]
    table = zip(*columns, strict=True)
    head, *lines = [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in table]
    return [head, "|".join(["", *("-" * (width + 2) for width in widths), ""]), *lines]
