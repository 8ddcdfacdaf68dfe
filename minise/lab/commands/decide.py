"""Answer many typed questions on one text, in one pass.

FILE is an object {"state": ..., "questions": {ID: {"type": ..., "instructions": ..., "criteria":
...}}}, or has one in each line; - is standard input. A question is a noul (yes or no), a choice
(criteria: a description for each option's id) or a score (criteria: its levels, the lowest first).
For each object a line {"answers": ...} is printed, or written to --output; there the same command
goes on after a cut. docs/decisions.md says what an answer holds.

example: minise decide request.json --method 'self-ensemble(trials=5)'
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tqdm import tqdm

from minise.commands.options import GroupOptions, Option, load_model
from minise.errors import InputError, one_line
from minise.lab.commands.check import each_name_once
from minise.lab.data.typed import METHOD, TypedQuestion, check_fields, read_questions
from minise.lab.evaluation.lines import append_line, open_lines, read_lines
from minise.lab.files import read_file

if TYPE_CHECKING:
    from minise.lab.decisions import Planned
    from minise.method import Method
    from minise.prompts import LanguageModel, Prompts

BLOCK = 64  # requests


@dataclass(frozen=True, kw_only=True)
class Options(GroupOptions):
    file: Annotated[str, Option("", "FILE|-", positional=True)]
    method: Annotated[
        str, Option("standard, self-ensemble, cyclic, './mine.py:Mine'", "NAME[(settings)]")
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
    how = asdict(replace(options, file="", output=None))
    keys = [hash_of([how, request.value]) for request in requests]
    done = [] if options.output is None else read_lines(options.output, key_of_line)
    if done != keys[: len(done)]:
        raise InputError(f"{options.output}: answers other requests, or otherwise; name another")
    lm = load_model(options)
    found = answers(lm, method, requests, options.seed, len(done))
    if options.output is None:
        for answer in found:
            print(json.dumps(answer), flush=True)
        return 0
    left = keys[len(done) :]
    bar = tqdm(total=len(keys), initial=len(done), disable=None)
    with open_lines(options.output, '{"key": "') as file, bar:
        for key, answer in zip(left, found, strict=True):
            append_line(file, {"key": key, **answer})
            bar.update()
    return 0


def hash_of(value: Any) -> str:
    """Of a request and how it is asked: a run goes on with the same ones alone."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def key_of_line(line: Any) -> Any:
    check_fields(line, ("key", "answers", "tokens", "seconds"), ())
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
    lm: LanguageModel, method: Method, requests: Sequence[Request], seed: int, done: int
) -> Iterator[dict[str, Any]]:
    """The answers to all requests after the first `done`. Which of them share a pass follows from
    the whole list, whatever is done: a run that goes on gives the same bits."""
    from minise.lab.decisions import run_pass

    for start in range(done // BLOCK * BLOCK, len(requests), BLOCK):
        number = start  # of the request that is next
        began = time.perf_counter()
        for one_pass in passes(lm, method, requests[start : start + BLOCK], seed):
            skipped = max(done - number, 0)
            number += len(one_pass)
            if number <= done:
                continue
            found = run_pass(lm, method, one_pass)
            seconds = time.perf_counter() - began
            tokens = sum(planned.tokens for planned in one_pass)
            for planned, decisions in list(zip(one_pass, found, strict=True))[skipped:]:
                yield {
                    "answers": {id: one.as_json() for id, one in decisions.items()},
                    "tokens": planned.tokens,
                    "seconds": seconds * planned.tokens / tokens,
                }
            began = time.perf_counter()


def passes(
    lm: LanguageModel, method: Method, requests: Sequence[Request], seed: int
) -> Iterator[list[Planned]]:
    """The requests of each pass. One more joins while a pass has few tokens, and if it is on the
    same state as the one before: the state runs once."""
    from minise.lab.decisions import plan
    from minise.lab.evaluation.pipeline import most_together

    most = most_together(lm)
    one_pass: list[Planned] = []
    last = None
    for request in requests:
        try:
            new = plan(lm, method, request.questions, seed)
        except InputError as error:
            raise InputError(f"{request.place}: {error}") from None
        is_full = sum(planned.tokens for planned in one_pass) >= most
        is_same_state = most > 0 and request.value["state"] == last
        if one_pass and is_full and not is_same_state:
            yield one_pass
            one_pass = []
        one_pass.append(new)
        last = request.value["state"]
    if one_pass:
        yield one_pass


def prompts_of_file(lm: LanguageModel, method: Method, name: str, seed: int) -> Prompts:
    """The prompts of all questions of a file's one request: what `minise verify` checks."""
    from minise.lab.decisions import plan

    requests = read_requests(name)
    if len(requests) > 1:
        raise InputError(f"{name}: holds {len(requests)} requests; give a file of one")
    return plan(lm, method, requests[0].questions, seed).prompts
