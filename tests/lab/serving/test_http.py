"""A server is asked within bounds of time and size, nowhere else, and the key is in no message."""

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    monkeypatch.setattr(server, "AT_START", 1.0)
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


@pytest.mark.parametrize(
    "text",
    [
        f"the key {KEY} is unknown",
        f"{'x' * 170} {KEY}",  # where a message is cut
        f"{'x' * 178} {KEY} is unknown",
        f"{' ' * 300}{KEY}",
        f"{KEY[:9]} {KEY[9:]}",
        f"{KEY[:12]}\r\n\t{KEY[12:]}",
        "\u200b".join(KEY),
        f"the key {KEY[:14]}... is unknown",
        f"{KEY}{KEY}",
    ],
)
@pytest.mark.parametrize("status", [400, 401, 503])
def test_no_part_of_the_key_is_in_an_error(
    pretend: Start, folder: Path, text: str, status: int
) -> None:
    served = pretend("sglang")
    served.faults += [answers(text, status)] * 99
    line = refusal(served.url, folder)
    assert f"status {status}" in line
    assert not parts_of_key(line)


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
    assert lm.name == f"server:models-{'*' * len(KEY)}"
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
    monkeypatch.setattr(http, "TIMEOUT", 0.2)
    served = pretend("sglang")
    served.faults += [SLOWLY[name]] * 99
    before = time.monotonic()
    assert "/generate does not answer" in refusal(served.url, folder)
    assert time.monotonic() - before < 30


def test_a_server_that_dribbles_what_it_runs_is_given_up(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = pretend("sglang")
    monkeypatch.setattr(Handler, "do_GET", lambda handler: SLOWLY["body"](handler))
    before = time.monotonic()
    line = refusal(served.url, folder)
    assert "/v1/models does not answer (no whole answer in 1 s); is the server up?" in line
    assert time.monotonic() - before < 30


def test_a_packed_answer_is_not_unpacked(pretend: Start, folder: Path) -> None:
    served = pretend("sglang")
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

    served = pretend("sglang")
    served.faults.append(endless)
    assert "answers more than 64 MiB" in refusal(served.url, folder)
    assert sent[0] < 100 * 2**20


def test_an_answer_of_very_many_parts_is_refused(pretend: Start, folder: Path) -> None:
    """48 MB of text would be 1.5 GB of objects."""
    served = pretend("sglang")
    served.faults.append(answers(b"[" + b"{}," * (16 * 2**20) + b"0]"))
    assert "answers no JSON" in refusal(served.url, folder)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_server_that_leads_elsewhere_is_refused_and_nothing_is_sent_there(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, status: int, method: str
) -> None:
    other, served = pretend("sglang"), pretend("sglang")
    target = f"{other.url}/generate"
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
    served = pretend("sglang")
    kind = f"application/json; charset={charset}"
    served.faults.append(answers(b"{\xff}", status, Content_Type=kind))
    expected = "answers no JSON" if status == 200 else "status 400, {\ufffd}"
    assert expected in refusal(served.url, folder)


def test_the_waits_of_a_server_are_within_patience(pretend: Start, folder: Path) -> None:
    for told in ["9" * 400, "1e9", "-5", "nan", "\u0663"]:
        served = pretend("sglang")
        served.faults += [answers("", 503, Retry_After=told.encode().decode("latin-1"))] * 9999
        assert "does not answer (status 503" in refusal(served.url, folder)


@pytest.mark.parametrize(
    "variables", [{"SSL_CERT_FILE": "/no/such/file"}, {"HTTP_PROXY": "no://address"}]
)
def test_what_the_environment_says_of_requests_is_refused_if_it_is_wrong(
    pretend: Start, folder: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    served = pretend("sglang")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "check SSL_CERT_FILE and HTTP_PROXY" in refusal(served.url, folder)
