"""What a run will cost, before it is asked: prompts and tokens of all questions that have no answer
yet, and seconds, from some of each method, spread over all."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from minise.commands.counted import ENGINES as COUNTS
from minise.commands.counted import Counts, counted
from minise.errors import InputError, QuestionUnsuited, Unsuited, one_line
from minise.lab.data.asked import Asked
from minise.lab.evaluation.experiments import Variant
from minise.lab.evaluation.folder import LEFT_OUT, samples_path
from minise.lab.evaluation.peak import Measured
from minise.lab.evaluation.pipeline import Answered, answers
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.rows import read_rows
from minise.lab.methods.writes_first import WritesFirst
from minise.lm import LocalModel
from minise.method import Method
from minise.prompts import LanguageModel, check_prompts

COUNTED = 10  # questions of a method, of which prompts are made for a server
TIMED = 3  # of which the model is asked


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
    """questions: that the method can ask. tokens: by engine. exact: prompts and tokens are those of
    all questions; else estimated from some. seconds: estimated; None where the model was not
    asked."""

    questions: int
    prompts: float
    tokens: dict[str, float]
    exact: bool
    seconds: float | None


@dataclass(frozen=True)
class Plans:
    """What the prompts of some questions are. asked: those that can be asked. counts: of their
    prompts. asks_first: the model itself was asked before there were prompts; then these are the
    plans up to that question."""

    asked: list[Asked]
    counts: Counts
    asks_first: bool


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


def priced(one: Left) -> Price:
    """The price of what one method has left. Prompts and tokens follow from the questions, all of
    which are planned, unless the model must be asked before there are prompts (texts that it
    writes, earlier rounds): then some are asked. Seconds are those of some that are asked. Raises
    InputError for a question that cannot be asked: QuestionUnsuited only if none can."""
    plans = None
    if not isinstance(one.method, WritesFirst):
        plans = planned(one, tqdm(one.questions, desc=one.name, leave=False, disable=None))
    exact = plans is not None and not plans.asks_first
    questions: Sequence[Asked] = one.questions
    if plans is not None and exact:
        questions = plans.asked
    found: list[Answered] = []
    seconds = 0.0
    for asked in spread(questions, TIMED):
        if not found:
            list(suited(one, [asked]))  # a first pass reads the weights
        began = time.perf_counter()
        found += suited(one, [asked])
        seconds += time.perf_counter() - began
    if not found:
        raise Unsuited("none of the questions that were tried can be asked")
    share = len(questions) / len(found)
    if plans is not None and exact:
        tokens = {engine: float(number) for engine, number in plans.counts.tokens.items()}
        return Price(len(questions), plans.counts.prompts, tokens, True, seconds * share)
    prompts = sum(answered.counts.prompts for answered in found) * share
    tokens = {}
    for engine in COUNTS:
        tokens[engine] = sum(answered.counts.tokens[engine] for answered in found) * share
    return Price(len(questions), prompts, tokens, False, seconds * share)


def suited(one: Left, questions: Sequence[Asked]) -> Iterator[Answered]:
    """The answers, up to a question that the method cannot ask."""
    with suppress(QuestionUnsuited):
        yield from answers(one.model, one.method, questions)


def planned(one: Left, questions: Iterable[Asked]) -> Plans:
    """The prompts of these questions. Raises InputError as `priced`."""
    asked: list[Asked] = []
    counts = Counts()
    unsuited: QuestionUnsuited | None = None
    for question in questions:
        inside = Counts()
        asking = counted(one.model, inside)
        try:
            _, prompts = one.method.prompts(asking, question.question, question.seed)
            check_prompts(one.model, prompts)
        except QuestionUnsuited as error:
            unsuited = unsuited or error
            continue
        asked.append(question)
        counts.add(prompts.prefix, prompts.branches)
        if inside.prompts:
            counts.prompts += inside.prompts
            for engine in COUNTS:
                counts.tokens[engine] += inside.tokens[engine]
            return Plans(asked, counts, True)
    if unsuited is not None and not asked:
        raise unsuited
    return Plans(asked, counts, False)


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
            plans = planned(one, spread(one.questions, COUNTED))
        except InputError:  # said when it is asked
            continue
        share = len(one.questions) / len(plans.asked)
        prompts += share * plans.counts.prompts
        tokens += share * plans.counts.tokens["separate"]
    if not prompts:
        return ""
    much = f"about {prompts:,.0f} prompts, of {tokens:,.0f} tokens in all"
    return f"{lm.name} will be sent {much}; Ctrl-C stops, the same command goes on"


def as_table(lm: LanguageModel, run: Run, folder: Path | None) -> str:
    """The price of each method, and of all: rows of text."""
    heads: tuple[str, ...] = ("task", "method", "questions", "prompts", *COUNTS, "seconds")
    rows = [heads]
    prices = []
    notes = []
    for one in left(lm, run, folder):
        try:
            price = priced(one)
        except Unsuited as error:
            rows.append((one.task, one.name, LEFT_OUT + one_line(error), *[""] * 5))
            continue
        prices.append(price)
        rows.append((one.task, one.name, f"{price.questions:,}", *numbers(price)))
        missing = len(one.questions) - price.questions
        if missing:
            notes.append(
                f"{one.task}, {one.name}: {missing:,} more cannot be asked, and are left out"
            )
    if not prices:
        return "nothing is left to ask"
    whole = Price(
        questions=0,
        prompts=sum(price.prompts for price in prices),
        tokens={engine: sum(price.tokens[engine] for price in prices) for engine in COUNTS},
        exact=all(price.exact for price in prices),
        seconds=sum(price.seconds or 0.0 for price in prices),
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
    if not whole.exact:
        about += "\n~: estimated from these, for the model is asked before there are prompts."
    return "\n".join([*lines, *notes, "", about])


def numbers(price: Price) -> tuple[str, ...]:
    about = "" if price.exact else "~"
    counts = [f"{about}{price.tokens[engine]:,.0f}" for engine in COUNTS]
    return f"{about}{price.prompts:,.0f}", *counts, f"{price.seconds or 0.0:,.1f}"
