"""Results as Markdown, in the paper's layout, with the paper's number where one is comparable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from minise.errors import InputError

Results = dict[str, Any]  # what a results.json holds

_PAPER = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
_MODELS = {source: name for name, sources in _PAPER["models"].items() for source in sources}


def read_results(folder: Path) -> Results:
    """A finished run's results. Raises InputError for a folder without them."""
    path = folder / "results.json"
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        if not {"config", "results", "differences", "timing"} <= set(results):
            raise ValueError("not the results of a run")
        return results
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; finish the run with minise eval --resume"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not readable as results ({error})") from None


def report(runs: Sequence[Results]) -> str:
    """The tables of one or more runs of one experiment (usually one for each model)."""
    presets = {run["config"]["preset"] for run in runs}
    if len(presets) > 1:
        raise InputError(
            f"these folders hold different experiments ({', '.join(sorted(map(str, presets)))}); "
            "report each by itself"
        )
    (preset,) = presets
    parts = [_TABLES[preset](runs) if preset in _TABLES else _plain(runs)]
    if preset in _TABLES and preset not in ("sensitivity", "efficiency", "precision"):
        parts.append(_differences(runs))
    return "\n\n".join(filter(None, [*parts, _notes(runs)])) + "\n"


def _plain(runs: Sequence[Results]) -> str:
    """Every task and method with its metrics."""
    head = [
        "task",
        "method",
        "n",
        "accuracy",
        "NLL",
        "Brier",
        "ECE",
        "AUROC",
        "under",
        "over",
        "tokens",
        "s/question",
        "peak MiB",
    ]
    parts = []
    for run in runs:
        rows = []
        for task, methods in run["results"].items():
            for method, cell in methods.items():
                seconds = run["timing"][task][method]["seconds_per_question"]
                peak = run["timing"][task][method]["peak_bytes"]
                rows.append(
                    [
                        task,
                        method,
                        f"{cell['n']:,}",
                        _percent(cell, "accuracy", _paper("accuracy", run, task, method)),
                        _number(cell, "nll"),
                        _number(cell, "brier"),
                        _number(cell, "ece_width"),
                        _number(cell, "auroc"),
                        _percent(cell, "under_confidence"),
                        _percent(cell, "over_confidence"),
                        f"{cell['tokens']:,.0f}",
                        "" if seconds is None else f"{seconds:.4f}",
                        "" if peak is None else f"{peak / 2**20:,.0f}",
                    ]
                )
        parts.append(f"{run_name(run)}\n\n{_table(head, rows)}")
    return "\n\n".join(filter(None, [*parts, _differences(runs)]))


def _choices(runs: Sequence[Results]) -> str:
    """Accuracy against K."""
    tasks = list(runs[0]["results"])
    rows = [
        [run_name(run), method]
        + [
            _percent(run["results"][t][method], "accuracy", _paper("accuracy", run, t, method))
            for t in tasks
        ]
        for run in runs
        for method in run["results"][tasks[0]]
    ]
    return "Accuracy\n\n" + _table(["model", "method", *tasks], rows)


def _main(runs: Sequence[Results]) -> str:
    """Methods by tasks, and what each method makes of the confidence."""
    tasks = list(dict.fromkeys(task for run in runs for task in run["results"]))
    methods = list(
        dict.fromkeys(m for run in runs for cells in run["results"].values() for m in cells)
    )
    parts = []
    shows: dict[str, Callable[[Results, str, str, Results], str]] = {
        "Accuracy": lambda run, t, m, c: _percent(c, "accuracy", _paper("accuracy", run, t, m)),
        "NLL (nats)": lambda run, t, m, c: _number(c, "nll"),
        "ECE (15 bins of equal width)": lambda run, t, m, c: _number(c, "ece_width"),
        "Under-confidence": lambda run, t, m, c: _percent(c, "under_confidence"),
        "Over-confidence": lambda run, t, m, c: _percent(c, "over_confidence"),
        "Tokens a question": lambda run, t, m, c: f"{c['tokens']:,.0f}",
    }
    for title, show in shows.items():
        rows = [
            [run_name(run), method]
            + [
                show(run, t, method, run["results"][t][method])
                if method in run["results"].get(t, {})
                else "-"
                for t in tasks
            ]
            for run in runs
            for method in methods
        ]
        parts.append(f"{title}\n\n{_table(['model', 'method', *tasks], rows)}")
    return "\n\n".join(parts)


def _methods_across(runs: Sequence[Results]) -> str:
    """One row for each model and task, one column for each method."""
    methods = list(next(iter(runs[0]["results"].values())))
    rows = [
        [run_name(run), task]
        + [_percent(cells[m], "accuracy", _paper("accuracy", run, task, m)) for m in methods]
        for run in runs
        for task, cells in run["results"].items()
    ]
    return "Accuracy\n\n" + _table(["model", "task", *methods], rows)


