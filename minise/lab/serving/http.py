"""Requests to a server: bounded in time and in size, sent nowhere else, and the key in no message.

A server is not trusted. What it says is text and JSON, and is checked by whoever reads it
(server.py), with `Http.field`.
"""

from __future__ import annotations

import html
import json
import os
import random
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2

from minise.errors import InputError, printable, shorten
from minise.lab.data.kinds import Kind

KEY = "MINISE_API_KEY"  # the variable that holds a server's key
SHORTEST_PART = 8  # characters of the key by which a text is known to hold it
TIMEOUT = 300.0  # seconds for an answer
PATIENCE = 120.0  # seconds in which a request is tried again
AGAIN = (408, 429, 500, 502, 503, 504)  # statuses that may pass
MOST_ANSWER_BYTES = 64 * 2**20  # llama.cpp's of a whole vocabulary has half of them
MOST_PARTS = 4_000_000  # objects and lists of an answer
MOST_SAID = 2**16  # characters of a text that a message may quote

Value = TypeVar("Value")


class Refused(InputError):
    """A server answers a request with a status that stays."""


class Misread(ValueError):
    """An answer does not hold what it should. The message says where."""


@dataclass(frozen=True)
class HttpAnswer:
    """An answer as it was sent. later: seconds after which the server wants to be asked again."""

    status: int
    content: bytes
    later: float
    location: str


class Http:
    """Asks one server."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.key = os.environ.get(KEY, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise InputError(f"{KEY} holds characters that no key has; set it again")
        if len(self.key) >= SHORTEST_PART and holds(self.key, url):
            raise InputError(f"the address holds the key; leave it to {KEY}")
        headers = {"Accept-Encoding": "identity"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        timeout = httpx2.Timeout(TIMEOUT, connect=10.0)
        try:
            self.http = httpx2.Client(headers=headers, timeout=timeout)
        except (OSError, ValueError, httpx2.InvalidURL) as error:
            what = f"cannot be asked ({self.heard(str(error))})"
            raise self.refused(f"{what}; check SSL_CERT_FILE and HTTP_PROXY") from None
        weakref.finalize(self, self.http.close)

    def request(self, path: str, body: Any = None, patience: float = PATIENCE) -> Any:
        """The JSON that the server answers. After a cut connection, a timeout and the statuses
        AGAIN it is asked again, each time later, until patience ends. An answer takes at most
        TIMEOUT, and what a server says of itself (without a body) at most `patience`."""
        limit = time.monotonic() + patience
        seconds = TIMEOUT if body is not None else min(patience, TIMEOUT)
        wait = 0.5
        later = 0.0
        while True:
            try:
                reply = finish_within(seconds, lambda: self.exchange(path, body))
                if reply.status not in AGAIN:
                    return self.read(path, reply)
                problem = f"status {reply.status}, {self.heard(reply.content)}"
                later = reply.later
            except httpx2.RequestError as error:
                problem = self.heard(str(error)) or type(error).__name__
            except TooLate:
                problem = f"no whole answer in {seconds:g} s"
            except httpx2.InvalidURL as error:
                raise self.refused(f"is no address ({self.heard(str(error))})") from None
            pause = max(wait * random.uniform(0.7, 1.0), later)
            if time.monotonic() + pause > limit:
                raise self.refused(f"{path} does not answer ({problem}); is the server up?")
            time.sleep(pause)
            wait = min(2 * wait, 30.0)

    def read(self, path: str, reply: HttpAnswer) -> Any:
        """The JSON of an answer. Raises InputError for none, and for a status that stays."""
        if 300 <= reply.status < 400:
            where = self.heard(reply.location)
            raise self.refused(f"{path} leads to {where}; give that address, if you trust it")
        if reply.status >= 400:
            hint = f"; set {KEY}" if reply.status in (401, 403) else ""
            problem = f"status {reply.status}, {self.heard(reply.content)}"
            raise self.refused(f"{path} is refused: {problem}{hint}", Refused)
        parts = reply.content.count(b"{") + reply.content.count(b"[")
        try:
            if parts > MOST_PARTS:
                raise ValueError("each takes far more memory than its text")
            return json.loads(reply.content, object_pairs_hook=both_of_two)
        except (ValueError, RecursionError):
            raise self.refused(f"{path} answers no JSON; is it a server of models?") from None

    def exchange(self, path: str, body: Any) -> HttpAnswer:
        """One request. The answer is not unpacked: its size is what is sent."""
        method = "GET" if body is None else "POST"
        content = bytearray()
        with self.http.stream(method, self.url + path, json=body) as reply:
            packed = reply.headers.get("Content-Encoding", "identity")
            if packed != "identity":
                raise self.refused(f"{path} answers in {self.heard(packed)}; send it unpacked")
            for part in reply.iter_raw():
                content += part
                if len(content) > MOST_ANSWER_BYTES:
                    most = f"{MOST_ANSWER_BYTES // 2**20} MiB"
                    what = f"answers more than {most}; is it a server of models?"
                    raise self.refused(f"{path} {what}")
        later = reply.headers.get("Retry-After", "0")
        return HttpAnswer(
            status=reply.status_code,
            content=bytes(content),
            later=float(later) if later.isdecimal() else 0.0,
            location=reply.headers.get("Location", "no address"),
        )

    def field(self, holder: Any, name: str, kind: Kind) -> Any:
        """A field of an object of an answer; None where it is missing. Raises Misread for a value
        of another kind."""
        value = holder.get(name) if isinstance(holder, dict) else None
        if not kind.holds(value):
            raise Misread(f"{name} is {self.heard(value)}, and must be {kind.words}")
        return value

    def heard(self, value: Any) -> str:
        """What the server says, as a part of a message: on one line, short, and nothing of a text
        that holds the key."""
        if isinstance(value, dict | list):
            return "an object" if isinstance(value, dict) else "a list"
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) > MOST_SAID:
            return "a long text"
        return shorten(" ".join(self.hide(text).split()), 200)

    def hide(self, text: str) -> str:
        """The text, or other words for one that holds the key."""
        return "a text with the key in it" if holds(self.key, text) else text

    def refused(self, what: str, kind: type[InputError] = InputError) -> InputError:
        return kind(f"{self.url}: {printable(' '.join(what.split()))}")


def holds(key: str, text: str) -> bool:
    """Whether SHORTEST_PART characters that follow one another in the key stand in the text, as
    they were sent or as JSON, an address or HTML writes them. Blanks, characters that are not seen,
    and capitals make no difference."""
    seen = "".join(one for one in text.lower() if "!" <= one <= "~")
    in_json = json.dumps(key)[1:-1]
    for written in (key, in_json, in_json.replace("/", "\\/"), quote(key, ""), html.escape(key)):
        piece = written.lower().replace(" ", "")
        size = min(SHORTEST_PART, len(piece))
        for start in range(len(piece) - size + 1):
            if size and piece[start : start + size] in seen:
                return True
    return False


def finish_within(seconds: float, call: Callable[[], Value]) -> Value:
    """What `call` returns or raises; TooLate after `seconds`. httpx bounds a read and not a
    request, so that a server could send a byte now and then for ever. A call that is given up goes
    on in its thread, which ends with the process."""
    answer: Future[Value] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer.result(timeout=seconds)


def both_of_two(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. A name that comes twice has both values, as a list, which no field is: json
    would take the last."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    several: dict[str, list[Any]] = {}
    for name, value in pairs:
        several.setdefault(name, []).append(value)
    for name, values in several.items():
        if len(values) > 1:
            found[name] = values
    return found
