"""Render a chat template, which is a program in a file that anybody can write.

jinja2's sandbox keeps a template away from files and from Python's own objects. It bounds neither
time nor memory, and neither can be bounded from inside: one operation (`10 ** 10 ** 10`, a number
compared with a list that holds itself many times over) may take for ever and cannot be interrupted.
So templates are rendered in a process of their own. It imports no torch, is started once, in about
0.1 s, and ends with this process. No fork: a copy of a process with threads may hang.

The limits are far from what templates need, about 1 ms and 1 MB. The processor's time is counted,
so that a busy machine refuses nothing. A system without these limits (Windows; macOS as to memory)
has the clock alone.
"""

from __future__ import annotations

import atexit
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, lru_cache
from threading import Lock, Timer
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from minise.errors import InputError, one_line, quote

if sys.platform != "win32":
    import resource

SECONDS = 2.0  # of the processor, for one rendering
CLOCK_SECONDS = 60.0
MEMORY = 512 * 2**20  # bytes, of the whole process
MOST_CHARACTERS = 10_000_000  # of the text; the longest contexts of models are shorter

_LOCK = Lock()  # a question and its reply are one exchange


def render(template: str, values: dict[str, Any]) -> str:
    """The text that a template writes. `values`: what it can read, by name, as JSON can hold it.

    Raises InputError, without a name, for a template that fails, refuses these values, does what
    the sandbox forbids, or goes beyond a limit.
    """
    request = json.dumps([template, values, SECONDS])
    with _LOCK:
        process = _process(os.getpid())
        if process.poll() is not None:  # something else has ended it
            _end(process)
            process = _process(os.getpid())
        try:
            reply = json.loads(_exchange(process, request) or "{}")
        except BaseException:  # also Ctrl-C, after which the next reply would be to this request
            _end(process)
            raise
        if not reply:
            _end(process)
    if "text" in reply:
        return reply["text"]
    limits = f"it takes more than {SECONDS:g} seconds, or more memory than {MEMORY >> 20} MiB"
    raise InputError(reply.get("error", limits))


def _exchange(process: subprocess.Popen[str], request: str) -> str:
    """The line that the process replies; empty if the process ended first."""
    assert process.stdin is not None
    assert process.stdout is not None
    timer = Timer(CLOCK_SECONDS, process.kill)
    timer.start()
    try:
        process.stdin.write(request + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        return line if line.endswith("\n") else ""
    except OSError:  # nothing reads what is written
        return ""
    finally:
        timer.cancel()


@cache
def _process(pid: int) -> subprocess.Popen[str]:
    """The process that renders. `pid`: this process. After a fork the copy starts one of its own,
    else both would read from one pipe."""
    # By its path and not by "-c" or "-m", with which modules in the current folder come first.
    try:
        process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            encoding="utf-8",
        )
    except OSError as error:
        raise InputError(f"no process could be started for it: {one_line(error)}") from None
    assert process.stdout is not None
    if not process.stdout.readline():
        _end(process)
        raise InputError(f"the process for it does not start; run {sys.executable} {__file__}")
    atexit.register(_close, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    _process.cache_clear()
    process.kill()
    _close(process)
    atexit.unregister(_close)


def _close(process: subprocess.Popen[str]) -> None:
    """Wait for its end, which comes when nothing more can be asked."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    with suppress(OSError):  # what was not sent cannot be sent any more
        process.stdin.close()
    process.wait()


# From here on: what runs in the process.


def _serve() -> None:
    """Answer each line of the standard input, a request, by a line on the standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    if sys.platform != "win32":
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # it ends the process
        with suppress(OSError, ValueError):  # macOS may refuse it; or a lower limit holds already
            resource.setrlimit(
                resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1])
            )
    print(flush=True)  # ready
    for request in sys.stdin:
        template, values, seconds = json.loads(request)
        _allow(seconds)
        reply = _reply(template, values)
        _allow(0)
        print(reply, flush=True)


def _allow(seconds: float) -> None:
    """Let the system end this process after so many seconds of the processor; 0: never."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _reply(template: str, values: dict[str, Any]) -> str:
    try:
        text = _compiled(template).render(values)
        if len(text) > MOST_CHARACTERS:
            raise InputError(f"it writes {len(text):,} characters, more than {MOST_CHARACTERS:,}")
        return json.dumps({"text": text})
    except MemoryError:
        return json.dumps({"error": f"it takes more than {MEMORY >> 20} MiB of memory"})
    except Exception as error:  # a template can raise anything
        return json.dumps({"error": one_line(error)})


@lru_cache(maxsize=4)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    environment.globals["namespace"] = _Namespace
    environment.filters["tojson"] = _as_json
    return environment.from_string(template)


# The functions that the reference library offers to templates.


def _refuse(message: str) -> NoReturn:
    raise InputError(f"it refuses these messages: {message}")


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML, and a prompt is not HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Namespace(Namespace):
    """`namespace()` of templates. It keeps no name with an underscore, which would give a template
    a way to Python's own attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a value may have the name "self"
        self, *given = args
        Namespace.__init__(self)
        for name, value in dict(*given, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise InputError(f"it sets {quote(name)} in a namespace; no name may begin with _")
        super().__setitem__(name, value)


class _Generation(Extension):
    """{% generation %} marks what an assistant wrote, for training. Here its content is all. As in
    the reference library it is a block of its own: what is set in it ends with it."""

    tags = {"generation"}  # noqa: RUF012, so it is in the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


if __name__ == "__main__":
    _serve()