def _sensitivity(runs: Sequence[Results]) -> str:
    """Trials down, group sizes across."""
    parts = []
    for run in runs:
        for task, cells in run["results"].items():
            names = [name.split("-") for name in cells]
            sizes = list(dict.fromkeys(m for m, _ in names))
            trials = list(dict.fromkeys(n for _, n in names))
            rows = [
                [n.replace("n", "N=", 1) if n != "exact" else "exact"]
                + [
                    _percent(
                        cells[f"{m}-{n}"],
                        "accuracy",
                        _paper("accuracy", run, task, f"{m}-{n}"),
                    )
                    if f"{m}-{n}" in cells
                    else "-"
                    for m in sizes
                ]
                for n in trials
            ]
            head = ["", *(m.replace("m", "m=") for m in sizes)]
            parts.append(f"{run_name(run)}, {task}: accuracy\n\n{_table(head, rows)}")
    return "\n\n".join(parts)


def _seeds(runs: Sequence[Results]) -> str:
    """Mean and standard deviation over the seeds."""
    rows = []
    for run in runs:
        for task, cells in run["results"].items():
            for method, cell in cells.items():
                mean, std = cell["accuracy_seeds_mean"], cell["accuracy_seeds_std"]
                known = _comparable(run) and (task, method) == ("qasc", "self-ensemble")
                paper = _PAPER["seeds"].get(_model(run)) if known else None
                beside = f" (paper {paper[0]:.2f} ± {paper[1]:.2f})" if paper else ""
                spread = "" if std is None else f" ± {100 * std:.2f}"
                each = ", ".join(f"{100 * a:.2f}" for a in cell["seeds"].values())
                rows.append(
                    [run_name(run), task, method, f"{100 * mean:.2f}{spread}{beside}", each]
                )
    return "Accuracy over seeds, mean and standard deviation\n\n" + _table(
        ["model", "task", "method", "mean", "each seed"], rows
    )


def _confidence(runs: Sequence[Results]) -> str:
    """Under- and over-confidence at tau."""
    rows = [
        [run_name(run), task, method]
        + [
            _percent(cell, f"{side}_confidence", _paper(f"{side}_confidence", run, task, method))
            for side in ("under", "over")
        ]
        + [_percent(cell, f"{side}_confidence_scores") for side in ("under", "over")]
        for run in runs
        for task, cells in run["results"].items()
        for method, cell in cells.items()
    ]
    tau = next(iter(next(iter(runs[0]["results"].values())).values()))["tau"]
    return (
        f"Under-confidence: share of the rightly answered with f < {tau}; over-confidence: share "
        f"of the wrongly answered with f > {tau}. f: the probability of the predicted choice; in "
        "the last two columns its score (Eq. 3), which is not normalised over the choices\n\n"
        + _table(["model", "task", "method", "under", "over", "under, score", "over, score"], rows)
    )


def _efficiency(runs: Sequence[Results]) -> str:
    """Multi-pass against single-pass."""
    rows = []
    for run in runs:
        for task, cells in run["results"].items():
            for method, cell in cells.items():
                timing = run["timing"][task][method]
                peak = timing["peak_bytes"]
                paper = _PAPER["efficiency"].get(_model(run), {})
                beside = paper.get(method) if _comparable(run) else None
                seconds = f"{timing['seconds_per_question']:.4f}"
                if beside:
                    seconds += f" (paper, {paper['device']}: {beside['seconds_per_question']})"
                changed = [
                    d["changed"]
                    for d in run["differences"][task]
                    if {d["a"], d["b"]} == {method, "multi-pass"}
                ]
                rows.append(
                    [
                        run_name(run),
                        method,
                        f"{cell['tokens']:,.0f}",
                        seconds,
                        "?" if peak is None else f"{peak / 2**20:,.0f}",
                        _percent(cell, "accuracy", _paper("accuracy", run, task, method)),
                        f"{changed[0]:,} of {cell['n']:,}" if changed else "",
                    ]
                )
    head = ["model", "method", "tokens", "s/question", "peak MiB", "accuracy", "decisions changed"]
    return "Multi-pass (separate) against single-pass (dense), and the tree\n\n" + _table(
        head, rows
    )


