"""Which questions a run can ask: all of them are planned before the first one is asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from minise.data.tasks import Task
from minise.engines import LanguageModel, check_fit, check_mask_fits
from minise.errors import InputError, Unsuited, one_line, printable, quote, say
from minise.evaluation.progress import progress
from minise.method import Method, Plan
from minise.methods.build import build
from minise.methods.registry import Variant

Tasks = dict[int, list[Task]]  # by seed


def usable(
    lm: LanguageModel, tasks: Tasks, variants: dict[str, list[Variant]], skip: bool
) -> Tasks:
    """The tasks with those questions that every variant of the task can ask under every seed.

    The others are among the task's `skipped`. Raises InputError if there are any, unless `skip`;
    and where none is left, or all fail for one reason, which is then not a question's.
    """
    unusable: dict[str, dict[str, str]] = {}  # by task and question id
    for name, of in variants.items():
        same = [(seed, task) for seed, each in tasks.items() for task in each if task.name == name]
        found = unusable[name] = _refusals(lm, _different(of), same)
        ids = {question.id for _, task in same for question in task.questions}
        reasons = set(found.values())
        if len(found) == len(ids) > 1 and len(reasons) == 1:
            raise InputError(f"{name}: {reasons.pop()}")
        if found and not (skip and len(found) < len(ids)):
            places = {key: place for _, task in same for key, place in task.places.items()}
            key, reason = next(iter(found.items()))
            mend = (
                "leave them out with --skip-bad-rows" if len(found) < len(ids) else "none is left"
            )
            count = f"{len(found):,} of {len(ids):,} questions cannot be asked"
            raise InputError(f"{_named(key, reason, name, places)} ({count}; {mend})")
    return {
        seed: [_without(task, unusable.get(task.name, {})) for task in each]
        for seed, each in tasks.items()
    }


def able(lm: LanguageModel, variants: Sequence[Variant], task: Task) -> list[Variant]:
    """The variants of an experiment without those that this model cannot run at all, or not with as
    many choices as every question has, and without those fitted on them. They are said on stderr,
    a line for each reason."""
    fewest = min(task.questions, key=lambda question: len(question.choices))
    refused: dict[str, str] = {}
    for variant in variants:
        method = build(variant)
        try:
            if isinstance(method, Method):
                method.plan(lm, fewest, 0)
            elif missing := [name for name in method.needs if name in refused]:
                refused[variant.name] = refused[missing[0]]
        except Unsuited as error:
            refused[variant.name] = str(error)
        except InputError:  # for another reason, which the run itself tells
            pass
    for reason in dict.fromkeys(refused.values()):
        names = [name for name, why in refused.items() if why == reason]
        say(f"{task.name}: left out: {', '.join(names)} ({reason})")
    return [variant for variant in variants if variant.name not in refused]


def _refusals(
    lm: LanguageModel, methods: Sequence[tuple[Method, bool]], same: Sequence[tuple[int, Task]]
) -> dict[str, str]:
    """Why a question cannot be asked, by its id."""
    found: dict[str, str] = {}
    asked = [(seed, question) for seed, task in same for question in task.questions]
    with closing(progress(asked, "checking", "question")) as checking:
        for seed, question in checking:
            if question.id in found:
                continue
            for method, dense in methods:
                try:
                    plan: Plan = method.plan(lm, question, seed)
                    labels = [i for prompt in plan.prompts for i in prompt.label_ids]
                    check_fit(lm.name, lm.config, plan.prefix, plan.branches, labels)
                    if dense and plan.layout is None:
                        check_mask_fits(len(plan.prefix) + sum(map(len, plan.branches)))
                except InputError as error:
                    found[question.id] = f"{method.name}: {one_line(error)}"
                    break
    return found


def _different(variants: Sequence[Variant]) -> list[tuple[Method, bool]]:
    """The methods that ask the model, and whether under a dense mask; none that plans as another
    one does."""
    found: dict[tuple[str, str, bool], tuple[Method, bool]] = {}
    for one in variants:
        method, dense = build(one), one.engine in ("dense", "plain")
        if isinstance(method, Method):
            found[one.method, repr(one.settings), dense] = method, dense
    return list(found.values())


def _named(key: str, reason: str, task: str, places: dict[str, str]) -> str:
    return printable(f"{places.get(key, task)}: question {quote(key, 40)}: {reason}")


def _without(task: Task, refused: dict[str, str]) -> Task:
    kept = [question for question in task.questions if question.id not in refused]
    skipped = [
        _named(question.id, refused[question.id], task.name, task.places)
        for question in task.questions
        if question.id in refused
    ]
    return replace(task, questions=kept, skipped=[*task.skipped, *skipped])
