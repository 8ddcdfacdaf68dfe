"""Measure methods on a data set, or run an experiment of the paper.

The same command goes on with a run that was cut off. Data sets: qasc, truthfulqa, mmlu_pro_biology,
banking77, miniature, miniature-many, miniature-hops. NAME@FILE is one from a local file, a FILE
alone questions of your own (.jsonl, .json, .csv, .parquet). A wrong method or experiment is
answered by the names of all.

example: minise eval --task miniature --method 'standard,self-ensemble(trials=7)' -o runs/try
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from minise.commands.options import GroupOptions, Option, load_model
from minise.commands.terminal import say
from minise.errors import InputError, check_name, printable, quote
from minise.lab.evaluation.experiments import EXPERIMENTS, Experiment, Variant
from minise.loading import DEFAULT_MODEL
from minise.loading.plugin import load_extra

if TYPE_CHECKING:
    from minise.lab.data.tasks import Task
    from minise.lab.evaluation.folder import Shard
    from minise.lab.evaluation.request import TaskRun
    from minise.question import Question


@dataclass(frozen=True, kw_only=True)
class Options(GroupOptions):
    output: Annotated[
        Path | None, Option("the run's folder; --price needs none", "DIR", short="-o")
    ] = None
    task: Annotated[str | None, Option("data sets or files", "NAME[@FILE],FILE,...")] = None
    method: Annotated[str | None, Option("yours: ./mine.py:Mine", "NAME[(settings)],...")] = None
    experiment: Annotated[str | None, Option("instead of --method", "NAME")] = None
    limit: Annotated[int | None, Option("the first N questions only", "N", min=1)] = None
    cut_to: Annotated[str | None, Option("keep K choices of each question", "K[,K...]")] = None
    seed: Annotated[str | None, Option("of the groups", "S[,S...]")] = None
    question_seed: Annotated[int | None, Option("of what a task draws; else --seed", "S")] = None
    group_size: Annotated[int | None, Option("else the paper's for the data", "M", min=1)] = None
    trials: Annotated[int | None, Option("else the paper's for the data", "N", min=1)] = None
    shots: Annotated[str | None, Option("solved questions in front", "N[@TASK]")] = None
    shard: Annotated[str | None, Option("part I of N, from 0; minise report joins", "I/N")] = None
    columns: Annotated[str, Option("of a FILE with other headers", "ROLE=HEADER,...")] = ""
    keep_groups: Annotated[bool, Option("keep each group's probabilities")] = False
    price: Annotated[bool, Option("say what is left to ask, time some of it, and end")] = False
    keep_text: Annotated[bool, Option("keep the questions' texts")] = False
    for_spreadsheet: Annotated[bool, Option("predictions.csv for Excel and its like")] = False


def run(options: Options) -> int:
    load_extra("pandas")
    from minise.lab.commands import report
    from minise.lab.evaluation.predictions import write_predictions
    from minise.lab.evaluation.price import as_table
    from minise.lab.evaluation.request import Run
    from minise.lab.evaluation.rows import Keep
    from minise.lab.evaluation.run import evaluate

    if options.output is None and not options.price:
        raise InputError("give the run's folder: --output DIR")
    shard = read_shard(options.shard)
    experiment = choose(options)
    tasks = make_tasks(options, experiment)
    about = {
        "experiment": options.experiment,
        "quantize": options.quantize,
        "limit": options.limit,
        "template": options.template or "default",
        "shots": options.shots or "0",
        "seeds": read_integers("seed", options.seed) or list(experiment.seeds),
    }
    keep_groups = options.keep_groups or experiment.keep_groups
    keep = Keep(keep_groups, options.keep_text)
    wanted = Run(tasks, about, shard, keep, experiment.peak)
    lm = load_model(options)
    if options.price or options.output is None:  # without a folder only the price is told
        print(printable(as_table(lm, wanted, options.output)))
        return 0
    evaluate(lm, wanted, options.output, say)
    if shard[1] == 1:
        texts = [variant.text for variant in experiment.variants]
        report.run(report.Options((options.output,), method=tuple(texts)))
    path = write_predictions(options.output, wanted, options.for_spreadsheet)
    print(printable(f"written: {path}, a row for each question and method"))
    if shard[1] == 1:
        return 0
    say(f"shard {shard[0]} of {shard[1]} is done; minise report {options.output} joins all")
    return 0


def choose(options: Options) -> Experiment:
    """The experiment, or one of the methods alone; the first that is named comes first."""
    from minise.lab.methods.registry import make_method, make_methods, split_names

    if options.experiment is not None:
        check_name("experiment", options.experiment, EXPERIMENTS)
        if options.method is not None:
            raise InputError("--experiment has its methods; leave --method out, or the experiment")
        return EXPERIMENTS[options.experiment]
    if options.task is None or options.method is None:
        raise InputError(f"give --task and --method, or an --experiment: {', '.join(EXPERIMENTS)}")
    texts = split_names(options.method)
    text_of_name = {}
    for text in texts:
        name, _ = make_method(text, {})
        text_of_name[name] = text
    for name in make_methods(texts):  # also those that a fitted one needs
        text_of_name.setdefault(name, name)
    variants = [Variant(name, text) for name, text in text_of_name.items()]
    return Experiment(tuple(variants))


def make_tasks(options: Options, experiment: Experiment) -> list[TaskRun]:
    """The questions of all seeds, and what runs on them."""
    from minise.lab.data.asked import Asked
    from minise.lab.data.tasks import Selection, load_tasks
    from minise.lab.evaluation.request import TaskRun

    if options.engine and any(variant.engine for variant in experiment.variants):
        raise InputError(f"--experiment {options.experiment} compares engines; leave --engine out")
    names = options.task.split(",") if options.task else experiment.tasks
    seed = options.question_seed  # of all questions; None: the seed of the groups
    if seed is None:
        seed = experiment.question_seed
    questions: dict[str, list[Asked]] = {}
    tasks: dict[str, Task] = {}
    cut_to = read_integers("cut-to", options.cut_to) or experiment.cut_to
    for of_groups in read_integers("seed", options.seed) or experiment.seeds:
        of_questions = of_groups if seed is None else seed
        selection = Selection(
            limit=options.limit,
            cut_to=cut_to,
            question_seed=of_questions,
            columns=options.columns,
            skip=experiment.skip,
        )
        for task in load_tasks(names, selection):
            tasks.setdefault(task.name, task)
            asked = [Asked(question, of_groups) for question in task.questions]
            questions.setdefault(task.name, []).extend(asked)
    own = sorted({task.origin for task in tasks.values() if task.dataset == "own"})
    if own and options.model == DEFAULT_MODEL:
        toy = f"{DEFAULT_MODEL}, a toy of 2 million parameters that knows one small made-up world"
        say(f"{', '.join(own)} is answered by {toy}; give --model")
    runs = []
    for name, task in tasks.items():
        without = sum(asked.question.answer is None for asked in questions[name])
        if without == len(questions[name]):
            remedy = "if a column has the answers, name it: --columns question=HEADER,answer=HEADER"
            say(f"{name}: no question has an answer, so nothing is scored; {remedy}")
        elif without:
            say(f"{name}: {without:,} of {len(questions[name]):,} have no answer: only predicted")
        defaults = {"group_size": task.group_size, "trials": task.trials, "orders": task.trials}
        runs.append(
            TaskRun(
                name,
                task.dataset,
                questions[name],
                experiment.variants,
                settings(options, task),
                defaults,
            )
        )
    return runs


def settings(options: Options, task: Task) -> dict[str, Any]:
    """Those that are given, of all methods that have them."""
    found = options.settings()
    if options.group_size is not None:
        found["group_size"] = options.group_size
    if options.trials is not None:
        found["trials"] = options.trials
        found["orders"] = options.trials  # a trial of the full list is one order
    if options.shots not in (None, "0"):
        found["solved"] = draw(options, task)
    return found


def draw(options: Options, task: Task) -> tuple[Question, ...]:
    """The solved questions of --shots, from all of another task or of the same one."""
    from minise.lab.data.tasks import Selection, load_tasks
    from minise.lab.methods.templates import draw_solved

    count, _, other = (options.shots or "").partition("@")
    if not re.fullmatch(r"\d{1,9}", count):
        raise InputError(
            f"--shots {quote(options.shots)} is wrong; give N or N@TASK, such as 5@train.csv"
        )
    seed = options.question_seed or 0
    cut_to = [task.choices] if options.cut_to and task.choices else []
    selection = Selection(cut_to=cut_to, question_seed=seed, columns=options.columns)
    [source] = load_tasks([other or task.origin], selection)
    return draw_solved(int(count), source.questions, seed)


def read_integers(name: str, text: str | None) -> Sequence[int]:
    if not text:
        return []
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--{name} {quote(text)} is no list of whole numbers; give 1,2") from None
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--{name} {quote(text)} names a number twice; name each once")
    return numbers


def read_shard(text: str | None) -> Shard:
    from minise.lab.evaluation.facts import MOST_SHARDS

    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text or "0/1")
    i, n = map(int, found.groups()) if found else (0, 0)
    if not i < n <= MOST_SHARDS:
        wanted = f"give I/N, where I is 0 to N - 1, and N at most {MOST_SHARDS:,}"
        raise InputError(f"--shard {quote(text)} is wrong; {wanted}")
    return i, n
