"""A server is asked within bounds of time and size, nowhere else, and the key is in no message."""

import gzip
import html
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from minise import Question, load
from minise.errors import InputError
from minise.lab.serving import http, server
from minise.method import Standard, ask
from tests.lab.serving.conftest import Handler, Pretender, skip_waits

QUESTION = Question("Which is a bird?", ["wren", "trout", "oak", "ant", "quartz"])
KEY = "sk-proj-0123456789abcdef"
Start = Callable[..., Pretender]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait takes time. But the time in which a stand-in must answer is that of a real server:
    this machine may be busy."""
    skip_waits(monkeypatch)
    monkeypatch.setenv(http.KEY, KEY)


def refusal(url: str, folder: Path) -> str:
    """The line by which the server's model, or its answer, is refused."""
    with pytest.raises(InputError) as refused:
        ask(load(f"server:{url}", tokenizer=folder), Standard(), QUESTION)
    line = str(refused.value)
    assert "\n" not in line
    return line


def answers(
    content: bytes | str, status: int = 200, **headers: str
) -> Callable[[Handler], bytes | None]:
    """A fault: this answer, whatever is asked."""
    sent = content.encode() if isinstance(content, str) else content

    def fault(handler: Handler) -> None:
        handler.send_response(status)
        ends = {"Content-Length": str(len(sent)), "Connection": "close"}
        for name, value in {**headers, **ends}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(sent)
        handler.close_connection = True

    return fault


def parts_of_key(text: str, size: int = 5) -> list[str]:
    """What of the key is readable in a text, blanks taken out."""
    joined = "".join(text.split())
    pieces = [KEY[start : start + size] for start in range(len(KEY) - size + 1)]
    return [piece for piece in pieces if piece in joined]


# A key with signs that JSON, addresses and HTML write otherwise.
SIGNED = "sk/proj+0123456789&abcdef"


