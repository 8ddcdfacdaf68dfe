"""What run.json says of a run, checked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minise.errors import InputError, quote
from minise.lab.data.kinds import (
    OBJECT,
    TEXT,
    WHOLE,
    YES_OR_NO,
    Kind,
    check,
    check_fields,
    from_object,
    list_of,
    whole_from,
)
from minise.lab.files import json_of, read_file

MOST_SHARDS = 100_000
MOST_QUESTIONS = 10**9


@dataclass(frozen=True)
class MethodFacts:
    """A column of a report. text: the method as a user writes it. kind: the name of its class.
    template: how its prompts are written, None where it has none. fitted: it asks no model."""

    text: str
    engine: str
    kind: str
    template: str | None
    settings: dict[str, Any]
    fitted: bool

    def __post_init__(self) -> None:
        needed = {
            "text": TEXT,
            "engine": TEXT,
            "kind": TEXT,
            "settings": OBJECT,
            "fitted": YES_OR_NO,
        }
        check_fields(self, needed, {"template": TEXT})


@dataclass(frozen=True)
class TaskFacts:
    """choices: the number K of every question, None where they differ. questions: how many, under
    all seeds. hash: of them all. options: settings of all methods that have them."""

    dataset: str
    choices: int | None
    questions: int
    hash: str
    options: dict[str, Any]
    methods: dict[str, MethodFacts]

    def __post_init__(self) -> None:
        needed = {
            "dataset": TEXT,
            "questions": whole_from(1, MOST_QUESTIONS),
            "hash": TEXT,
            "options": OBJECT,
            "methods": OBJECT,
        }
        check_fields(self, needed, {"choices": whole_from(2)})


@dataclass(frozen=True)
class RunFacts:
    """What a report needs of run.json. dtype, device, server, parameters: None where it is not
    known. whole: all that the file holds."""

    model: str
    experiment: str | None
    quantize: str | None
    limit: int | None
    template: str
    shots: str
    seeds: list[int]
    shards: int
    tasks: dict[str, TaskFacts]
    parameters: int | None = None
    dtype: str | None = None
    device: str | None = None
    server: str | None = None
    equal_bits: bool = False  # runs before do not say
    whole: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        needed = {
            "model": TEXT,
            "template": TEXT,
            "shots": TEXT,
            "seeds": list_of(WHOLE),
            "shards": whole_from(1, MOST_SHARDS),
            "tasks": OBJECT,
            "equal_bits": YES_OR_NO,
        }
        optional = {
            "experiment": TEXT,
            "quantize": TEXT,
            "limit": whole_from(1),
            "parameters": whole_from(1),
            "dtype": TEXT,
            "device": TEXT,
            "server": TEXT,
        }
        check_fields(self, needed, optional)


def read_facts(path: Path) -> RunFacts:
    """What a run.json says. Raises InputError that names the file and what is wrong in it."""
    content = read_file(path) or b""
    try:
        whole = json_of(content)
        json.dumps(whole, indent=1, allow_nan=False)  # as it is written again
        tasks = {}
        for task_name, task in objects(whole, "tasks").items():
            with at(f"task {quote(task_name)}"):
                methods = {}
                for method_name, method in objects(task, "methods").items():
                    with at(f"method {quote(method_name)}"):
                        methods[method_name] = from_object(MethodFacts, method)
                tasks[task_name] = from_object(TaskFacts, {**task, "methods": methods})
        return from_object(RunFacts, {**whole, "tasks": tasks, "whole": whole})
    except (ValueError, RecursionError) as error:  # also InputError
        reason = error if isinstance(error, InputError) else "it is no JSON"
        raise InputError(f"{path}: {reason}; put the run's own file back") from None


@contextmanager
def at(place: str) -> Iterator[None]:
    """Name the place of what is wrong."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


FILE_NAME = Kind(
    "a text that can be a part of the name of a file",
    lambda value: TEXT.holds(value) and "\0" not in value,
)


def objects(holder: Any, name: str) -> dict[str, Any]:
    """The tasks of a run, or the methods of a task: at least one."""
    found = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(found, dict) or not found:
        raise InputError(f"{name} is missing, or holds none")
    for key in found:
        check("the name", key, FILE_NAME)
    return found
