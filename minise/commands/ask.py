"""Answer a question by Self-Ensemble and, beside it, by standard inference.

Without a question, a built-in one is asked.

example: minise ask --question "Which is a bird?" --choice wren --choice trout --choice oak
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

from minise.commands.options import (
    QUESTION,
    GroupOptions,
    Option,
    QuestionOptions,
    load_model,
    read_question,
)
from minise.errors import InputError, Unsuited, printable, quote

if TYPE_CHECKING:
    from minise.lab.evaluation.pipeline import Answered
    from minise.lm import LanguageModel
    from minise.method import Answer, Group, Method
    from minise.question import Question

# Accuracy on 5,000 questions of 8 choices, with weights/tiny-llama: docs/miniature.md.
HOW_OFTEN = (
    "The built-in question is the first evaluation question of the shipped world that standard "
    "inference gets wrong and Self-Ensemble right. Of 5,000 questions with 8 choices, standard "
    "inference answers 52.7% and Self-Ensemble 79.8% correctly (docs/miniature.md)."
)
TITLES = {"standard": "Standard inference", "self-ensemble": "Self-Ensemble"}
NULL_ROW = "none of the above"
NULL_NOTE = "mean over all prompts"
TOY_WORLD = (
    "This model knows only the small world that it was trained on (docs/miniature.md). For "
    "questions of your own name another one by --model."
)
LINE = 80  # columns of prose
BAR = 10  # blocks
INTERVAL = 1.96  # standard errors: 95% of a normal distribution


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions, GroupOptions):
    method: Annotated[
        str | None, Option("cyclic, cot, './mine.py:Mine(x=1)'", "NAME[(settings)]")
    ] = None
    show_prompts: Annotated[bool, Option("print the text of each prompt")] = False
    json: Annotated[bool, Option("print one JSON object, of one method")] = False


@dataclass(frozen=True, eq=False)
class Reply:
    """What a method answered, and what it was asked. prompts: their texts."""

    name: str
    method: Method
    answered: Answered
    prompts: list[str]

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)

    @property
    def question(self) -> Question:
        return self.answered.asked.question

    @property
    def answer(self) -> Answer:
        return self.answered.answer

    @property
    def trials(self) -> int:
        return len({group.trial for group in self.answer.groups})

    @property
    def largest(self) -> int:
        """Choices in the largest group."""
        return max(len(group.choices) for group in self.answer.groups)

    @property
    def errors(self) -> list[float] | None:
        """The standard error of each choice's score over the prompts that list it; None where the
        score is not their plain mean, or one prompt lists the choice."""
        answer = self.answer
        listed: list[list[float]] = [[] for _ in self.question.choices]
        for group in answer.groups:
            if group.weight != 1:  # all groups, and not some that were drawn
                return None
            for choice, probability in zip(
                group.choices, group.probabilities.tolist(), strict=True
            ):
                listed[choice].append(probability)
        errors = []
        for score, values in zip(answer.scores.tolist(), listed, strict=True):
            if len(values) < 2 or abs(score - mean(values)) > 1e-4:  # some compute in bfloat16
                return None
            errors.append(stdev(values) / len(values) ** 0.5)
        return errors

    @property
    def tokens(self) -> dict[str, int]:
        """How many the prompts have by separate prompts, packed, and as a tree."""
        from minise.engines import token_counts

        prompts = self.answered.prompts
        return token_counts(prompts.prefix, prompts.branches)


def run(options: Options) -> int:
    question = read_question(options)
    methods = choose_methods(options)
    lm = load_model(options)
    replies = []
    notes = []
    for name, method in methods.items():
        try:
            replies.append(ask(lm, name, method, question, options.seed))
        except Unsuited as error:  # more choices than labels, for example
            if name != "standard" or len(methods) == 1:
                raise
            notes = ["", f"No standard inference: {error}"]
    if options.json:
        print(json.dumps(as_json(replies[-1], lm, options)))
        return 0
    notes += ["", model_line(lm, options)]
    if options == Options():
        notes += ["", HOW_OFTEN]
    elif options.model == Options.model and question is not QUESTION:
        notes += ["", TOY_WORLD]
    lines = table(replies)
    for line in [*explained(replies, lm.engine), *notes]:
        lines.append(wrapped(printable(line)))
    if options.show_prompts:
        lines += [printable(line) for line in shown_prompts(replies)]
    print("\n".join(lines))
    return 0


def wrapped(text: str) -> str:
    """Prose in lines of at most LINE columns; what follows has the indent of the first."""
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(
            textwrap.fill(
                line,
                LINE,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines)


def model_line(lm: LanguageModel, options: Options) -> str:
    """Which model answered; of one that runs here also how, of a server what it serves."""
    from minise.lm import LocalModel

    line = f"Model: {options.model}"
    if isinstance(lm, LocalModel):
        dtype = str(lm.decoder.dtype).removeprefix("torch.")
        line += f", {dtype} on {lm.decoder.device}"
    else:
        line += f", which serves {lm.name.removeprefix('server:')}"
    if options.equal_bits:
        line += ", with equal bits"
    return line


def choose_methods(options: Options) -> dict[str, Method]:
    """The method of --method, or standard inference and Self-Ensemble; for --json the latter."""
    from minise.method import Method, SelfEnsemble, Standard

    settings = options.settings()
    settings["group_size"] = options.group_size
    settings["trials"] = options.trials
    methods: dict[str, Method] = {}
    if options.method is options.grouping is options.template is None:
        if not options.json:
            methods["standard"] = Standard()
        methods["self-ensemble"] = SelfEnsemble(**settings)
        return methods
    from minise.lab.methods.registry import make_methods, split_names  # takes a while

    settings["orders"] = options.trials  # a trial of the full list is one order

    names = ["standard", "self-ensemble"]
    if options.method:
        names = split_names(options.method)
        if len(names) > 1:
            what = f"--method {quote(options.method)} names {len(names)} methods"
            raise InputError(f"{what}; give ask one, or take minise eval")
    elif options.json:
        names = ["self-ensemble"]
    for name, method in make_methods(names, settings).items():
        if not isinstance(method, Method):
            raise InputError(f"{name} is fitted on the answers of an evaluation; use minise eval")
        methods[name] = method
    return methods


def ask(lm: LanguageModel, name: str, method: Method, question: Question, seed: int) -> Reply:
    from minise.lab.evaluation.pipeline import answers
    from minise.question import Asked

    answered = next(answers(lm, method, [Asked(question, seed)]))
    prompts = answered.prompts
    texts = []
    for branch in prompts.branches:
        texts.append(lm.tokenizer.decode([*prompts.prefix, *branch]))
    return Reply(name, method, answered, texts)


def as_json(reply: Reply, lm: LanguageModel, options: Options) -> dict[str, Any]:
    """The object that --json prints."""
    question, answer = reply.question, reply.answer
    errors = reply.errors
    choices: list[dict[str, Any]] = []
    for i, text in enumerate(question.choices):
        score = float(answer.scores[i])
        interval = None
        if errors is not None:
            reach = INTERVAL * errors[i]
            interval = [max(score - reach, 0.0), min(score + reach, 1.0)]
        probability = float(answer.probabilities[i])
        choices.append(
            {"text": text, "probability": probability, "score": score, "interval": interval}
        )
    groups = []
    for group in answer.groups:
        probabilities = group.probabilities.tolist()
        groups.append(
            {"choices": list(group.choices), "probabilities": probabilities, "null": group.null}
        )
    result = {
        "model": options.model,
        "method": reply.name,
        "engine": lm.engine,
        "template": options.template or "default",
        "group_size": reply.largest,
        "trials": reply.trials,
        "seed": options.seed,
        "question": question.text,
        "choices": choices,
        "prediction": answer.prediction,
        "on_labels": answer.on_labels,
        "groups": groups,
        "tokens": reply.tokens,
    }
    if options.show_prompts:
        result["prompts"] = reply.prompts
    return result


def table(replies: Sequence[Reply]) -> list[str]:
    """The question, and a row for each choice: its probability by each method, as a number and as a
    bar, and the last one's score with its standard error (±). What a method predicts is marked."""
    question = replies[0].question
    can_print_block = "█".encode(sys.stdout.encoding or "ascii", "replace") != b"?"
    block = "█" if can_print_block else "#"
    plus_minus = "±" if can_print_block else "+-"
    texts = [printable(choice) for choice in question.choices]
    width = min(40, max(map(len, [*texts, NULL_ROW])))
    scores = replies[-1].answer.scores.tolist()
    errors = replies[-1].errors
    lines = [printable(question.text), ""]
    if len(replies) > 1 or errors is not None:
        titles = "".join(f"{reply.title:<22}" for reply in replies)
        if errors is not None:
            titles += f" score {plus_minus} error"
        lines.append(f"{'':{width + 4}}{titles}")
    for i, text in enumerate(texts):
        line = f"  {text:<{width}}"
        for reply in replies:
            probability = float(reply.answer.probabilities[i])
            mark = ">" if reply.answer.prediction == i else " "
            line += f"  {mark} {probability:6.1%} {block * round(BAR * probability):<11}"
        if errors is not None:
            line += f" {scores[i]:6.1%} {plus_minus} {100 * errors[i]:.1f}"
        lines.append(line)
    null = mean_null(replies[-1].answer.groups)
    if null is not None:
        gap = " " * (22 * (len(replies) - 1) + 4)
        lines.append(f"  {NULL_ROW:<{width}}{gap}{null:6.1%} {NULL_NOTE}")
    return [line.rstrip() for line in lines]