@pytest.mark.parametrize(
    "text",
    [
        f"the key {KEY} is unknown",
        f"{'x' * 178} {KEY} is unknown",  # where a message is cut
        f"{KEY[:12]}\r\n\t{KEY[12:]}",
        "\u200b".join(KEY),
        f"the key {KEY[:14]}... is unknown",
        KEY.upper(),
        json.dumps({"sent": SIGNED}),
        json.dumps({"sent": SIGNED}).replace("/", "\\/"),
        f"/v1?key={quote(SIGNED, safe='')}",
        html.escape(SIGNED),
    ],
)
@pytest.mark.parametrize("status", [401, 503])
def test_an_error_in_which_the_key_stands_is_not_shown(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, status: int
) -> None:
    monkeypatch.setenv(http.KEY, KEY if parts_of_key(text.lower()) else SIGNED)
    served = pretend("llamacpp")
    served.faults += [answers(f"so {text}", status)] * 99
    line = refusal(served.url, folder)
    assert f"status {status}, a text with the key in it" in line
    assert not parts_of_key(line.lower())


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 4096 tokens, you asked for 5000 (4999 in the text)",
        "path /v1/completions?model=a%20b&echo=true \\u00e9 \\/ &lt;html&gt; 00112233445566778899",
    ],
)
def test_what_does_not_hold_the_key_is_said_as_it_is(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    for secret in (KEY, ""):
        monkeypatch.setenv(http.KEY, secret)
        served = pretend("llamacpp")
        served.faults.append(answers(text, 400))
        assert f"status 400, {text}" in refusal(served.url, folder)


@pytest.mark.parametrize("name", ["max_model_len", "meta", "owned_by"])
def test_no_part_of_the_key_is_in_an_error_of_a_value(
    pretend: Start, folder: Path, name: str
) -> None:
    served = pretend("vllm")
    served.model[name] = ["x" * 65 + KEY] if name == "owned_by" else "x" * 65 + KEY
    line = refusal(served.url, folder)
    assert name in line
    assert not parts_of_key(line)


def test_a_model_that_is_named_by_the_key_is_called_otherwise_here(
    pretend: Start, folder: Path
) -> None:
    """In run.json and in reports. The server is asked by its own name for it."""
    served = pretend("vllm")
    served.model |= {"id": f"models-{KEY}", "meta": {"ftype": KEY}}
    lm = load(f"server:{served.url}", tokenizer=folder)
    ask(lm, Standard(), QUESTION)
    assert served.asked[0]["model"] == f"models-{KEY}"
    assert lm.name == "server:a text with the key in it"
    assert not parts_of_key(json.dumps([lm.name, lm.about()]))


def test_an_address_that_holds_the_key_is_refused(pretend: Start, folder: Path) -> None:
    assert "the address holds the key" in refusal(f"{pretend('vllm').url}/{KEY}", folder)


class Dribble:
    """An answer of which a byte is sent now and then, for ever."""

    def __init__(self, first: bytes) -> None:
        self.first = first

    def __call__(self, handler: Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(self.first)
        try:
            while True:
                time.sleep(0.05)
                handler.wfile.write(b"X")
        except OSError:  # the client is gone
            return


SLOWLY = {
    "headers": Dribble(b"HTTP/1.1 200 OK\r\nX-Long: "),
    "body": Dribble(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n{"),
    "chunks": Dribble(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n"),
}


@pytest.mark.parametrize("name", SLOWLY)
def test_a_request_ends_in_time_however_its_answer_comes(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    served = pretend("llamacpp")
    lm = load(f"server:{served.url}", tokenizer=folder)
    monkeypatch.setattr(http, "TIMEOUT", 0.2)
    served.faults += [SLOWLY[name]] * 99
    before = time.monotonic()
    with pytest.raises(InputError, match="/completion does not answer"):
        ask(lm, Standard(), QUESTION)
    assert time.monotonic() - before < 30


def test_a_server_that_dribbles_what_it_runs_is_given_up(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "AT_START", 1.0)
    served = pretend("llamacpp")
    monkeypatch.setattr(Handler, "do_GET", lambda handler: SLOWLY["body"](handler))
    before = time.monotonic()
    line = refusal(served.url, folder)
    assert "/v1/models does not answer (no whole answer in 1 s); is the server up?" in line
    assert time.monotonic() - before < 30


def test_a_packed_answer_is_not_unpacked(pretend: Start, folder: Path) -> None:
    served = pretend("llamacpp")
    bomb = gzip.compress(bytes(2**28))
    served.faults.append(answers(bomb, Content_Encoding="gzip"))
    assert "answers in gzip; send it unpacked" in refusal(served.url, folder)
    assert served.encodings == {"identity"}


def test_an_answer_that_is_too_long_is_refused_before_it_is_whole(
    pretend: Start, folder: Path
) -> None:
    sent = [0]

    def endless(handler: Handler) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                sent[0] += handler.connection.send(b"[" * 2**20)
        except OSError:
            return

    served = pretend("llamacpp")
    served.faults.append(endless)
    assert "answers more than 64 MiB" in refusal(served.url, folder)
    assert sent[0] < 100 * 2**20


def test_an_answer_of_very_many_parts_is_refused(pretend: Start, folder: Path) -> None:
    """48 MB of text would be 1.5 GB of objects."""
    served = pretend("llamacpp")
    served.faults.append(answers(b"[" + b"{}," * (16 * 2**20) + b"0]"))
    assert "answers no JSON" in refusal(served.url, folder)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_server_that_leads_elsewhere_is_refused_and_nothing_is_sent_there(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, method: str
) -> None:
    other, served = pretend("llamacpp"), pretend("llamacpp")
    target = f"{other.url}/completion"
    if method == "POST":
        served.faults += [answers("", status, Location=target)] * 9
    else:
        send = Handler.do_GET

        def lead(handler: Handler) -> Any:
            if handler.server is served:
                return answers("", status, Location=target)(handler)
            return send(handler)

        monkeypatch.setattr(Handler, "do_GET", lead)
    assert f"leads to {target}; give that address" in refusal(served.url, folder)
    assert not other.asked
    assert not other.keys


@pytest.mark.parametrize("charset", ["hex", "base64", "rot13", "utf-7", "no-such", "idna", "\xff"])
@pytest.mark.parametrize("status", [200, 400])
def test_the_charset_of_an_answer_means_nothing(
    pretend: Start, folder: Path, charset: str, status: int
) -> None:
    """JSON is UTF-8."""
    served = pretend("llamacpp")
    kind = f"application/json; charset={charset}"
    served.faults.append(answers(b"{\xff}", status, Content_Type=kind))
    expected = "answers no JSON" if status == 200 else "status 400, {\ufffd}"
    assert expected in refusal(served.url, folder)


def test_the_waits_of_a_server_are_within_patience(pretend: Start, folder: Path) -> None:
    for told in ["9" * 400, "1e9", "-5", "nan", "\u0663"]:
        served = pretend("llamacpp")
        served.faults += [answers("", 503, Retry_After=told.encode().decode("latin-1"))] * 9999
        assert "does not answer (status 503" in refusal(served.url, folder)


@pytest.mark.parametrize(
    "variables", [{"SSL_CERT_FILE": "/no/such/file"}, {"HTTP_PROXY": "no://address"}]
)
def test_what_the_environment_says_of_requests_is_refused_if_it_is_wrong(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    served = pretend("llamacpp")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "check SSL_CERT_FILE and HTTP_PROXY" in refusal(served.url, folder)
