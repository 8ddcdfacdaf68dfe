"""What `minise ask` prints: a table of scores, what each method answered, and what that cost."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from minise.commands.result import MethodResult, few_on_labels
from minise.errors import printable
from minise.grouping import random_partitions
from minise.lm import LocalModel
from minise.method import SelfEnsemble, mean_null
from minise.prompts import LanguageModel

TITLES = {"standard": "Standard inference", "self-ensemble": "Self-Ensemble"}
MEAN = "its mean probability in the prompts that list it"  # what a score of Self-Ensemble is
NULL_ROW = "none of the above"
NULL_NOTE = "mean over all prompts"
LINE = 80  # columns of prose
BAR = 10  # blocks
COLUMN = 22  # of a method in the table


def as_text(
    results: Sequence[MethodResult], engine: str, notes: Sequence[str], show_prompts: bool
) -> str:
    """All that is printed. notes: paragraphs that follow."""
    lines = table(results)
    for line in explained(results, engine):
        lines.append(wrapped(printable(line)))
    for note in notes:
        lines += ["", wrapped(printable(note))]
    if show_prompts:
        lines += [printable(line) for line in shown_prompts(results)]
    return "\n".join(lines)


def title_of(result: MethodResult) -> str:
    return TITLES.get(result.name, result.name)


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


def model_line(lm: LanguageModel, model: str, equal_bits: bool) -> str:
    """Which model answered; of one that runs here also how, of a server what it serves."""
    line = f"Model: {model}"
    if isinstance(lm, LocalModel):
        dtype = str(lm.decoder.dtype).removeprefix("torch.")
        line += f", {dtype} on {lm.decoder.device}"
    elif lm.name.startswith("server:"):
        line += f", which serves {lm.name.removeprefix('server:')}"
    if equal_bits:
        line += ", with equal bits"
    return line


def table(results: Sequence[MethodResult]) -> list[str]:
    """The question, and a row for each choice: its score by each method, which is the mean (Eq. 2),
    of one prompt its probability; the standard error in points (±), where it has one; and a bar.
    What a method predicts is marked."""
    question = results[0].question
    can_print_block = "█".encode(sys.stdout.encoding or "ascii", "replace") != b"?"
    block = "█" if can_print_block else "#"
    plus_minus = "±" if can_print_block else "+-"
    texts = [printable(choice) for choice in question.choices]
    width = min(40, max(map(len, [*texts, NULL_ROW])))
    lines = [printable(question.text), ""]
    if len(results) > 1:
        titles = "".join(f"{title_of(result):<{COLUMN}}" for result in results)
        lines.append(f"{'':{width + 4}}{titles}")
    for i, text in enumerate(texts):
        line = f"  {text:<{width}}"
        for result in results:
            score = float(result.answer.scores[i])
            mark = ">" if result.answer.prediction == i else " "
            cell = f"  {mark} {score:6.1%}"
            if result.standard_errors is not None:
                cell += f" {plus_minus} {100 * result.standard_errors[i]:.1f} "
            cell += f" {block * round(BAR * score)}"
            line += f"{cell:<{COLUMN}}"
        lines.append(line)
    null = results[-1].answer.null
    if null is not None:
        gap = " " * (COLUMN * (len(results) - 1) + 4)
        lines.append(f"  {NULL_ROW:<{width}}{gap}{null:6.1%} {NULL_NOTE}")
    return [line.rstrip() for line in lines]


def explained(results: Sequence[MethodResult], engine: str) -> list[str]:
    """What each method answers and what that cost, the score of the answer, and how sure it is."""
    lines = []
    for result in results:
        right = result.question.answer
        line = f"{title_of(result)} answers: {result.choice}"
        if right is not None:
            line += " (right)" if result.answer.prediction == right else " (wrong)"
        lines += ["", line]
        lines += [f"  {part}" for part in cost(result, engine)]
        if len(result.texts) > 1:
            lines.append(f"  {score_of_answer(result)}")
        lines += [f"  {part}" for part in doubts(result)]
    return lines


def score_of_answer(result: MethodResult) -> str:
    """The score that the table has of the answer, and what it is."""
    answer = result.answer
    line = f"score: {answer.scores[answer.prediction]:.1%}"
    if isinstance(result.method, SelfEnsemble):
        line += f", {MEAN}"
    if result.standard_errors is not None:
        error = result.standard_errors[answer.prediction]
        line += f", with a standard error of {100 * error:.1f} points"
    return line


def doubts(result: MethodResult) -> list[str]:
    """A line where the model chose no choice, one where the lead may be noise, and one where little
    of the probability is on labels."""
    answer = result.answer
    errors = result.standard_errors
    lines = []
    beside = [group for group in answer.groups if answer.prediction in group.choices]
    null = mean_null(beside)
    if null is not None and null > answer.scores[answer.prediction]:
        lines.append(
            f"the model chose none: in the prompts that list {result.choice}, {NULL_ROW} has "
            f"{null:.1%}; the right choice may be missing"
        )
    if errors is not None and len(errors) > 1:
        scores = answer.scores.tolist()
        by_score = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        second = next(i for i in by_score if i != answer.prediction)
        lead = scores[answer.prediction] - scores[second]
        error = (errors[answer.prediction] ** 2 + errors[second] ** 2) ** 0.5
        if lead <= error:
            lines.append(
                f"not sure: its lead over {result.question.choices[second]} is {100 * lead:.1f} "
                f"points, within the standard error of {100 * error:.1f}; other groups may "
                "answer otherwise"
            )
    warning = few_on_labels(answer.on_labels)
    if warning:
        lines.append(warning)
    return lines


def shown_prompts(results: Sequence[MethodResult]) -> list[str]:
    lines = []
    for result in results:
        for number, prompt in enumerate(result.texts, 1):
            title = f"--- {title_of(result)}, prompt {number} of {len(result.texts)} ---"
            lines += ["", title, prompt]
    return lines


def cost(result: MethodResult, engine: str) -> list[str]:
    """What was run, and how many tokens it took."""
    K = len(result.question.choices)
    tokens = result.counts.tokens
    if result.counts.prompts == 1:
        return [f"cost: 1 prompt with all {K} choices, {tokens['separate']:,} tokens"]
    run = f"{result.counts.prompts:,} prompts"
    earlier = result.counts.prompts - len(result.texts)
    if earlier:
        run += f", {earlier:,} of them in earlier rounds"
    if isinstance(result.method, SelfEnsemble) and result.method.grouping is random_partitions:
        drawn = "1 trial" if result.trials == 1 else f"{result.trials} trials"
        groups = f"one group with all {K} choices"
        if result.largest < K:
            groups = f"groups of {result.largest}"
        run = f"{drawn} of {groups} = {run}"
    return [
        f"cost: {run},",
        f"  {tokens['separate']:,} tokens as separate prompts, {tokens['packed']:,} packed, "
        f"{tokens['tree']:,} with common prefixes merged (this run: {engine})",
    ]