def explained(replies: Sequence[Reply], engine: str) -> list[str]:
    """What each method answers and what that cost, the score of the answer, and how sure it is."""
    lines = []
    for reply in replies:
        answer = reply.answer
        right = reply.question.answer
        line = f"{reply.title} answers: {reply.question.choices[answer.prediction]}"
        if right is not None:
            line += " (right)" if answer.prediction == right else " (wrong)"
        lines += ["", line]
        lines += [f"  {part}" for part in cost(reply, engine)]
        if len(reply.prompts) > 1:
            score = f"{answer.scores[answer.prediction]:.1%}"
            lines.append(f"  score: {score}, {reply.method.score_is}")
        lines += [f"  {part}" for part in doubts(reply)]
        if "reasoning" in answer.notes:
            lines += ["", f"It wrote first: {answer.notes['reasoning'].strip()}"]
    return lines


def doubts(reply: Reply) -> list[str]:
    """A line where the lead may be noise, and one where little of the probability is on labels."""
    from minise.template import few_on_labels

    answer = reply.answer
    errors = reply.errors
    lines = []
    if errors is not None and len(errors) > 1:
        scores = answer.scores.tolist()
        by_score = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        second = next(i for i in by_score if i != answer.prediction)
        lead = scores[answer.prediction] - scores[second]
        error = (errors[answer.prediction] ** 2 + errors[second] ** 2) ** 0.5
        if lead <= error:
            lines.append(
                f"not sure: its lead over {reply.question.choices[second]} is {100 * lead:.1f} "
                f"points, within the standard error of {100 * error:.1f}; other groups may "
                "answer otherwise"
            )
    warning = few_on_labels(answer.on_labels)
    if warning:
        lines.append(warning)
    return lines


