"""Measure methods on data sets, or run an experiment of the paper.

Every answer is written to the disk at once, and --resume goes on with a run that was cut off. Needs
the extra `eval`. `minise tasks` lists all tasks, methods and experiments.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minise.commands import options
from minise.commands.options import ModelRequest
from minise.errors import InputError, quote
from minise.evaluation.experiments import EXPERIMENTS, find_experiment
from minise.grouping import MOST_GROUPS
from minise.methods.registry import split_names
from minise.names import ENGINES

MOST_SEEDS = 100
EXAMPLE = "minise eval --task miniature --method standard,self-ensemble --output-path runs/try"


@dataclass(frozen=True)
class EvalRequest:
    """What to run, on which questions, and what to keep of it.

    Either `experiment` names one of EXPERIMENTS, or `methods` holds the methods, each with its
    settings. Where options left something open, the values are the experiment's. group_size,
    trials, grouping, null_option and engine are None where no option gives them. arguments: the
    command line.
    """

    model: ModelRequest
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    experiment: str | None
    seeds: tuple[int, ...]
    question_seed: int | None
    cut_to: tuple[int, ...]
    only_choices: int | None
    limit: int | None
    questions: int
    none_of_the_above: bool
    skip_bad_rows: bool
    columns: Mapping[str, str]
    answers: str | None
    group_size: int | None
    trials: int | None
    grouping: str | None
    null_option: bool | None
    preset: str
    engine: str | None
    tokens_per_pass: int | None
    output_path: Path
    resume: bool
    label: str | None
    keep_groups: bool
    keep_text: bool
    json: bool
    arguments: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_questions(parser)
    _add_methods(parser)
    options.add_model(parser)
    add = options.group(parser, "output").add_argument
    folder = "where the run is kept"
    add("-o", "--output-path", type=Path, required=True, metavar="DIR", help=folder)
    add("--resume", action="store_true", help="go on with the run in DIR")
    label = "a name for this run beside the model's, in tables and figures"
    add("--label", metavar="TEXT", help=label)
    add("--keep-groups", action="store_true", help="keep the probabilities of each group, too")
    secret = "keep no text of questions and choices in the folder, as for secret data"
    add("--no-text", dest="keep_text", action="store_false", help=secret)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    add = options.group(parser, "question").add_argument
    tasks = (
        "a data set (qasc, miniature, ...); NAME@REVISION, a branch, tag or commit of it on the "
        "hub; NAME@FILE, a local file of it; a file of your own questions, .jsonl, .json, .csv, "
        ".tsv or .parquet (docs/evaluation.md), or - for standard input"
    )
    add("--task", metavar="NAME_OR_FILE[,...]", help=tasks)
    add("--limit", type=int, metavar="N", help="the first N questions only")
    add("--questions", type=int, metavar="N", help="how many of the miniature's (default: 1000)")
    add("--only-choices", type=int, metavar="K", help="only the questions of K choices")
    cut = "questions with K of their choices; those of a smaller K are among those of a larger K"
    add("--cut-to", type=_integers, default=(), metavar="K[,K...]", help=cut)
    add("--skip-bad-rows", action="store_true", help="list unusable rows; go on without them")
    options.add_columns(parser)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    add = options.group(parser, "method").add_argument
    methods = (
        "standard, self-ensemble, ..., or a class of your own, FILE.py:CLASS; settings of one "
        "method are in parentheses: 'standard,self-ensemble(trials=7),cot(max_new_tokens=64)'"
    )
    add("--method", metavar="NAME[,...]", help=methods)
    names = ", ".join(EXPERIMENTS)
    experiment = f"instead of --method; it has its own tasks unless --task is given: {names}"
    add("--experiment", choices=tuple(EXPERIMENTS), metavar="NAME", help=experiment)
    seeds = "of the groups; several are pooled, with their spread reported"
    add("--seed", type=_integers, default=(), metavar="S[,S...]", help=seeds)
    drawn = "of the questions and choices that a task draws (default: as --seed; seeds: 0)"
    add("--question-seed", type=int, metavar="S", help=drawn)
    add("--group-size", type=int, metavar="M", help="default: the paper's for the data set")
    add("--trials", type=int, metavar="N", help="default: the paper's for the data set")
    options.add_prompts(parser)
    add("--engine", choices=ENGINES, help="default: tree")
    together = "run several questions in one pass of the engine tree, of at most T tokens together"
    add("--tokens-per-pass", type=int, metavar="T", help=together)


def request(args: argparse.Namespace) -> EvalRequest:
    options.need_evaluation()
    _check(args)
    experiment = find_experiment(args.experiment)
    methods = [] if args.method is None else split_names(args.method)
    return options.filled(
        EvalRequest,
        args,
        model=options.filled(ModelRequest, args),
        tasks=experiment.datasets if args.task is None else tuple(split_names(args.task)),
        methods=tuple(methods),
        seeds=_seeds(args.seed or experiment.seeds),
        question_seed=(
            experiment.question_seed if args.question_seed is None else args.question_seed
        ),
        cut_to=args.cut_to or experiment.cut_to,
        questions=args.questions or experiment.questions,
        none_of_the_above=experiment.none_of_the_above,
    )


def _check(args: argparse.Namespace) -> None:
    """Raise InputError for numbers out of range, and for options that do not go together."""
    for name in ("group_size", "trials", "questions", "limit", "tokens_per_pass"):
        value = getattr(args, name)
        if value is not None and value < 1:
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


def _seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        reason = f"names a seed twice, or more than {MOST_SEEDS}"
        raise InputError(f"--seed {quote(','.join(map(str, seeds)))} {reason}")
    return seeds


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quote(text)} is no list of whole numbers") from None
