"""--dry-run: what a command would run, planned with the tokenizer and the config alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from minise.engines import LanguageModel, check_fit
from minise.errors import InputError, printable, say
from minise.evaluation.progress import progress
from minise.loading.placement import Placement, in_words, name_of, pass_bytes
from minise.method import Method, Plan
from minise.names import LAYOUTS


def count(
    lm: LanguageModel, methods: dict[str, tuple[Any, str]], asked: Sequence[tuple[int, Any]]
) -> dict[str, dict[str, Any]]:
    """What each method, named with its engine, would run on these questions with their seeds. One
    that cannot ask them is left out, unless it is the first. "written": the most tokens that the
    model may write before it answers, which come on top. "more_rounds": it asks again,
    which depends on the answers; counted is the first round."""
    counted: dict[str, dict[str, Any]] = {}
    for name, (method, engine) in methods.items():
        try:
            counted[name] = _count(lm, method, engine, asked, name)
        except InputError as error:
            if not counted:
                raise
            say(f"{name} is left out: {error}")
    return counted


def _count(
    lm: LanguageModel, method: Any, engine: str, asked: Sequence[tuple[int, Any]], what: str
) -> dict[str, Any]:
    told: dict[str, Any] = {"engine": engine, "questions": len(asked), "prompts": 0, "passes": 0}
    told |= {"tokens": dict.fromkeys(LAYOUTS, 0), "largest_pass": 0, "written": 0}
    if isinstance(method, Method) and method.asks_again:
        told["more_rounds"] = True
    if not isinstance(method, Method):  # on answers that others got: it runs nothing
        return told
    with closing(progress(asked, f"planning {what}", "question")) as planning:
        for seed, question in planning:
            plan: Plan = method.plan(lm, question, seed)
            check_fit(lm.name, lm.config, plan.prefix, plan.branches)
            alone = engine == "separate" and plan.layout is None
            told["prompts"] += len(plan.prompts)
            told["passes"] += len(plan.prompts) if alone else 1
            for way in LAYOUTS:
                told["tokens"][way] += plan.tokens(way)
            longest = len(plan.prefix) + max(map(len, plan.branches))
            largest = longest if alone else plan.tokens(engine)
            told["largest_pass"] = max(told["largest_pass"], largest)
            told["written"] += method.max_new_tokens
    return told


def show(
    args: argparse.Namespace, lm: LanguageModel, counted: dict[str, dict[str, dict[str, Any]]]
) -> int:
    """Print the plan: `counted` holds what `count` says, by task and method. Returns 0."""
    placed: Placement = args.placed
    rows = [row for methods in counted.values() for row in methods.values()]
    packed = args.packed is not None
    needs = (
        pass_bytes(lm.config, placed.dtype, row["largest_pass"], row["engine"], packed)
        for row in rows
    )
    told = {
        "model": args.model,
        "dtype": name_of(placed.dtype),
        "device": str(placed.device),
        "why": placed.why,
        "quantize": args.packed,
        "weights_bytes": placed.bytes,
        "pass_bytes": max(needs, default=0),
        "free_bytes": placed.free,
        "tasks": counted,
    }
    print(json.dumps(told) if args.json else printable("\n".join(_text(told))))
    return 0


def _text(told: dict[str, Any]) -> Iterable[str]:
    """The same for a person."""
    rows = [(task, name, row) for task, each in told["tasks"].items() for name, row in each.items()]
    longest = max(row["largest_pass"] for _, _, row in rows)
    packed = f" in 4 bits ({told['quantize']})" if told["quantize"] else ""
    why = f", {told['why']}" if told["why"] else ""
    free = "unknown" if told["free_bytes"] is None else in_words(told["free_bytes"])
    yield f"{told['model']}: {told['dtype']} on {told['device']}{why}"
    yield f"memory: weights {in_words(told['weights_bytes'])}{packed}, free {free}"
    yield f"largest pass: {longest:,} tokens, about {in_words(told['pass_bytes'])} more"
    yield ""
    heads = ("questions", "prompts", "passes", *LAYOUTS)
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    yield f"{'':{sum(widths) + 13}}" + "".join(f"{head:>10}" for head in heads)
    for task, name, row in rows:
        cells = [*(row[head] for head in heads[:3]), *row["tokens"].values()]
        first = f"{task:{widths[0]}}  {name:{widths[1]}}  {row['engine']:9}"
        yield first + "".join(f"{cell:>10,}" for cell in cells)
    for task, name, row in rows:
        if row["written"]:
            yield f"{task}, {name}: and at most {row['written']:,} tokens that the model writes"
        if row.get("more_rounds"):
            yield f"{task}, {name}: and more rounds, which depend on the answers"
    yield ""
    yield "separate, dense, tree: the tokens that each engine runs. Nothing was run or written."
