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
from minise.question import Question

Tasks = dict[int, list[Task]]  # by seed


def usable(
    lm: LanguageModel, tasks: Tasks, variants: dict[str, list[Variant]], skip: bool
) -> Tasks:
    """The tasks with those questions that every variant of the task can ask under every seed.

    The others are among the task's `skipped`. Raises InputError if there are any, unless `skip`;
    and where none is left, or all fail for one reason, which is then not a question's.
    """
    refused: dict[str, dict[str, str]] = {}  # the reasons by task and question id
    for name, of_task in variants.items():
        by_seed = [
            (seed, task) for seed, each in tasks.items() for task in each if task.name == name
        ]
        reasons = refused[name] = _refusals(lm, _different(of_task), by_seed)
        ids = {question.id for _, task in by_seed for question in task.questions}
        if len(reasons) == len(ids) > 1 and len(set(reasons.values())) == 1:
            raise InputError(f"{name}: {next(iter(reasons.values()))}")
        if reasons and not (skip and len(reasons) < len(ids)):
            places = {id: place for _, task in by_seed for id, place in task.places.items()}
            id, reason = next(iter(reasons.items()))
            some_are_left = len(reasons) < len(ids)
            remedy = "leave them out with --skip-bad-rows" if some_are_left else "none is left"
            count = f"{len(reasons):,} of {len(ids):,} questions cannot be asked"
            raise InputError(f"{_line(id, reason, name, places)} ({count}; {remedy})")
    return {
        seed: [_without(task, refused.get(task.name, {})) for task in each]
        for seed, each in tasks.items()
    }


def able(lm: LanguageModel, variants: Sequence[Variant], task: Task) -> list[Variant]:
    """The variants of an experiment without those that this model can run on no question of the
    task, and without those fitted on them. These are named on stderr, in a line for each reason.
    All are there if none is left: then the run itself gives the reason."""
    by_choices = sorted(task.questions, key=lambda question: len(question.choices))
    refused: dict[str, str] = {}
    for variant in variants:
        method = build(variant)
        if isinstance(method, Method):
            reason = _unsuited(lm, method, by_choices)
        else:
            reason = next((refused[name] for name in method.needs if name in refused), "")
        if reason:
            refused[variant.name] = reason
    if len(refused) == len(variants):
        return list(variants)
    for reason in dict.fromkeys(refused.values()):
        names = [name for name, why in refused.items() if why == reason]
        say(f"{task.name}: left out: {', '.join(names)} ({reason})")
    return [variant for variant in variants if variant.name not in refused]


def _unsuited(lm: LanguageModel, method: Method, questions: Sequence[Question]) -> str:
    """Why the method suits none of these questions; empty if it suits one."""
    reasons: list[str] = []
    for question in questions:
        try:
            _check(lm, method, question, 0)
        except Unsuited as error:
            reasons.append(str(error))
            continue
        except InputError:  # for another reason, which the run itself gives
            pass
        return ""
    return reasons[0]


def _check(lm: LanguageModel, method: Method, question: Question, seed: int) -> Plan:
    """The plan of a question. Raises InputError if the method or the model cannot run it."""
    plan: Plan = method.plan(lm, question, seed)
    labels = [i for prompt in plan.prompts for i in prompt.label_ids]
    check_fit(lm.name, lm.config, plan.prefix, plan.branches, labels)
    return plan


def _refusals(
    lm: LanguageModel, methods: Sequence[tuple[Method, bool]], tasks: Sequence[tuple[int, Task]]
) -> dict[str, str]:
    """Why a question cannot be asked, by its id. `tasks`: one task by its seeds."""
    reasons: dict[str, str] = {}
    questions = [(seed, question) for seed, task in tasks for question in task.questions]
    with closing(progress(questions, "checking", "question")) as checking:
        for seed, question in checking:
            if question.id in reasons:
                continue
            for method, dense in methods:
                try:
                    plan = _check(lm, method, question, seed)
                    if dense and plan.layout is None:
                        check_mask_fits(len(plan.prefix) + sum(map(len, plan.branches)))
                except InputError as error:
                    reasons[question.id] = f"{method.name}: {one_line(error)}"
                    break
    return reasons


def _different(variants: Sequence[Variant]) -> list[tuple[Method, bool]]:
    """The methods that ask the model, and whether under a dense mask; of those that plan alike,
    one."""
    methods: dict[tuple[str, str, bool], tuple[Method, bool]] = {}
    for variant in variants:
        method, dense = build(variant), variant.engine in ("dense", "plain")
        if isinstance(method, Method):
            methods[variant.method, repr(variant.settings), dense] = method, dense
    return list(methods.values())


def _line(id: str, reason: str, task: str, places: dict[str, str]) -> str:
    """Where a question stands, and why it cannot be asked."""
    return printable(f"{places.get(id, task)}: question {quote(id, 40)}: {reason}")


def _without(task: Task, reasons: dict[str, str]) -> Task:
    """The task without the questions that cannot be asked, which are listed as skipped."""
    usable_questions, skipped = [], []
    for question in task.questions:
        if question.id in reasons:
            skipped.append(_line(question.id, reasons[question.id], task.name, task.places))
        else:
            usable_questions.append(question)
    return replace(task, questions=usable_questions, skipped=[*task.skipped, *skipped])
