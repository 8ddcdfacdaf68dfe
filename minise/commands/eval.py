"""Measure methods on data sets, or run an experiment of the paper.

Every answer is on the disk at once, and --resume goes on with a run that was cut off. Needs the
extra `eval`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minise.commands import options, stop
from minise.commands.report import need_extras, show
from minise.errors import InputError, quote, say
from minise.evaluation.experiments import EXPERIMENTS, Experiment
from minise.grouping import MOST_GROUPS
from minise.loading.parallel import World, joined, restarted
from minise.loading.plugin import find_object
from minise.methods.registry import METHODS, OFFERED, Variant, split_methods
from minise.names import ENGINES

if TYPE_CHECKING:
    from minise.data.tasks import Task
    from minise.question import Question

MOST_SEEDS = 100
EXAMPLE = "minise eval --task miniature --method standard,self-ensemble --output-path runs/try"


def add_options(parser: argparse.ArgumentParser) -> None:
    question, method, output = (
        options.group(parser, title).add_argument for title in ("question", "method", "output")
    )
    tasks = (
        "qasc, truthfulqa, mmlu_pro_biology, miniature, miniature-many, miniature-hops, or a file "
        "of questions, .jsonl, .json, .csv, .tsv or .parquet, - for standard input (question; "
        "choices, or columns A, B, ...; answer: a letter, the text or an index from 0, or none to "
        "predict only; optional: id); or lm-eval:NAME"
    )
    question("--task", metavar="NAME_OR_FILE[,...]", help=tasks)
    known = "; ".join(f"{name}: {METHODS[name][1]}" for name in OFFERED)
    methods = (
        f"{known}; or a class of your own, FILE.py:CLASS. Settings stand in parentheses: "
        "'self-ensemble,self-ensemble(grouping=balanced,trials=7)'"
    )
    method("--method", metavar="NAME[,...]", help=methods)
    known = "; ".join(f"{name}: {EXPERIMENTS[name].about}" for name in EXPERIMENTS)
    paper = f"in place of --method; its tasks unless --task is given. {known}"
    method("--experiment", choices=tuple(EXPERIMENTS), metavar="NAME", help=paper)
    kept = "where the run is kept"
    output("-o", "--output-path", type=Path, required=True, metavar="DIR", help=kept)
    output("--resume", action="store_true", help="go on with the run in DIR")
    question("--limit", type=int, metavar="N", help="the first N questions only")
    question("--questions", type=int, metavar="N", help="how many of the miniature (default: 1000)")
    question("--only-choices", type=int, metavar="K", help="only the questions of K choices")
    cut = "questions with K of their choices; those of a smaller K are among those of a larger K"
    question("--cut-to", type=_integers, default=(), metavar="K[,K...]", help=cut)
    question("--data", type=Path, metavar="FILE", help="a local file of the data set")
    question("--data-revision", metavar="REV", help="of the data set on the hub")
    include = "a folder of YAML files, for --task lm-eval:NAME: a task of lm-evaluation-harness"
    question("--include-path", type=Path, metavar="DIR", help=include)
    shots = "examples before each question of lm-eval:NAME (default: as the task says)"
    question("--num-fewshot", type=int, metavar="N", help=shots)
    question("--skip-bad-rows", action="store_true", help="list unusable rows; go on without them")
    options.add_model(parser, dtype="float32")
    split = "split the model over W of torchrun's processes: heads and columns of the MLP"
    options.group(parser, "model").add_argument(
        "--tensor-parallel", type=int, default=1, metavar="W", help=split
    )
    options.add_dry_run(parser)
    seeds = "of groups and of what a task draws; several are pooled, their spread reported"
    method("--seed", type=_integers, default=(), metavar="S[,S...]", help=seeds)
    method("--group-size", type=int, metavar="M", help="default: the paper's for the data set")
    method("--trials", type=int, metavar="N", help="default: the paper's for the data set")
    options.add_prompts(parser, preset=_preset)
    options.add_until_decided(parser)
    options.add_budget(parser)
    method("--engine", choices=ENGINES, help="default: tree")
    together = "run questions that have at most T tokens together in one pass of the engine tree"
    method("--tokens-per-pass", type=int, metavar="T", help=together)
    method("--folds", type=int, default=5, metavar="F", help="of the fitted methods (default: 5)")
    label = "a name for this run beside the model's, in tables and figures"
    output("--label", metavar="TEXT", help=label)
    output("--keep-groups", action="store_true", help="keep what each prompt said, too")
    secret = "keep no text of questions and choices in the folder, as for secret data"
    output("--no-text", action="store_true", help=secret)
    layout = "write the results in the JSON layout of lm-evaluation-harness, too"
    output("--format", choices=("lm-eval",), help=layout)
    options.gone(parser, "--method-preset", "write --preset instead")
    options.gone(parser, "--choices", "write --only-choices instead")
    options.gone(parser, "--num-choices", "write --cut-to instead")


def run(args: argparse.Namespace) -> int:
    with joined(args.tensor_parallel) as world:
        return _run(args, world)
    return 0  # process 0 says what another one could not do


def _run(args: argparse.Namespace, world: World) -> int:
    """Everything that can be refused is refused before the model is loaded."""
    need_extras()
    from minise.evaluation.run import Run, assist, evaluate
    from minise.evaluation.samples import check_folder
    from minise.evaluation.usable import able, usable
    from minise.loading.identity import model_identity
    from minise.methods.build import build
    from minise.report.results import Results

    for name in ("group_size", "trials", "questions", "limit", "tokens_per_pass"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise InputError(f"--{name.replace('_', '-')} {quote(value)} is below 1")
    if (args.trials or 0) > MOST_GROUPS:
        raise InputError(f"--trials {quote(args.trials)} is over the limit of {MOST_GROUPS:,}")
    try:
        " ".join(args.arguments).encode()  # results.json keeps them
    except UnicodeEncodeError:
        raise InputError("the command line is not UTF-8; type options and names in UTF-8") from None
    if args.experiment is None and (args.task is None or args.method is None):
        raise InputError("--task and --method say what to run; or give an --experiment")
    if args.experiment is not None and args.method is not None:
        raise InputError("--experiment has its methods; leave --method out, or the experiment")
    if args.experiment is not None:
        options.until_decided(args, [])
    experiment = EXPERIMENTS.get(args.experiment, Experiment("", lambda task: []))
    seeds = args.seed or experiment.seeds
    if len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        reason = f"names a seed twice, or more than {MOST_SEEDS}"
        raise InputError(f"--seed {quote(','.join(map(str, seeds)))} {reason}")
    tasks = {seed: _tasks(args, experiment, seed) for seed in seeds}
    first = tasks[seeds[0]]
    for notice in dict.fromkeys(notice for task in first for notice in task.notices):
        say(notice)
    if args.experiment and any(q.answer is None for task in first for q in task.questions):
        raise InputError("an experiment needs answers; without them give --method")
    asked = Run(tasks, {}, {})
    variants = {t.name: _variants(args, experiment, t, asked.questions(t.name)) for t in first}
    if world.rank == 0:
        check_folder(args.output_path)
    lm = options.load_model(args, world.share)
    if args.experiment:
        variants = {t.name: able(lm, variants[t.name], t) for t in first}
    tasks = usable(lm, tasks, variants, args.skip_bad_rows)
    if args.dry_run and world.rank:
        return 0
    if args.dry_run:
        from minise.commands import dry_run

        kept = replace(asked, tasks=tasks)
        counted = {
            task: dry_run.count(
                lm, {v.name: (build(v), v.engine) for v in of}, kept.questions(task)
            )
            for task, of in variants.items()
        }
        return dry_run.show(args, lm, counted)
    skipped = sorted({row for ts in tasks.values() for task in ts for row in task.skipped})
    changed = (args.group_size, args.trials, args.grouping, args.null_option, args.only_choices)
    names = ("experiment", "model", "dtype", "device", "limit")
    # The last bits of a split model's numbers differ.
    split = {"tensor_parallel": world.width} if world.width > 1 else {}
    todo = replace(
        asked,
        tasks=tasks,
        variants=variants,
        identity={name: getattr(args, name) for name in names} | model_identity(lm) | split,
        keep_groups=args.keep_groups,
        keep_text=not args.no_text,
        tokens_per_pass=args.tokens_per_pass or 0,
        about={
            "full_run": args.limit is None,
            "as_in_paper": all(x is None for x in changed)
            and args.preset == "paper"
            and not any("(" in v.name for each in variants.values() for v in each),
            "label": args.label,
            "command": "minise " + shlex.join(args.arguments),
            "sources": {task.name: task.source for task in first},
            # A reason quotes the row.
            "skipped_rows": [s.partition(": ")[0] for s in skipped] if args.no_text else skipped,
        },
        extra={key: find_object(where) for key, where in experiment.extra.items()},
    )
    if world.rank:
        assist(lm, todo, world)
        return 0
    for row in skipped[:20]:
        say(f"left out: {row}")
    if len(skipped) > 1:
        say(f"left out: {len(skipped):,} rows in all")
    stop.words = "stopped; the same command with --resume goes on"
    results = evaluate(lm, todo, args.output_path, args.resume or restarted(), world)
    show([Results.from_json(results)], args.output_path, args.json)
    if args.format:
        from minise.bridges import harness

        harness.write(results, args.output_path)
    return 0


def _tasks(args: argparse.Namespace, experiment: Experiment, seed: int) -> list[Task]:
    from minise.data.tasks import load_tasks

    return load_tasks(
        experiment.datasets if args.task is None else args.task.split(","),
        data=args.data,
        revision=args.data_revision,
        cut_to=args.cut_to or experiment.cut_to,
        only_choices=args.only_choices,
        seed=seed,
        limit=args.limit,
        questions=args.questions or experiment.questions,
        none_of_the_above=experiment.none_of_the_above,
        skip_bad_rows=args.skip_bad_rows,
        include_path=args.include_path,
        num_fewshot=args.num_fewshot,
    )


def _variants(
    args: argparse.Namespace, experiment: Experiment, task: Task, asked: list[tuple[int, Question]]
) -> list[Variant]:
    """What runs on a task: the methods, or those variants of the experiment that can be fitted.
    Options set what the experiment leaves open."""
    from minise.methods.build import complete, make_variants

    m, n = args.group_size or task.group_size, args.trials or task.trials
    names = ("grouping", "null_option", "preset", "folds", "max_new_tokens", "max_trials")
    settings = {"group_size": m, "trials": n} | {name: getattr(args, name) for name in names}
    settings["alpha"] = args.until_decided
    if args.experiment is None:
        named = options.until_decided(args, split_methods(args.method))
        variants = make_variants(named, settings, args.engine or "tree")
        return _that_fit(variants, task, asked, variants[-len(named) :])
    task = replace(task, group_size=m, trials=n)
    planned = experiment.variants(task)
    if args.preset != "paper" or args.grouping not in (None, "random", "independent"):
        # The groups of fewer trials are then not the first ones of more: each is a run of its own.
        asking = {"first-trials": "self-ensemble"}
        planned = [replace(v, method=asking.get(v.method, v.method)) for v in planned]
    variants = [complete(variant, settings) for variant in planned]
    if args.engine is not None and len({variant.engine for variant in variants}) == 1:
        variants = [replace(variant, engine=args.engine) for variant in variants]
    return _that_fit(variants, task, asked)


def _that_fit(
    variants: list[Variant],
    task: Task,
    asked: list[tuple[int, Question]],
    wanted: Sequence[Variant] = (),
) -> list[Variant]:
    """The variants without those that cannot be fitted on these questions, which are named on
    stderr. Raises InputError where all that are `wanted` are among them."""
    from minise.methods.build import build
    from minise.methods.fitted import Fitted

    refused: dict[str, InputError] = {}
    for variant in variants:
        method = build(variant)
        if isinstance(method, Fitted):
            try:
                method.check(asked)
            except InputError as error:
                refused[variant.name] = error
    if refused:
        why = next(iter(refused.values()))
        if wanted and all(variant.name in refused for variant in wanted):
            raise why
        say(f"{task.name}: left out: {', '.join(refused)} ({why})")
    return [variant for variant in variants if variant.name not in refused]


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quote(text)} is no list of whole numbers") from None


def _preset(text: str) -> str:
    """A preset. Experiments had their names here before."""
    experiment = {"precision": "groupings"}.get(text, text)
    if experiment in EXPERIMENTS:
        raise argparse.ArgumentTypeError(f"for an experiment write --experiment {experiment}")
    return text
