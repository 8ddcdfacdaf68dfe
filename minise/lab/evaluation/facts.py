"""What run.json says of a run: written from these classes, and read into them, checked."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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

FORMAT = 1  # of the files in a run's folder
MOST_SHARDS = 100_000
MOST_QUESTIONS = 10**9


@dataclass(frozen=True)
class MethodFacts:
    """A column of a report. text: the method as a user writes it. kind: the name of its class.
    template: how its prompts are written, None where it has none. fitted: it asks no model.
    groups: whether its lines hold each prompt's output. code, engine_code: hashes of the files of
    the class, and of an engine of the user's own."""

    text: str
    engine: str
    kind: str
    template: str | None
    settings: dict[str, Any]
    fitted: bool
    groups: bool = False
    code: str | None = None
    engine_code: str | None = None

    def __post_init__(self) -> None:
        needed = {
            "text": TEXT,
            "engine": TEXT,
            "kind": TEXT,
            "settings": OBJECT,
            "fitted": YES_OR_NO,
            "groups": YES_OR_NO,
        }
        check_fields(self, needed, {"template": TEXT, "code": TEXT, "engine_code": TEXT})


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


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run. revision, weights, parameters, dtype, device, server: None where it is not known.
    weights, model_code, tokenizer: hashes. keep: what each line holds beside the answer. versions:
    of the packages that ran."""

    format: int = FORMAT
    model: str
    experiment: str | None
    quantize: str | None
    limit: int | None
    template: str
    shots: str
    seeds: list[int]
    shards: int
    revision: str | None = None
    weights: str | None = None
    parameters: int | None = None
    dtype: str | None = None
    device: str | None = None
    server: str | None = None
    equal_bits: bool = False  # runs before do not say
    model_code: str | None = None
    tokenizer: str | None = None
    keep: dict[str, bool] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, TaskFacts]

    def __post_init__(self) -> None:
        needed = {
            "model": TEXT,
            "template": TEXT,
            "shots": TEXT,
            "seeds": list_of(WHOLE),
            "shards": whole_from(1, MOST_SHARDS),
            "tasks": OBJECT,
            "equal_bits": YES_OR_NO,
            "keep": OBJECT,
            "versions": OBJECT,
        }
        optional = {
            "experiment": TEXT,
            "quantize": TEXT,
            "limit": whole_from(1),
            "revision": TEXT,
            "weights": TEXT,
            "parameters": whole_from(1),
            "dtype": TEXT,
            "device": TEXT,
            "server": TEXT,
            "model_code": TEXT,
            "tokenizer": TEXT,
        }
        check_fields(self, needed, optional)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_facts(path: Path) -> RunFacts:
    """What a run.json says. Raises InputError that names the file and what is wrong in it."""
    content = read_file(path) or b""
    try:
        whole = json_of(content)
        json.dumps(whole, allow_nan=False)  # as it is written again
        written = whole.get("format", FORMAT) if isinstance(whole, dict) else FORMAT
        if written == FORMAT:
            return facts_of(whole)
    except (ValueError, RecursionError) as error:  # also InputError
        reason = error if isinstance(error, InputError) else "it is no JSON"
        raise InputError(f"{path}: {reason}; put the run's own file back") from None
    newer = "read it with the version of minise that wrote it"
    raise InputError(f"{path}: its format is {quote(written)}, not {FORMAT}; {newer}")


def facts_of(whole: Any) -> RunFacts:
    """Of the object in run.json."""
    tasks = {}
    for task_name, task in objects(whole, "tasks").items():
        with at(f"task {quote(task_name)}"):
            methods = {}
            for method_name, method in objects(task, "methods").items():
                with at(f"method {quote(method_name)}"):
                    methods[method_name] = from_object(MethodFacts, method)
            tasks[task_name] = from_object(TaskFacts, {**task, "methods": methods})
    return from_object(RunFacts, {**whole, "tasks": tasks})


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
