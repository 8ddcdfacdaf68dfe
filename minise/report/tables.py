"""Results as Markdown tables in the paper's layout, with the paper's number where it compares.

An experiment names its tables. Each is made by a source, which turns a run into parts of tables.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from minise.errors import InputError, printable
from minise.evaluation.experiments import find_experiment
from minise.report.markdown import as_markdown
from minise.report.results import Cell, Results, and_averages, typed

Texts = dict[str, str]  # heading -> text
Part = tuple[str, Texts, Texts]  # a title, the texts that name a row, and texts that stand in it
Source = Callable[[Results], Iterator[Part]]


def render(
    runs: Sequence[Results], across: Sequence[dict[str, Any]] = (), width: int | None = None
) -> str:
    """The tables of one or more runs of one experiment, usually one run for each model. `across`:
    differences between runs. With `width`, in letters, a table shows what fits in a line. Raises
    InputError where the runs are of different experiments."""
    names = {str(run.experiment) for run in runs}
    if len(names) > 1:
        which = ", ".join(sorted(names))
        raise InputError(f"these folders hold different experiments ({which}); report each alone")
    parts = []
    for name in find_experiment(runs[0].experiment).tables:
        for i, run in enumerate(runs):
            parts += [(0 if name in _JOINING else i, part) for part in TABLES[name](run)]
    tables = _fill(parts)
    if across:
        compared = [({"task": d["task"], "questions": f"{d['questions']:,}"}, d) for d in across]
        title = "Paired differences between runs, over the questions that both asked"
        tables[title] = list(_compare(compared))
    return _write(runs, tables, width)


def render_parts(runs: Sequence[Results], parts: Sequence[Iterable[Part]]) -> str:
    """The tables of parts, given for each run, as a report has them: for studies of their own."""
    return _write(runs, _fill([(i, part) for i, of_run in enumerate(parts) for part in of_run]))


def _fill(parts: Iterable[tuple[int, Part]]) -> dict[str, list[Texts]]:
    """The rows of each table by its title. Parts of different titles make different tables, and
    those of different numbers different rows. Raises InputError where two parts fill one place."""
    tables: dict[str, dict[Any, Texts]] = {}
    for which, (title, names, texts) in parts:
        rows = tables.setdefault(title, {})
        row = rows.setdefault((which, *names.values()), names)
        if twice := texts.keys() & row.keys():
            raise InputError(f"two folders hold {', '.join(sorted(twice))}; report one")
        row.update(texts)
    return {title: list(rows.values()) for title, rows in tables.items()}


def _write(
    runs: Sequence[Results], tables: dict[str, list[Texts]], width: int | None = None
) -> str:
    show = as_markdown if width is None else _on_one_line
    texts = [_markdown(title, rows, width, show) for title, rows in tables.items()]
    has_ratios = any(
        {"under", "over"} & row.keys()
        for title, rows in tables.items()
        for row in rows
        if not title.startswith("Under-confidence: ")  # such a title explains them itself
    )
    notes = _notes(runs, show, has_ratios)
    return printable(
        "\n\n".join([*texts, notes if width is None else _wrapped(notes, width)]) + "\n"
    )


def _wrapped(text: str, width: int) -> str:
    """Lines no longer than the terminal, except for a word that is; a list's are indented."""
    lines = []
    for line in text.splitlines():
        indent = "  " if line.startswith(("- ", "  ")) else ""
        wrap = partial(textwrap.fill, break_long_words=False, break_on_hyphens=False)
        lines.append(wrap(line, max(width, 20), subsequent_indent=indent))
    return "\n".join(lines)


def _on_one_line(text: str) -> str:
    """For a terminal, where escapes of Markdown would be read as they are."""
    return " ".join(text.replace("|", "\\|").split())


# Columns: what is shown of a cell; "-" for what is undefined or was not measured


def number(value: float, interval: Sequence[float] | None = None, form: str = ".3f") -> str:
    """A number, and its interval beside it."""
    if interval is None:  # of a mean over tasks
        return format(value, form)
    shown, low, high = (format(x, form) for x in (value, *interval))
    return f"{shown} [{low}, {high}]"


def percent(share: float, interval: Sequence[float] | None = None, form: str = ".1f") -> str:
    return number(100 * share, interval and [100 * x for x in interval], form)


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
    "accuracy": partial(_metric, "accuracy", percent),
    **{heading: partial(_metric, name, percent) for heading, name in _RATIOS.items()},
    **{heading: partial(_metric, name, number) for heading, name in _NUMBERS.items()},
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
            names = {heading: _COLUMNS[heading](cell) for heading in columns}
            texts = {_COLUMNS[across](cell): _COLUMNS[shown](cell)} if across else {}
            yield title.format(cell=cell), names, texts

    return parts


