"""A method of the user's own, FILE.py:CLASS. Everything that it returns is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from types import new_class
from typing import Any

from minise.engines import LanguageModel
from minise.errors import InputError, quote
from minise.files import json_text
from minise.loading.plugin import guarded
from minise.method import Answer, Method, Plan
from minise.methods.fitted import Fitted
from minise.methods.sample import Sample

MOST_ROUNDS = 1000  # for one question; `until-decided` has at most as many
_MEMBERS = "a method has name and plan, or name, needs and fit"


def with_base(where: str, cls: object) -> type[Method] | type[Fitted]:
    """The user's class with the base class of its kind, Fitted or Method. It need not name the base
    class itself.

    Raises InputError if it is not a class, or has neither `plan` nor `fit`.
    """
    if not isinstance(cls, type):
        raise InputError(f"{where}: is {quote(cls)}; it must be a class")
    fitted = hasattr(cls, "fit") or hasattr(cls, "needs")
    base, function = (Fitted, "fit") if fitted else (Method, "plan")
    if getattr(cls, function, None) in (None, getattr(base, function)):
        raise InputError(f"{where}: has no {function}; {_MEMBERS}")
    # A new class, whose objects take attributes even if the user's class has __slots__.
    return new_class(cls.__name__, (cls,) if issubclass(cls, base) else (cls, base))


def guarded_method(where: str, method: Method | Fitted) -> Method | Fitted:
    """The method object, with each of its functions guarded: an error in it, or a wrong result,
    becomes an InputError that names the file.

    Raises InputError for an object without a name, and for `needs` that are not names.
    """
    if not hasattr(method, "name"):
        raise InputError(f"{where}: has no name; {_MEMBERS}")
    if isinstance(method, Fitted):
        needs: Any = method.needs
        if isinstance(needs, str):
            raise InputError(f"{where}: needs is text; write ({quote(needs)},)")
        if not isinstance(needs, Sequence) or not all(isinstance(name, str) for name in needs):
            raise InputError(f"{where}: needs is {quote(needs)}; write the names of methods")
    for name, check in _CHECKS.items():
        if (function := getattr(method, name, None)) is not None:
            # Not `setattr`: the user's class may be a frozen dataclass.
            object.__setattr__(method, name, guarded(where, function, check))
    return method


# Each check gets the result of a function, then the arguments with which it was called.


def _check_plan(plan: object, lm: LanguageModel, *_: object) -> None:
    if not isinstance(plan, Plan):
        raise InputError(f"plan returned {type(plan).__name__}; it must return a Plan")
    if not plan.prompts or not all(prompt.label_ids for prompt in plan.prompts):
        raise InputError("the plan needs a prompt, and each prompt the ids of its labels")
    if not (plan.prefix or all(plan.branches)):
        raise InputError("a prompt of the plan has no token")
    lists = [plan.prefix, *plan.branches, *(prompt.label_ids for prompt in plan.prompts)]
    V = lm.config.vocab_size
    for ids in lists:
        for i in ids:
            if type(i) is not int or not 0 <= i < V:
                raise InputError(f"the plan has token id {quote(i)}; use ints from 0 to {V - 1}")
    if plan.layout is not None and len(plan.layout.ends) != len(plan.prompts):
        ends = f"{len(plan.layout.ends)} ends for {len(plan.prompts)} prompts"
        raise InputError(f"the plan's layout has {ends}; give one for each")


def _check_more(plan: object, lm: LanguageModel, so_far: Plan, *_: object) -> None:
    if plan is None:
        return
    if not isinstance(plan, Plan):
        raise InputError(f"more returned {type(plan).__name__}; it must return a Plan or None")
    _check_plan(plan, lm)
    # What it got holds all prompts so far: asked again, they would be twice as many each time.
    again = bool(so_far.rounds) and plan.prompts == so_far.prompts
    if plan is so_far or plan.rounds or again:
        raise InputError("more returned the plan that it got; return new prompts, or None to stop")
    if len(so_far.rounds or [so_far]) >= MOST_ROUNDS:
        raise InputError(f"more returned a plan {MOST_ROUNDS:,} times; return None to stop")


def _check_answer(answer: object, plan: Plan, *_: object) -> None:
    if not isinstance(answer, Answer):
        raise InputError(f"answer returned {type(answer).__name__}; it must return an Answer")
    K = len(plan.question.choices)
    _check_numbers(K, answer.prediction, answer.probabilities.tolist(), answer.scores.tolist())


def _check_fit(fitted: object, samples: dict[str, list[Sample]], *_: object) -> None:
    if not isinstance(fitted, list) or not all(isinstance(one, Sample) for one in fitted):
        raise InputError(f"fit returned {type(fitted).__name__}; it must return a list of samples")
    for sample, needed in zip(fitted, next(iter(samples.values()), []), strict=False):
        K = len(needed.scores)
        _check_numbers(K, sample.prediction, sample.probabilities, sample.scores)
        if type(sample.tokens) is not int or not isinstance(sample.seconds, int | float | None):
            raise InputError("a sample's tokens must be an int, its seconds a number or None")
        sample.line()  # raises if JSON cannot hold it


def _check_notes(notes: object, *_: object) -> None:
    json_text(notes)  # raises if JSON cannot hold them


def _check_numbers(K: int, prediction: object, *lists: Sequence[float]) -> None:
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
    "more": _check_more,
    "answer": _check_answer,
    "fit": _check_fit,
    "notes": _check_notes,
    "check": None,
}
