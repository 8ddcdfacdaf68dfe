"""What a run will cost, before it is asked: prompts, tokens and seconds, from some questions of
each method, spread over all that have no answer yet."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from minise.engines import token_counts
from minise.errors import InputError, Unsuited, one_line
from minise.lab.data.asked import Asked
from minise.lab.evaluation.experiments import Variant
from minise.lab.evaluation.folder import LEFT_OUT, samples_path
from minise.lab.evaluation.peak import Measured
from minise.lab.evaluation.pipeline import answers
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.rows import read_rows
from minise.lab.methods.writes_first import WritesFirst
from minise.lm import LocalModel
from minise.method import Method
from minise.prompts import LanguageModel, Prompts

COUNTED = 10  # questions of a method, of which prompts are made
TIMED = 3  # of which the model is asked: also where it must write before there are prompts
COUNTS = ("separate", "packed", "tree")


@dataclass(frozen=True)
class Left:
    """What a run has still to ask by one method. model: with the method's engine."""

    task: str
    name: str
    text: str  # the method as the user writes it
    method: Method
    model: LanguageModel
    questions: Sequence[Asked]


@dataclass(frozen=True)
class Price:
    """tokens: by engine. seconds: None where the model was not asked."""

    prompts: float
    tokens: dict[str, float]
    seconds: float | None


def left(lm: LanguageModel, run: Run, folder: Path | None) -> Iterator[Left]:
    """By each method that has not all answers in the folder and suits the model."""
    i, n = run.shard
    for task in run.tasks:
        for variant in task.variants:
            method = task.methods[variant.name]
            if not isinstance(method, Method):
                continue  # it is fitted later, on the answers of others
            questions = task.questions[i::n]
            if folder is not None:
                done = read_rows(samples_path(folder, task.name, variant.name, run.shard))
                questions = questions[len(done) :]
            try:
                model = model_for(lm, variant, run.peak)
            except Unsuited:  # said when it is its turn
                continue
            if questions:
                yield Left(task.name, variant.name, variant.text, method, model, questions)


def model_for(lm: LanguageModel, variant: Variant, peak: bool) -> LanguageModel:
    """The model with the variant's engine, if it has one. Raises Unsuited for a model that runs
    elsewhere, where neither its engine nor its memory is known."""
    if variant.engine is None and not peak:
        return lm
    if not isinstance(lm, LocalModel):
        raise Unsuited(f"{variant.name}: needs a model that runs here, and {lm.name} does not")
    if variant.engine is not None:
        lm = lm.with_engine(variant.engine)
    return Measured(lm) if peak else lm


def priced(one: Left, asks: bool) -> Price:
    """The price of what one method has left. asks: the model is asked some of it, and timed.
    Raises InputError for a question that cannot be asked."""
    made: list[Prompts] = []
    seconds = None
    if asks or isinstance(one.method, WritesFirst):
        few = spread(one.questions, TIMED)
        next(answers(one.model, one.method, few[:1]))  # a first pass reads the weights
        began = time.perf_counter()
        made = [answered.prompts for answered in answers(one.model, one.method, few)]
        seconds = (time.perf_counter() - began) / len(few) * len(one.questions)
    if not isinstance(one.method, WritesFirst):
        some = spread(one.questions, COUNTED)
        made = [one.method.prompts(one.model, asked.question, asked.seed)[1] for asked in some]
    share = len(one.questions) / len(made)
    tokens = dict.fromkeys(COUNTS, 0.0)
    for prompts in made:
        for engine, number in token_counts(prompts.prefix, prompts.branches).items():
            tokens[engine] += share * number
    count = share * sum(len(prompts.branches) for prompts in made)
    return Price(count, tokens, seconds)


def spread(questions: Sequence[Asked], count: int) -> Sequence[Asked]:
    """At most so many, spread over all."""
    return questions[:: len(questions) // count + 1]


def for_a_server(lm: LanguageModel, run: Run, folder: Path) -> str:
    """How much a model that runs elsewhere will be sent until the run ends; empty for nothing."""
    prompts = 0.0
    tokens = 0.0
    for one in left(lm, run, folder):
        if isinstance(one.method, WritesFirst):
            continue
        try:
            price = priced(one, asks=False)
        except InputError:  # said when it is asked
            continue
        prompts += price.prompts
        tokens += price.tokens["separate"]
    if not prompts:
        return ""
    much = f"about {prompts:,.0f} prompts, of {tokens:,.0f} tokens in all"
    return f"{lm.name} will be sent {much}; Ctrl-C stops, the same command goes on"


def as_table(lm: LanguageModel, run: Run, folder: Path | None) -> str:
    """The price of each method, and of all: rows of text."""
    heads: tuple[str, ...] = ("task", "method", "questions", "prompts", *COUNTS, "seconds")
    rows = [heads]
    prices = []
    for one in left(lm, run, folder):
        try:
            price = priced(one, asks=True)
        except Unsuited as error:
            rows.append((one.task, one.name, LEFT_OUT + one_line(error), *[""] * 5))
            continue
        prices.append(price)
        rows.append((one.task, one.name, f"{len(one.questions):,}", *numbers(price)))
    if not prices:
        return "nothing is left to ask"
    whole = Price(
        sum(price.prompts for price in prices),
        {engine: sum(price.tokens[engine] for price in prices) for engine in COUNTS},
        sum(price.seconds or 0.0 for price in prices),
    )
    rows.append(("all", "", "", *numbers(whole)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    lines = []
    for row in rows:
        words = []
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            words.append(text.ljust(width) if column < 2 else text.rjust(width))
        lines.append("  ".join(words).rstrip())
    about = f"Tokens by engine; seconds by {lm.engine}, from {TIMED} questions of each method."
    return "\n".join([*lines, "", about])


def numbers(price: Price) -> tuple[str, ...]:
    counts = [f"{price.tokens[engine]:,.0f}" for engine in COUNTS]
    return f"{price.prompts:,.0f}", *counts, f"{price.seconds or 0.0:,.1f}"
