"""Groupings and methods of the user's own, named FILE.py:NAME: what goes wrong in one is one line.

The line names the object, the class and the message of the exception, and the line of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from math import isfinite
from pathlib import Path
from traceback import walk_tb
from typing import Any

from minise.errors import InputError, one_line, quote


def guarded(
    where: str, function: Callable[..., Any], check: Callable[..., None] | None = None
) -> Callable[..., Any]:
    """The function `where`, which raises InputError in place of any other exception.

    `check` gets its result and what it was given, and raises for a result of no use.
    """
    if not callable(function):
        raise InputError(f"{where}: is {quote(function)}; it must be a function")

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        try:
            result = function(*given, **named)
            if check is not None:
                check(result, *given)
        except InputError as error:
            raise type(error)(f"{where}: {error}") from error
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            raise InputError(f"{where}: {_told(where, error)}") from error
        return result

    return call


def guarded_method(where: str, method: Any) -> Any:
    """The method object with its functions guarded and their results checked."""
    for name, check in _CHECKS.items():
        if (function := getattr(method, name, None)) is not None:
            object.__setattr__(method, name, guarded(where, function, check))  # frozen, maybe
    return method


def check_groups(groups: Any, K: int, *_: object) -> None:
    """Raise InputError unless these are `Groups` of K choices that can be asked and averaged.

    A choice may be in no group only if the trials are independent: then it is missing by chance.
    """
    from minise.grouping import MOST_GROUPS, Groups

    if not isinstance(groups, Groups):
        raise InputError(f"the grouping returned {type(groups).__name__}; it must return Groups")
    try:
        flat = [tuple(group) for group in groups.flat]
    except TypeError:
        raise InputError(f"trials {quote(groups.trials)} are no tuples of groups") from None
    if len(flat) > MOST_GROUPS:
        raise InputError(f"there are {len(flat):,} groups, over the limit of {MOST_GROUPS:,}")
    for group in flat:
        sound = all(type(i) is int and 0 <= i < K for i in group)
        if not group or not sound or len(set(group)) < len(group):
            wanted = f"different indices of choices, ints from 0 to {K - 1}"
            raise InputError(f"group {quote(group)} is wrong; a group has {wanted}")
    missing = sorted(set(range(K)).difference(*flat))
    if flat and missing and not groups.independent:
        raise InputError(f"no group holds choice {missing[0]}; each choice must be in a group")
    weights = groups.weights
    if weights is not None and (
        not isinstance(weights, Sequence)
        or len(weights) != len(flat)
        or not all(isinstance(w, int | float) and isfinite(w) and w > 0 for w in weights)
    ):
        wanted = f"a number above 0 for each of the {len(flat)} groups"
        raise InputError(f"weights {quote(weights)} are wrong; give {wanted}")
    if not isinstance(groups.balance, str | None):
        raise InputError(f"balance is {quote(groups.balance)}; it must be text")


def _check_plan(plan: Any, lm: Any, *_: object) -> None:
    from minise.method import Plan

    if not isinstance(plan, Plan):
        raise InputError(f"plan returned {type(plan).__name__}; it must return a Plan")
    if not plan.prompts or not all(prompt.label_ids for prompt in plan.prompts):
        raise InputError("the plan needs a prompt, and each prompt the ids of its labels")
    if not (plan.prefix or all(plan.branches)):
        raise InputError("a prompt of the plan has no token")
    lists = [plan.prefix, *plan.branches, *(prompt.label_ids for prompt in plan.prompts)]
    V = lm.config.vocab_size
    if odd := [i for ids in lists for i in ids if type(i) is not int or not 0 <= i < V]:
        raise InputError(f"the plan has token id {quote(odd[0])}; use ints from 0 to {V - 1}")
    if plan.layout is not None and len(plan.layout.ends) != len(plan.prompts):
        ends = f"{len(plan.layout.ends)} ends for {len(plan.prompts)} prompts"
        raise InputError(f"the plan's layout has {ends}; give one for each")


def _check_answer(answer: Any, plan: Any, *_: object) -> None:
    from minise.method import Answer

    if not isinstance(answer, Answer):
        raise InputError(f"answer returned {type(answer).__name__}; it must return an Answer")
    K = len(plan.question.choices)
    _check_numbers(K, answer.prediction, answer.probabilities.tolist(), answer.scores.tolist())


def _check_fit(fitted: Any, given: Any, *_: object) -> None:
    from minise.evaluation.samples import Sample

    if not isinstance(fitted, list) or not all(isinstance(one, Sample) for one in fitted):
        raise InputError(f"fit returned {type(fitted).__name__}; it must return a list of samples")
    for one, needed in zip(fitted, next(iter(given.values()), []), strict=False):
        _check_numbers(len(needed.scores), one.prediction, one.probabilities, one.scores)
        if type(one.tokens) is not int or not isinstance(one.seconds, int | float | None):
            raise InputError("a sample's tokens must be an int, its seconds a number or None")
        one.line()  # JSON can hold it


def _check_notes(notes: Any, *_: object) -> None:
    json.dumps(notes)


def _check_numbers(K: int, prediction: Any, *lists: Any) -> None:
    for numbers in lists:
        if len(numbers) != K or not all(isfinite(number) for number in numbers):
            wanted = f"{K} numbers that are finite"
            raise InputError(f"the answer has {quote(numbers)}; give {wanted}")
    if type(prediction) is not int or not 0 <= prediction < K:
        wanted = f"an index from 0 to {K - 1}"
        raise InputError(f"the prediction is {quote(prediction)}; give {wanted}")


_CHECKS: dict[str, Callable[..., None] | None] = {
    "plan": _check_plan,
    "write": _check_plan,
    "answer": _check_answer,
    "fit": _check_fit,
    "notes": _check_notes,
    "check": None,
}


def _told(where: str, error: BaseException) -> str:
    """Class and message of an exception, and where in the user's file it came from."""
    file = Path(where.rpartition(":")[0]).name
    frames = [(Path(f.f_code.co_filename).name, line) for f, line in walk_tb(error.__traceback__)]
    lines = [line for name, line in frames if name == file]
    at = f" ({file}:{lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {one_line(error)}{at}"