def _reasoning_texts(run: Results) -> Iterator[Part]:
    """What the texts themselves answer, and what they cost."""
    title = (
        "What the texts answer. As read: the probabilities of the labels after the text. As said: "
        "the choice that the text names last; a text that names none counts as wrong. Cut: texts "
        "that the budget ended"
    )
    for cell in run.cells:
        texts = run.extra["reasoning"][cell.task].get(cell.name)
        if texts is not None:
            row = {"model": cell.label, "task": cell.task, "method": cell.name}
            row["accuracy, as read"] = _COLUMNS["accuracy"](cell)
            row["accuracy, as said"] = percent(texts["accuracy"], texts["interval"])
            row["names none"] = percent(texts["names_none"])
            row["cut"] = percent(texts["cut"])
            row["new tokens"] = f"{texts['new_tokens']:,.0f}"
            row["tokens"] = _COLUMNS["tokens"](cell)
            yield title, row, {}


def _improvement(run: Results) -> Iterator[Part]:
    """The paper's main table: by task and on average, each with its gain over standard."""
    cells = and_averages(run.cells)
    standard = {cell.task: cell for cell in reversed(cells) if cell.method == "standard"}
    for cell in cells:
        improve, base = "-", standard.get(cell.task, cell)
        if base is not cell:
            gain = 100 * (cell.metrics["accuracy"] - base.metrics["accuracy"])
            improve = _beside(f"{gain:+.1f}", " {:+.2f}", cell.paper("improve"))
        texts = {cell.task: _COLUMNS["accuracy"](cell), f"{cell.task}: improve": improve}
        yield "Accuracy", {"model": cell.label, "method": cell.name}, texts


def _differences(run: Results) -> Iterator[Part]:
    """Paired differences, each method against those before it."""
    named = [({"model": c.label, "task": c.task}, d) for c in run.cells for d in c.differences]
    for row in _compare(named):
        yield "Paired differences", row, {}