def _precision(runs: Sequence[Results]) -> str:
    """Random and balanced groupings at equal N, and what a balanced N is worth in random trials."""
    parts = []
    for run in runs:
        for task, found in run["precision"].items():
            cells = found["cells"]
            rows = []
            for name, cell in cells.items():
                if not name.startswith("random-"):
                    continue
                n = name.removeprefix("random-")
                balanced = cells[f"balanced-{n}"]
                low, high = balanced["worth_interval"]
                row = [n]
                for one in (cell, balanced):
                    row += [
                        f"{one['tokens']:,.0f}",
                        f"{one['variance']:.2e}",
                        f"{100 * one['accuracy']:.1f}",
                        f"{one['nll']:.3f}",
                    ]
                worth = f"{balanced['worth']:.1f} [{low:.1f}, {high:.1f}]"
                take = balanced["tokens_of_worth"]
                most = max(c["tokens"] for other, c in cells.items() if other.startswith("random"))
                rows.append([*row, worth, f"over {most:,.0f}" if take is None else f"{take:,.0f}"])
            exact = cells["exact"]
            rows.append(
                [
                    "exact",
                    f"{exact['tokens']:,.0f}",
                    "0",
                    f"{100 * exact['accuracy']:.1f}",
                    f"{exact['nll']:.3f}",
                    *[""] * 6,
                ]
            )
            head = ["N"]
            for grouping in ("random", "balanced"):
                head += [f"{grouping}: tokens", "variance", "accuracy", "NLL"]
            head += ["worth random trials", "which take tokens"]
            m = run["config"]["group_sizes"][task]
            parts.append(
                f"{run_name(run)}, {task}, m = {m}, {found['questions']} questions x "
                f"{found['repetitions']} repetitions: mean squared distance of the scores from the "
                f"exact expectation\n\n{_table(head, rows)}"
            )
    return "\n\n".join(parts)


_TABLES: dict[str | None, Callable[[Sequence[Results]], str]] = {
    "choices": _choices,
    "main": _main,
    "scale": _methods_across,
    "ablation": _methods_across,
    "sensitivity": _sensitivity,
    "seeds": _seeds,
    "confidence": _confidence,
    "efficiency": _efficiency,
    "precision": _precision,
}


def _differences(runs: Iterable[Results]) -> str:
    """Paired differences, each method against those before it."""
    rows = []
    for run in runs:
        for task, pairs in run["differences"].items():
            for d in pairs:
                low, high = d["interval"]
                rows.append(
                    [
                        run_name(run),
                        task,
                        f"{d['a']} - {d['b']}",
                        f"{100 * d['accuracy']:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]",
                        f"{d['only_a']} / {d['only_b']}",
                        f"{d['mcnemar_p']:.2g}",
                    ]
                )
    if not rows:
        return ""
    head = [
        "model",
        "task",
        "difference",
        "points of accuracy",
        "only first / second right",
        "McNemar p",
    ]
    return "Paired differences\n\n" + _table(head, rows)


def _notes(runs: Sequence[Results]) -> str:
    lines = []
    for run in runs:
        config = run["config"]
        what = ", ".join(
            f"{task}: {facts['questions']:,} questions" for task, facts in config["tasks"].items()
        )
        if len(config["seeds"]) > 1:
            what += f" over seeds {', '.join(map(str, config['seeds']))}"
        short = (
            "" if config["full_run"] else f" Not a full run: the first {config['limit']} questions."
        )
        lines.append(f"- {run_name(run)} ({config['dtype']}, {config['device']}): {what}.{short}")
    return (
        "Brackets: 95% bootstrap intervals over questions (percentile, 1,000 resamples). Percent "
        "unless said.\n\n" + "\n".join(lines)
    )


def run_name(run: Results) -> str:
    name = str(run["config"]["model"]).rstrip("/")
    return Path(name).name if Path(name).is_dir() or name.startswith("weights/") else name


def _model(run: Results) -> str | None:
    return _MODELS.get(run["config"]["model"])


def _comparable(run: Results) -> bool:
    """Whether the paper's number is comparable: the published data, whole, and the paper's own
    settings."""
    config = run["config"]
    return bool(config["full_run"] and config["as_in_paper"])


def _paper(what: str, run: Results, task: str, method: str) -> float | None:
    table = _PAPER[what]
    if what == "accuracy":
        table = table.get(task, {})
    elif task != "qasc":
        return None
    value = table.get(method, {}).get(_model(run))
    return value if _comparable(run) else None


def _percent(cell: Results, name: str, paper: float | None = None) -> str:
    return _value(cell, name, 100, 1) + ("" if paper is None else f" (paper {paper:.2f})")


def _number(cell: Results, name: str) -> str:
    return _value(cell, name, 1, 3)


def _value(cell: Results, name: str, scale: float, digits: int) -> str:
    if cell[name] is None:
        return "-"
    low, high = (scale * bound for bound in cell[f"{name}_interval"])
    return f"{scale * cell[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up as plain text too."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(head), rule, *map(line, rows)])
