"""The answers of `minise ask` for a person: from the JSON object, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minise.commands.ask import GROUPED, TITLES
from minise.errors import painted, printable

NULL_ROW = "none of the above"
# Accuracy on 5,000 questions of 8 choices, with weights/tiny-llama: docs/miniature.md.
HOW_OFTEN = (
    "The built-in question is the first evaluation question of the shipped world that standard\n"
    "inference gets wrong and Self-Ensemble right. Of 5,000 questions with 8 choices, standard\n"
    "inference answers 52.7% and Self-Ensemble 79.8% correctly (docs/miniature.md)."
)
Report = Mapping[str, Any]  # the JSON object of one method


def as_text(report: Report, show_groups: bool, block: str, note: Sequence[str] = ()) -> str:
    """The JSON object of `minise ask`, with bars made of `block`: a column for each method."""
    second = report.get("standard", {})
    columns = [report] if second.get("choices") is None else [second, report]
    table = _table(report, columns, block)
    lines = []
    for column in columns:
        lines += ["", *_answer(column)]
        lines += [f"  {line}" for line in _cost_and_precision(column)]
    if "left_out" in second:
        lines += ["", f"No standard inference: {second['left_out']}"]
    lines += ["", f"Model: {report['model']}", *note]
    if show_groups:
        lines += _groups(report)
    for column in columns:
        prompts = column.get("prompts", ())
        for number, prompt in enumerate(prompts, 1):
            title = f"{TITLES[column['method']]}, prompt {number} of {len(prompts)}"
            lines += ["", f"--- {title} ---", prompt]
    # The colours of the table are commands to the terminal. Only its texts are from outside.
    return "\n".join([printable(report["question"]), "", *table, *map(printable, lines)])


def _table(report: Report, columns: Sequence[Report], block: str) -> list[str]:
    """A row for each choice: its probability by each method, as a number and as a bar. What a
    method predicts is marked: in green where it is right, in red where it is wrong."""
    texts, null = [printable(choice["text"]) for choice in report["choices"]], report["null"]
    labels = texts if null is None else [*texts, NULL_ROW]
    width = min(40, max(map(len, labels)))
    bars = 30 if len(columns) == 1 else 16
    lines = []
    if len(columns) > 1:
        heads = "".join(f"{TITLES[column['method']]:<30}" for column in columns)
        lines.append(f"{'':{width + 6}}{heads}".rstrip())
    for index, text in enumerate(texts):
        line = f"  {text:<{width}}"
        for column in columns:
            p = column["choices"][index]["probability"]
            cell = f"{p:6.1%}  {block * round(bars * p)}".rstrip()
            gap = " " * (bars + 10 - len(cell))
            if index == column["prediction"]:
                line += f"  {painted(f'> {cell}', _colour(column))}{gap}"
            else:
                line += f"    {cell}{gap}"
        lines.append(line.rstrip())
    if null is not None:
        gap = " " * (30 * (len(columns) - 1) + 4)
        lines.append(f"  {NULL_ROW:<{width}}{gap}{null:6.1%}  mean of the prompts, not in the 100%")
    return lines


def _colour(report: Report) -> str:
    """Of the prediction's mark."""
    if report["answer"] is None:
        return "bold"
    return "green" if report["prediction"] == report["answer"] else "red"


def _groups(report: Report) -> list[str]:
    """The score of each choice, and the probabilities of each group."""
    lines = ["", "scores:"]
    for choice in report["choices"]:
        lines.append(f"      {choice['text']} {choice['score']:.4f}")
    lines += ["", "groups:"]
    for number, group in enumerate(report["groups"], 1):
        cells = []
        for choice, p in zip(group["choices"], group["probabilities"], strict=True):
            cells.append(f"{report['choices'][choice]['text']} {p:.1%}")
        if group["null"] is not None:
            cells.append(f"{NULL_ROW} {group['null']:.1%}")
        lines.append(f"{number:4}  {', '.join(cells)}")
    return lines


def _answer(report: Report) -> list[str]:
    """What the method answers, whether it is right, and that it rather means none of them."""
    predicted, right = report["prediction"], report["answer"]
    text, null = report["choices"][predicted]["text"], report["null_beside_prediction"]
    verdict = "" if right is None else f" ({'right' if predicted == right else 'wrong'})"
    lines = [f"{TITLES[report['method']]} answers: {text}{verdict}"]
    if null is not None and null > 0.5:
        most = max(max(group["probabilities"]) for group in report["groups"])
        lines += [
            f"  The model says none of the above: it gives that {null:.1%} on average in the "
            "prompts that",
            f"  list {text}. No choice got more than {most:.1%} in any prompt. The "
            "percentages above only rank them.",
        ]
    return lines


def _cost_and_precision(report: Report) -> list[str]:
    """What was run, how many tokens it took, and how far the scores can be trusted."""
    tokens, trials = report["tokens"], report["trials"]
    written = [_written(report)] if "reasoning" in report else []
    if report["method"] not in GROUPED:
        count = len(report["choices"])
        cost = f"cost: 1 prompt with all {count} choices, {tokens['separate']:,} tokens"
        return [cost, *written]
    groupings = f"{trials} trial{'s' * (trials > 1)}" if trials else "all orders"
    m, K = report["group_size"], len(report["choices"])
    groups = f"groups of {m}" if m < K else f"one group with all {K} choices"
    prompts = f"{groupings} of {groups} = {len(report['groups'])} prompts"
    lines = [
        f"cost: {prompts},",
        f"  {tokens['separate']:,} tokens as separate prompts, {tokens['dense']:,} packed, "
        f"{tokens['tree']:,} with common prefixes merged (this run: {report['engine']})",
        *written,
    ]
    return [*lines, *_precision(report)]


def _precision(report: Report) -> list[str]:
    """By how much the first choice leads."""
    first, second = sorted(report["choices"], key=lambda choice: -choice["score"])[:2]
    lead = 100 * (first["score"] - second["score"])
    return [
        f"precision: the score of {first['text']}, its mean probability in the prompts that list "
        f"it, is {first['score']:.1%},",
        f"  {lead:.1f} percentage points more than that of the next, {second['text']}.",
        "  The table above shows probabilities: each score divided by the sum of all scores.",
    ]


def _written(report: Report) -> str:
    """How much the model wrote before, and which choice its text names."""
    cut = ", cut by the budget" if report["cut"] else ""
    choice = report["said"]
    named = "names no choice" if choice is None else f"names {report['choices'][choice]['text']}"
    return f"  of which it wrote {report['new_tokens']:,} itself{cut}; that text {named}"
