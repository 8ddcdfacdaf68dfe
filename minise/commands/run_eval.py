"""`minise eval`: plan, load the model, run, report. All bad input that can be found without the
model is refused before it is loaded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minise.commands import run_report, stop
from minise.commands.eval import EvalRequest
from minise.commands.model import Loaded, load_model
from minise.data.tasks import Selection, Task, load_tasks
from minise.errors import InputError, say
from minise.evaluation.experiments import EXPERIMENTS, find_experiment
from minise.evaluation.run import Run, evaluate
from minise.evaluation.samples import check_folder
from minise.evaluation.usable import able, usable
from minise.loading.identity import model_identity
from minise.methods.build import build, complete, make_variants
from minise.methods.fitted import Fitted
from minise.methods.registry import Variant
from minise.question import Question
from minise.report.results import Results

Seeded = list[tuple[int, Question]]  # questions with their seeds


def run(request: EvalRequest) -> int:
    plan = make_plan(request)
    check_folder(request.output_path)
    loaded = load_model(request.model)
    _run(for_model(plan, request, loaded), request, loaded)
    return 0


def make_plan(request: EvalRequest) -> Run:
    """The tasks of every seed, and the variants that run on each."""
    tasks = {seed: _load_tasks(request, seed) for seed in request.seeds}
    first = tasks[request.seeds[0]]
    for notice in dict.fromkeys(notice for task in first for notice in task.notices):
        say(notice)
    questions = [question for task in first for question in task.questions]
    if request.experiment is not None and any(q.answer is None for q in questions):
        raise InputError("an experiment needs answers; without them give --method")
    plan = Run(tasks, {}, {})
    variants = {task.name: variants_of(request, task, plan.questions(task.name)) for task in first}
    return replace(plan, variants=variants)


def for_model(plan: Run, request: EvalRequest, loaded: Loaded) -> Run:
    """The plan with the variants and the questions that this model can run, and with what makes it
    this model's run."""
    lm, variants = loaded.lm, plan.variants
    first = plan.tasks[request.seeds[0]]
    if request.experiment is not None:
        variants = {task.name: able(lm, variants[task.name], task) for task in first}
    tasks = usable(lm, plan.tasks, variants, request.skip_bad_rows)
    plan = replace(plan, tasks=tasks, variants=variants)
    identity = {
        "experiment": request.experiment,
        "model": request.model.model,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "limit": request.limit,
        **model_identity(lm),
    }
    return replace(
        plan,
        identity=identity,
        keep_groups=request.keep_groups,
        keep_text=request.keep_text,
        tokens_per_pass=request.tokens_per_pass or 0,
        about=_about(plan, request, first),
        extra=find_experiment(request.experiment).extra,
    )


def _about(plan: Run, request: EvalRequest, tasks: Sequence[Task]) -> dict[str, Any]:
    """What results.json says about the run beside its identity."""
    changed = (
        request.group_size,
        request.trials,
        request.grouping,
        request.null_option,
        request.only_choices,
    )
    names = [variant.name for variants in plan.variants.values() for variant in variants]
    skipped = _skipped(plan)
    if not request.keep_text:  # a reason quotes the row
        skipped = [row.partition(": ")[0] for row in skipped]
    return {
        "full_run": request.limit is None,
        "as_in_paper": all(setting is None for setting in changed)
        and request.preset == "paper"
        and not any("(" in name for name in names),
        "label": request.label,
        "command": "minise " + shlex.join(request.arguments),
        "sources": {task.name: task.source for task in tasks},
        "skipped_rows": skipped,
    }


def _run(plan: Run, request: EvalRequest, loaded: Loaded) -> None:
    """Run the plan, and report."""
    skipped = _skipped(plan)
    for row in skipped[:20]:
        say(f"left out: {row}")
    if len(skipped) > 1:
        say(f"left out: {len(skipped):,} rows in all")
    stop.words = "stopped; the same command with --resume goes on"
    results = evaluate(loaded.lm, plan, request.output_path, request.resume)
    run_report.show([Results.from_json(results)], request.output_path, request.json)


def _skipped(plan: Run) -> list[str]:
    """The malformed and unusable rows of all tasks, with the reasons."""
    return sorted({row for tasks in plan.tasks.values() for task in tasks for row in task.skipped})


def _load_tasks(request: EvalRequest, seed: int) -> list[Task]:
    selection = Selection(
        cut_to=request.cut_to,
        only_choices=request.only_choices,
        seed=seed if request.question_seed is None else request.question_seed,
        limit=request.limit,
        questions=request.questions,
        none_of_the_above=request.none_of_the_above,
        skip_bad_rows=request.skip_bad_rows,
        columns=request.columns,
        answers=request.answers,
    )
    return load_tasks(request.tasks, selection)


def variants_of(request: EvalRequest, task: Task, questions: Seeded) -> list[Variant]:
    """What runs on a task: the methods, or those variants of the experiment that can be fitted.
    Options set what the experiment leaves open."""
    group_size, trials = request.group_size or task.group_size, request.trials or task.trials
    settings = {
        "group_size": group_size,
        "trials": trials,
        "grouping": request.grouping,
        "null_option": request.null_option,
        "preset": request.preset,
    }
    if request.experiment is None:
        variants = make_variants(request.methods, settings, request.engine or "tree")
        return _that_fit(variants, task, questions, variants[-len(request.methods) :])
    experiment = EXPERIMENTS[request.experiment]
    planned = experiment.variants(replace(task, group_size=group_size, trials=trials))
    if request.preset != "paper" or request.grouping not in (None, "random", "independent"):
        # The groups of fewer trials are then not the first ones of more: each is a run of its own.
        asking = {"first-trials": "self-ensemble"}
        planned = [replace(v, method=asking.get(v.method, v.method)) for v in planned]
    variants = [complete(variant, settings) for variant in planned]
    if request.engine is not None and len({variant.engine for variant in variants}) == 1:
        variants = [replace(variant, engine=request.engine) for variant in variants]
    return _that_fit(variants, task, questions)


def _that_fit(
    variants: list[Variant], task: Task, questions: Seeded, wanted: Sequence[Variant] = ()
) -> list[Variant]:
    """The variants without those that cannot be fitted on these questions, which are named on
    stderr. Raises InputError where all that are `wanted` are among them."""
    refused: dict[str, InputError] = {}
    for variant in variants:
        method = build(variant)
        if isinstance(method, Fitted):
            try:
                method.check(questions)
            except InputError as error:
                refused[variant.name] = error
    if refused:
        first = next(iter(refused.values()))
        if wanted and all(variant.name in refused for variant in wanted):
            raise first
        say(f"{task.name}: left out: {', '.join(refused)} ({first})")
    return [variant for variant in variants if variant.name not in refused]