def holm(ps: Sequence[float]) -> list[float]:
    """Each p value, corrected for how many there are (Holm 1979): the probability that chance alone
    brings any of them below 0.05 is then at most 5%.

    >>> holm([0.03, 0.01, 0.04])
    [0.06, 0.03, 0.06]
    """
    corrected, least = [1.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        corrected[i] = least = max(least, min(1.0, (len(ps) - rank) * ps[i]))
    return corrected


def _compare(differences: Sequence[tuple[Texts, dict[str, Any]]]) -> Iterator[Texts]:
    """The rows of paired differences, each after the texts that name it."""
    corrected = holm([d["mcnemar_p"] for _, d in differences])
    for (names, d), p in zip(differences, corrected, strict=True):
        yield names | {
            "difference": f"{d['a']} - {d['b']}",
            "points of accuracy": percent(d["accuracy"], d["interval"], "+.2f"),
            "McNemar p": f"{d['mcnemar_p']:.2g}",
            "corrected p (Holm)": f"{p:.2g}",
            "only first / second right": f"{d['only_a']} / {d['only_b']} of {d['clusters']}",
        }


_TIMES = ("s/question", "peak MiB")
_MORE = ("Brier", "matched NLL", "ECE", "AUROC", *_TIMES)
_SECOND = (*_MORE, "only first / second right")  # left out first where the width is too small
_ALL = ("task", "method", "n", "accuracy", "NLL", "under", "over", "tokens", *_MORE)
_EACH = ("model", "task", "method")
_UNDER_AND_OVER = (
    "Under-confidence: share of the right answers with f < {cell.metrics[tau]}. Over-confidence: "
    "share of the wrong answers with f > {cell.metrics[tau]}. f is the probability of the "
    "predicted choice. In the last two columns f is its score (the mean, Eq. 2), which is not "
    "normalised over the choices"
)


def _by_task(title: str, shown: str) -> Source:
    return _cells(title, ("model", "method"), "task", shown)


TABLES: dict[str, Source] = {
    "all-metrics": _cells("{cell.label}", _ALL),
    "differences": _differences,
    "accuracy-improvement": _improvement,
    "accuracy-by-task": _by_task("Accuracy", "accuracy"),
    "nll-by-task": _by_task("NLL (nats)", "NLL"),
    "ece-by-task": _by_task("ECE (15 bins of equal width)", "ECE"),
    "matched-nll-by-task": _by_task(
        "NLL (nats) at the temperature that is best for other questions", "matched NLL"
    ),
    "under-by-task": _by_task("Under-confidence", "under"),
    "over-by-task": _by_task("Over-confidence", "over"),
    "tokens-by-task": _by_task("Tokens a question", "tokens"),
    "accuracy-by-method": _cells("Accuracy", ("model", "task"), across="method"),
    "accuracy-by-weights": _cells("Accuracy", ("checkpoint", "task"), across="weights"),
    "accuracy-by-sizes": _cells(
        "{cell.label}, {cell.task}: accuracy", ["trials"], across="group size"
    ),
    "accuracy-over-seeds": _cells(
        "Accuracy over seeds, mean and standard deviation", (*_EACH, "mean", "each seed")
    ),
    "under-and-over": _cells(_UNDER_AND_OVER, (*_EACH, *_RATIOS), averages=True),
    "engines": _cells(
        "Multi-pass (separate) against single-pass (dense), and the tree",
        (*_EACH, "tokens", *_TIMES, "accuracy", "decisions changed"),
    ),
    "reasoning-texts": _reasoning_texts,
}
# Here several runs fill one row: of a checkpoint in 4 bits and in full precision.
_JOINING = ("accuracy-by-weights",)


def _notes(runs: Sequence[Results], show: Callable[[str], str], ratios: bool) -> str:
    """How to read the tables, `ratios` among them, and what was run."""
    cells = [cell for run in runs for cell in run.cells]
    several = any(c.metrics["clusters"] < c.metrics["questions"] for c in cells)
    of = "questions, those about one fact drawn together" if several else "questions"
    brackets = f"Brackets: 95% bootstrap intervals over {of} (percentile, 1,000 resamples)."
    test = " McNemar's test takes the first question of each fact." if several else ""
    lines = [f"{brackets}{test} Percent unless said.\n"] if cells else []
    if ratios:
        tau = cells[0].metrics["tau"]
        lines.insert(
            0,
            f"under: share of the right answers with a probability below {tau}; "
            f"over: share of the wrong ones with one above {tau}.",
        )
    for run in runs:
        facts = f"{run.config['dtype']}, {run.config['device']}"
        lines.append(f"- {show(f'{run.model} ({facts}): {_questions(run.config)}.')}")
        if settings := settings_of(run.cells):
            lines.append(f"  {show(f'Settings: {settings}.')}")
    return "\n".join(lines)


def _questions(config: dict[str, Any]) -> str:
    """What was asked: the questions of each task, the seeds, and what is left out."""
    tasks = []
    for task, facts in config["tasks"].items():
        scored = facts.get("answered", True)
        unscored = "" if scored else " without answers, so nothing is scored"
        n = facts["questions"]
        tasks.append(f"{task}: {n:,} question{'s' * (n != 1)}{unscored}")
    text = ", ".join(tasks)
    if len(config["seeds"]) > 1:
        text += f" over seeds {', '.join(map(str, config['seeds']))}"
    if not config["full_run"]:
        text += f". Not a full run: the first {config['limit']} questions"
    for task, fits in config["left_out"].items():
        for name, reason in fits.items():
            text += f". {name} of {task} is left out: {reason}"
    return text


def settings_of(cells: Sequence[Cell]) -> str:
    """The settings of each method, by their names after --method. The first trials of a variant
    have the settings of that one."""
    tasks_by_text: dict[str, list[str]] = {}
    for cell in cells:
        if cell.used and cell.method != "first-trials":
            text = f"{cell.name}: {typed(cell.used)}"
            tasks_by_text.setdefault(text, []).append(cell.task)
    all_tasks = {cell.task for cell in cells}
    return "; ".join(
        text if {*tasks} == all_tasks else f"{text} ({', '.join(tasks)})"
        for text, tasks in tasks_by_text.items()
    )


def _markdown(
    title: str, rows: Sequence[Texts], width: int | None, show: Callable[[str], str]
) -> str:
    """A Markdown table whose columns line up as plain text too.

    With `width` the model and the task stand in the title where they are one. Where lines are still
    longer, intervals go, then columns, which are named below the table.
    """
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    columns = [[name, *(row.get(name, "-") for row in rows)] for name in headings]
    columns = [[show(text) for text in each] for each in columns]
    title = show(title)
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
