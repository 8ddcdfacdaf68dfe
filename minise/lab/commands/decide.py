"""Answer many typed questions on one text, in one pass.

FILE is an object {"state": ..., "questions": {ID: {"type": ..., "instructions": ..., "criteria":
...}}}, or has one in each line; - is standard input. A question is a noul (yes or no), a choice
(criteria: a description for each option's id) or a score (criteria: its levels, the lowest first).
For each object a line {"answers": ...} is printed, or written to --output; there the same command
goes on after a cut. docs/decisions.md says what an answer holds.

example: minise decide request.json --method 'self-ensemble(trials=5)'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

from tqdm import tqdm

from minise.commands.options import GroupOptions, Option, load_model
from minise.commands.terminal import say
from minise.errors import InputError, one_line
from minise.lab.commands.check import each_name_once
from minise.lab.data.typed import METHOD, TypedQuestion, check_fields, read_questions
from minise.lab.evaluation.experiments import Variant
from minise.lab.evaluation.lines import append_line, open_lines, read_lines
from minise.lab.files import read_file

if TYPE_CHECKING:
    from minise.method import Method
    from minise.prompts import LanguageModel, Prompts


@dataclass(frozen=True, kw_only=True)
class Options(GroupOptions):
    file: Annotated[str, Option("", "FILE|-", positional=True)]
    method: Annotated[
        str, Option("or self-ensemble, cyclic, standard, './mine.py:Mine'", "NAME[(settings)]")
    ] = METHOD
    seed: Annotated[int, Option("of the groups", "S")] = 0
    output: Annotated[
        Path | None, Option("lines of answers; goes on there", "FILE", short="-o")
    ] = None


@dataclass(frozen=True)
class Request:
    """An object of the file, its place there, and its questions."""

    place: str
    value: dict[str, Any]
    questions: dict[str, TypedQuestion]


def run(options: Options) -> int:
    from minise.lab.decisions import method_named

    requests = read_requests(options.file)
    method = method_named(options.method, options.settings())
    lm = load_model(options)
    if options.output is None:
        for answer in warned(answers(lm, method, requests, options.seed)):
            print(json.dumps(answer), flush=True)
    else:
        append_answers(options, lm, method, requests, options.output)
    return 0


def append_answers(
    options: Options, lm: LanguageModel, method: Method, requests: Sequence[Request], path: Path
) -> None:
    """Write a line for each request that has none. Raises InputError where the file has answers to
    other requests, or the same ones were asked otherwise."""
    from minise.lab.evaluation.request import hash_of

    how = how_asked(options, lm, method)
    keys = [hash_of([how, request.value]) for request in requests]
    done = read_lines(path, key_of_line)
    if done != keys[: len(done)]:
        why = "has answers to other requests, or of another model, method or seed"
        raise InputError(f"{path}: {why}; name another file")
    if len(done) == len(keys):
        return
    bar = tqdm(total=len(keys), initial=len(done), disable=None)
    with open_lines(path, '{"key": "') as file, bar:
        found = warned(answers(lm, method, requests, options.seed, len(done)))
        for key, answer in zip(keys[len(done) :], found, strict=True):
            line = {"key": key, **answer}
            append_line(file, {**line, "sum": hash_of([line])})
            bar.update()


def how_asked(options: Options, lm: LanguageModel, method: Method) -> str:
    """All that an answer depends on but the request: a run goes on with the same alone."""
    import torch

    from minise.lab.evaluation.request import describe_method, describe_model

    variant = Variant(name=method.name, text=options.method)
    about_method = describe_method(lm, variant, method, options.settings())
    what = [describe_model(lm), torch.__version__, asdict(about_method)]
    return json.dumps([*what, options.quantize, options.seed])


def key_of_line(line: Any) -> Any:
    """The key of a line whose sum is right: no answer in it was changed, or is another line's."""
    from minise.lab.evaluation.request import hash_of

    check_fields(line, ("key", "answers", "tokens", "seconds", "sum"), ())
    written = {name: value for name, value in line.items() if name != "sum"}
    if hash_of([written]) != line["sum"]:
        raise InputError("is not what was written: its sum is another")
    return line["key"]


def read_requests(name: str) -> list[Request]:
    """The requests of a file, "-" for standard input: one object, or one in each line. Raises
    InputError that names the line and the question."""
    content = sys.stdin.buffer.read() if name == "-" else read_file(Path(name))
    if content is None:
        raise InputError(f"{name}: no such file; give a file of requests, or -")
    where = "standard input" if name == "-" else name
    requests = []
    for place, value in objects(where, content) if content.strip() else ():
        try:
            check_fields(value, ("state", "questions"), ("model",))
            questions = read_questions(value["state"], value["questions"])
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        requests.append(Request(place, value, questions))
    if not requests:
        raise InputError(f"{where}: is empty; write a request")
    return requests


def objects(where: str, content: bytes) -> Iterator[tuple[str, Any]]:
    """Each JSON value and its place. The first line says whether every line holds one."""
    lines = content.splitlines()
    first = next((line for line in lines if line.strip()), b"")
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        yield where, read_json(where, content)
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{where}, line {number}"
            yield place, read_json(place, line)


def read_json(place: str, content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=each_name_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not readable as JSON ({one_line(error)})") from None


def answers(
    lm: LanguageModel, method: Method, requests: Sequence[Request], seed: int, done: int = 0
) -> Iterator[dict[str, Any]]:
    """What is written of each request after the first `done`. An error comes after the answers
    before it, and names its request."""
    from minise.lab.data.asked import Asked
    from minise.lab.decisions import Together
    from minise.lab.evaluation import pipeline

    together: Any = Together(method)
    asked = []
    for request in requests:
        questions: Any = request.questions  # where the pipeline has one
        asked.append(Asked(questions, seed))
    number = done  # of the request that is next
    try:
        for answered in pipeline.answers(lm, together, asked, done):
            decisions: Any = answered.answer
            yield {
                "answers": {id: one.as_json() for id, one in decisions.items()},
                "tokens": answered.tokens,
                "seconds": answered.seconds,
            }
            number += 1
    except InputError as error:
        raise InputError(f"{requests[number].place}: {error}") from None


def warned(found: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The same answers, and after them a line on stderr where the labels are improbable: then the
    probabilities say little."""
    shares = []
    for answer in found:
        for one in answer["answers"].values():
            if one["on_labels"] is not None:
                shares.append(one["on_labels"])
        yield answer
    from minise.commands.result import few_on_labels

    warning = few_on_labels(mean(shares)) if shares else ""
    if warning:
        say(warning)


def prompts_of_file(lm: LanguageModel, method: str | None, name: str, seed: int) -> Prompts:
    """The prompts of all questions of a file's one request: what `minise verify` checks."""
    from minise.lab.decisions import Together, method_named

    requests = read_requests(name)
    if len(requests) > 1:
        raise InputError(f"{name}: holds {len(requests)} requests; give a file of one")
    together = Together(method_named(METHOD if method is None else method, {}))
    _, prompts = together.prompts(lm, requests[0].questions, seed)
    return prompts
