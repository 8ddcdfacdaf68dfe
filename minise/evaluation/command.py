"""`minise eval` and `minise report`: from options to a run, and from results to what is shown."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from minise.checkpoint import LanguageModel
from minise.errors import InputError
from minise.evaluation.experiments import EXPERIMENTS, Experiment, plain
from minise.evaluation.figures import draw
from minise.evaluation.methods import FITTED, METHODS, Method
from minise.evaluation.metrics import load_extra
from minise.evaluation.precision import evaluate_precision
from minise.evaluation.runs import Run, evaluate, weights_identity
from minise.evaluation.tables import Results, read_results, report
from minise.evaluation.tasks import Task, default_groups, load_tasks


def run_eval(args: argparse.Namespace, load: Callable[[], LanguageModel]) -> int:
    """Everything that can be refused is refused before the model is loaded."""
    _need_extras()
    for name in ("group_size", "trials", "questions", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {value} is below 1")
    if args.preset is None:
        if args.task is None or args.method is None:
            raise InputError("--task and --method say what to run; or give a --preset")
        experiment = Experiment("", plain(_kinds(args.method)))
    else:
        if args.method is not None:
            raise InputError("--preset has its methods; leave --method out, or the preset")
        experiment = EXPERIMENTS[args.preset]
    seeds = args.seed or experiment.seeds
    if len(set(seeds)) < len(seeds):
        raise InputError(f"--seed {','.join(map(str, seeds))} names a seed twice")
    tasks = {seed: _tasks(args, experiment, seed) for seed in seeds}
    methods = {
        task.name: _methods(args, experiment, task, [t for ts in tasks.values() for t in ts])
        for task in tasks[seeds[0]]
    }
    lm = load()
    identity = {
        "model": args.model,
        **weights_identity(lm),
        "dtype": args.dtype,
        "device": args.device,
        "preset": args.preset,
        "limit": args.limit,
    }
    changed = (args.group_size, args.trials, args.grouping, args.null_option, args.choices)
    run = Run(
        tasks,
        methods,
        identity=identity,
        folds=args.folds,
        keep_groups=args.keep_groups,
        about={
            "full_run": args.limit is None,
            "as_in_paper": all(x is None for x in changed) and args.method_preset == "paper",
            "command": "minise " + shlex.join(args.arguments),
            "sources": {task.name: task.source for task in tasks[seeds[0]]},
            "skipped_rows": sorted({row for ts in tasks.values() for t in ts for row in t.skipped}),
        },
    )
    for row in run.about["skipped_rows"]:
        print(f"minise: left out: {row}", file=sys.stderr)
    try:
        if args.preset == "precision":
            sizes = {t: args.group_size or default_groups(t)[0] for t in run.names}
            results = evaluate_precision(lm, run, sizes, args.output_path, args.resume)
        else:
            results = evaluate(lm, run, args.output_path, args.resume)
    except KeyboardInterrupt:
        print("minise: stopped; the same command with --resume goes on", file=sys.stderr)
        raise
    _show([results], args.output_path, args.json)
    return 0


def run_report(args: argparse.Namespace) -> int:
    """Tables and figures from finished runs, without a model."""
    _need_extras()
    results = [read_results(folder) for folder in args.folders]
    output = args.output_path or args.folders[0]
    _show(results, output, args.json)
    return 0


def _show(runs: Sequence[Results], folder: Path, as_json: bool) -> None:
    """Write report.md and the figures, and print the tables (or the results as JSON)."""
    text = report(runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = draw(runs, folder)
        pictures = "".join(f"\n![{path.stem}]({path.name})\n" for path in figures)
        (folder / "report.md").write_text(text + pictures, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: could not be written ({error.strerror})") from None
    if as_json:
        print(json.dumps(runs[0] if len(runs) == 1 else list(runs)))
        return
    print(text)
    for run in runs:
        for task, cells in run["timing"].items():
            rates = [
                f"{method} {1 / cell['seconds_per_question']:.3g}"
                for method, cell in cells.items()
                if cell["seconds_per_question"]
            ]
            if rates:
                print(f"{task}: questions a second: {', '.join(rates)}")
    print(f"written: {', '.join(str(p) for p in [folder / 'report.md', *figures])}")


def _kinds(names: str) -> list[str]:
    kinds = names.split(",")
    for kind in kinds:
        if kind not in METHODS:
            raise InputError(f'method "{kind}" is unknown; use some of {", ".join(METHODS)}')
    if len(set(kinds)) < len(kinds):
        raise InputError(f"--method {names} names a method twice")
    if set(kinds) & set(FITTED) and "standard" not in kinds:
        return ["standard", *kinds]  # what they are fitted on
    return kinds


def _tasks(args: argparse.Namespace, experiment: Experiment, seed: int) -> list[Task]:
    return load_tasks(
        experiment.tasks if args.task is None else args.task.split(","),
        data=args.data,
        revision=args.data_revision,
        num_choices=args.num_choices or experiment.num_choices,
        options=args.choices,
        seed=seed,
        limit=args.limit,
        questions=args.questions or experiment.questions,
        skip_bad_rows=args.skip_bad_rows,
    )


def _methods(
    args: argparse.Namespace, experiment: Experiment, task: Task, all_tasks: Sequence[Task]
) -> list[Method]:
    """A task's methods, with what the options override."""
    sizes = default_groups(task.name)
    chosen = (args.group_size or sizes[0], args.trials or sizes[1])
    methods = experiment.methods(task.name, chosen)
    same = [t for t in all_tasks if t.name == task.name]
    varies = len({len(q.choices) for t in same for q in t.questions}) > 1
    if args.preset and varies and any(m.kind in FITTED for m in methods):
        methods = [m for m in methods if m.kind not in FITTED]
        print(
            f"minise: {task.name}: {' and '.join(FITTED)} are left out, because the number of "
            "choices varies; --choices K keeps the questions of K choices",
            file=sys.stderr,
        )
    override: dict[str, Any] = {"preset": args.method_preset}
    if args.grouping is not None:
        override["grouping"] = args.grouping
    if args.null_option is not None:
        override["null_option"] = args.null_option
    if args.engine is not None:
        override["engine"] = args.engine
    return [_override(method, override, args.preset) for method in methods]


def _override(method: Method, fields: dict[str, Any], preset: str | None) -> Method:
    # What an experiment varies, it keeps.
    if preset == "efficiency":
        fields = {name: value for name, value in fields.items() if name != "engine"}
    if method.grouping == "exact":
        fields = {name: value for name, value in fields.items() if name != "grouping"}
    return replace(method, **fields)


def _need_extras() -> None:
    for module in ("scipy", "sklearn", "matplotlib", "filelock"):
        load_extra(module)