def shown_prompts(replies: Sequence[Reply]) -> list[str]:
    lines = []
    for reply in replies:
        for number, prompt in enumerate(reply.prompts, 1):
            title = f"--- {reply.title}, prompt {number} of {len(reply.prompts)} ---"
            lines += ["", title, prompt]
    return lines


def cost(reply: Reply, engine: str) -> list[str]:
    """What was run, and how many tokens it took."""
    from minise.grouping import random_partitions
    from minise.method import SelfEnsemble

    K = len(reply.question.choices)
    tokens = reply.tokens
    if len(reply.prompts) == 1:
        return [f"cost: 1 prompt with all {K} choices, {tokens['separate']:,} tokens"]
    run = f"{len(reply.prompts):,} prompts"
    if isinstance(reply.method, SelfEnsemble) and reply.method.grouping is random_partitions:
        drawn = "1 trial" if reply.trials == 1 else f"{reply.trials} trials"
        groups = f"one group with all {K} choices"
        if reply.largest < K:
            groups = f"groups of {reply.largest}"
        run = f"{drawn} of {groups} = {run}"
    return [
        f"cost: {run},",
        f"  {tokens['separate']:,} tokens as separate prompts, {tokens['packed']:,} packed, "
        f"{tokens['tree']:,} with common prefixes merged (this run: {engine})",
    ]


def mean_null(groups: Sequence[Group]) -> float | None:
    """The weighted mean probability of the null option; None where it had no part."""
    total = 0.0
    weights = 0.0
    for group in groups:
        if group.null is None:
            return None
        total += group.weight * group.null
        weights += group.weight
    return total / weights
