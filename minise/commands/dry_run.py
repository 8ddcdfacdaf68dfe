"""--dry-run: what a command would run, planned with the tokenizer and the config alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from minise.commands.model import Loaded
from minise.engines import LanguageModel, check_fit
from minise.errors import InputError, printable, say
from minise.evaluation.progress import progress
from minise.files import json_text
from minise.loading.placement import in_words, name_of, pass_bytes
from minise.method import Method
from minise.methods.fitted import Fitted
from minise.names import LAYOUTS
from minise.question import Question

Seeded = Sequence[tuple[int, Question]]  # questions with their seeds
Counts = dict[str, dict[str, Any]]  # by method


def count(
    lm: LanguageModel, methods: Mapping[str, tuple[Method | Fitted, str]], questions: Seeded
) -> Counts:
    """What each method, given with its engine, would run on these questions. One that cannot ask
    them is left out, unless it is the first. "written": the most tokens that the model may write
    before it answers; they are not among "tokens". "more_rounds": the method asks again, which
    depends on the answers; the first round is counted."""
    counts: Counts = {}
    for name, (method, engine) in methods.items():
        try:
            counts[name] = _count(lm, method, engine, questions, name)
        except InputError as error:
            if not counts:
                raise
            say(f"{name} is left out: {error}")
    return counts


def _count(
    lm: LanguageModel, method: Method | Fitted, engine: str, questions: Seeded, name: str
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "engine": engine,
        "questions": len(questions),
        "prompts": 0,
        "passes": 0,
        "tokens": dict.fromkeys(LAYOUTS, 0),
        "largest_pass": 0,
        "written": 0,
    }
    if isinstance(method, Fitted):
        return row  # it is fitted on the answers of others, and runs nothing
    if method.asks_again:
        row["more_rounds"] = True
    with closing(progress(questions, f"planning {name}", "question")) as planning:
        for seed, question in planning:
            plan = method.plan(lm, question, seed)
            check_fit(lm.name, lm.config, plan.prefix, plan.branches)
            alone = engine == "separate" and plan.layout is None
            row["prompts"] += len(plan.prompts)
            row["passes"] += len(plan.prompts) if alone else 1
            for layout in LAYOUTS:
                row["tokens"][layout] += plan.tokens(layout)
            longest = len(plan.prefix) + max(map(len, plan.branches))
            largest = longest if alone else plan.tokens(engine)
            row["largest_pass"] = max(row["largest_pass"], largest)
            row["written"] += method.max_new_tokens
    return row


def show(model: str, loaded: Loaded, tasks: dict[str, Counts], as_json: bool) -> None:
    """Print the plan for a model that was loaded without weights: what `count` says, by task."""
    placed = loaded.placement
    assert placed is not None  # load_model refuses --dry-run for other models
    needs = [0]
    for counts in tasks.values():
        for row in counts.values():
            tokens, engine, packed = row["largest_pass"], row["engine"], loaded.packed is not None
            needs.append(pass_bytes(loaded.lm.config, placed.dtype, tokens, engine, packed))
    plan = {
        "model": model,
        "dtype": name_of(placed.dtype),
        "device": str(placed.device),
        "why": placed.why,
        "quantize": loaded.packed,
        "weights_bytes": placed.bytes,
        "pass_bytes": max(needs),
        "free_bytes": placed.free,
        "planned": placed.planned,
        "tasks": tasks,
    }
    print(json_text(plan) if as_json else printable("\n".join(_text(plan))))


def _text(plan: Mapping[str, Any]) -> Iterator[str]:
    """The same for a person."""
    rows = []
    for task, counts in plan["tasks"].items():
        rows += [(task, name, row) for name, row in counts.items()]
    longest = max(row["largest_pass"] for _, _, row in rows)
    packed = f" in 4 bits ({plan['quantize']})" if plan["quantize"] else ""
    why = f", {plan['why']}" if plan["why"] else ""
    free = "unknown" if plan["free_bytes"] is None else in_words(plan["free_bytes"])
    if plan["planned"]:
        free += f" ({plan['free_bytes'] / 1e9:.1f} GB, as --memory says)"
    yield f"{plan['model']}: {plan['dtype']} on {plan['device']}{why}"
    yield f"memory: weights {in_words(plan['weights_bytes'])}{packed}, free {free}"
    yield f"largest pass: {longest:,} tokens, about {in_words(plan['pass_bytes'])} more"
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
