"""Loading by hub id, from a local server in place of the hub: no network is used.

The client runs in its own process, because huggingface_hub reads its environment on import.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import minise
from minise.commands.cli import main
from minise.commands.options import QUESTION
from tests.support.processes import alone, ask_without_waits
from tests.support.tiny import FAMILIES, write_checkpoint

COMMIT, OLDER = "c" * 40, "0" * 40
TOKEN = "hf_of_a_test"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class Hub(ThreadingHTTPServer):
    """Serves `files[repository, commit][name]` as the hub does, and records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.branches = {"main": COMMIT, "old": OLDER}
        self.refused: dict[str, tuple[int, str]] = {}  # without TOKEN: status, X-Error-Code
        self.requests: list[tuple[str, str, str]] = []  # method, revision, name
        self.authorizations: set[str | None] = set()
        self.broken: str | None = None  # a file whose connection closes half way
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, repository: str, folder: Path, commit: str = COMMIT) -> None:
        """Publish a folder, and beside it files that minise must never fetch."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        extra = dict.fromkeys(("pytorch_model.bin", "modeling.py", "README.md"), b"not asked for")
        self.files[repository, commit] = files | extra

    @property
    def fetched(self) -> list[str]:
        return [name for method, _, name in self.requests if method == "GET"]


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub = self.server
        authorization = self.headers["Authorization"]
        hub.authorizations.add(authorization)
        match = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/([^/]+)/(.+)", self.path)
        if match is None:
            return self.send(404, {})
        repository, revision, name = match.groups()
        hub.requests.append((self.command, revision, name))
        if repository in hub.refused and authorization != f"Bearer {TOKEN}":
            status, code = hub.refused[repository]
            return self.send(status, {"X-Error-Code": code})
        commit = hub.branches.get(revision, revision)
        if not any(name == repository for name, _ in hub.files):
            return self.send(404, {"X-Error-Code": "RepoNotFound"})
        if (repository, commit) not in hub.files:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if name not in hub.files[repository, commit]:
            return self.send(404, headers | {"X-Error-Code": "EntryNotFound"})
        body = hub.files[repository, commit][name]
        headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
        start = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if start is None:
            return self.send(200, headers, body, cut=name == hub.broken)
        first = int(start[1])
        headers["Content-Range"] = f"bytes {first}-{len(body) - 1}/{len(body)}"
        return self.send(206, headers, body[first:], cut=name == hub.broken)

    def send(
        self, status: int, headers: dict[str, str], body: bytes = b"", cut: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[: len(body) // 2] if cut else body)
            self.close_connection = cut

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(llama_folder: Path) -> Iterator[Hub]:
    with Hub() as server:
        server.add("owner/name", llama_folder)
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def expected(llama_folder: Path) -> list[float]:
    """The probabilities from the folder, which a downloaded copy must give, too."""
    lm = minise.load(llama_folder)
    return minise.self_ensemble(lm, QUESTION, trials=1).probabilities.tolist()


def client(
    hub: str, home: Path, run: Callable[..., object], *arguments: object, **environment: str
) -> tuple[int | None, str, str]:
    """A process that uses `hub` as the hub and a cache under `home`: status, stdout, stderr."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables |= {"HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    variables |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", **environment}
    home.mkdir(exist_ok=True)
    return alone(variables, home, run, *arguments)


def ask(
    hub: str, home: Path, *arguments: str, may_wait: bool = True, **environment: str
) -> tuple[int | None, str, str]:
    """The library retries as usual, but without its waits, which add up to 23 seconds."""
    options = ["--json", "--trials", "1", "--model", *arguments]
    return client(hub, home, ask_without_waits, options, may_wait, **environment)


def assert_answers(done: tuple[int | None, str, str], expected: list[float]) -> None:
    status, stdout, stderr = done
    assert status == 0, stderr
    choices = json.loads(stdout)["choices"]
    assert [choice["probability"] for choice in choices] == pytest.approx(expected, abs=1e-5)


def assert_one_line(done: tuple[int | None, str, str], *parts: str) -> None:
    status, stdout, stderr = done
    assert (status, stdout) == (2, "")
    assert len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith("minise: ")
    for part in parts:
        assert part in stderr


def test_a_repository_downloads_answers_and_answers_again_from_the_cache(
    hub: Hub, tmp_path: Path, expected: list[float]
) -> None:
    done = ask(hub.url, tmp_path, "owner/name")
    assert_answers(done, expected)
    assert done[2] == ""
    assert hub.fetched == ["config.json", "tokenizer.json", WEIGHTS]
    assert {name for _, _, name in hub.requests} == {*hub.fetched, INDEX}  # and nothing else
    # The first answer names the commit; a branch that moves meanwhile cannot mix two.
    assert {revision for _, revision, _ in hub.requests[2:]} == {COMMIT}

    hub.requests.clear()
    assert_answers(ask(hub.url, tmp_path, "owner/name", HF_HUB_OFFLINE="1"), expected)
    assert hub.requests == []
    # The same without HF_HUB_OFFLINE, and without a wait for the network.
    done = ask(closed_port(), tmp_path, "owner/name", may_wait=False)
    assert_answers(done, expected)


def test_a_sharded_repository_downloads_and_answers_with_progress_on_stderr_only(
    hub: Hub, tmp_path: Path, expected: list[float]
) -> None:
    files = hub.files["owner/name", COMMIT]
    (tmp_path / WEIGHTS).write_bytes(files.pop(WEIGHTS))
    state = load_file(tmp_path / WEIGHTS)
    shards = {}
    for number, names in enumerate((sorted(state)[::2], sorted(state)[1::2]), 1):
        shard = f"model-{number:05}-of-00002.safetensors"
        save_file({name: state[name] for name in names}, tmp_path / shard)
        files[shard] = (tmp_path / shard).read_bytes()
        shards |= dict.fromkeys(names, shard)
    files[INDEX] = json.dumps({"metadata": {}, "weight_map": shards}).encode()

    # TQDM_POSITION=-1 has the library draw its bars even where there is no terminal.
    done = ask(hub.url, tmp_path / "home", "owner/name", TQDM_POSITION="-1")
    assert_answers(done, expected)
    assert "model-00002-of-00002.safetensors: 100%" in done[2]
    assert hub.fetched == ["config.json", "tokenizer.json", INDEX, *sorted(set(shards.values()))]


@pytest.mark.parametrize(
    ("repository", "answer", "parts"),
    [
        (
            "owner/gated",
            (403, "GatedRepo"),
            ("accept its licence on https://huggingface.co/owner/gated", "HF_TOKEN"),
        ),
        ("owner/private", (401, "RepoNotFound"), ("no such repository", "HF_TOKEN")),
        ("owner/missing", (404, "RepoNotFound"), ("no such repository", "no such folder")),
        ("owner/forbidden", (403, ""), ("403 Forbidden", "token")),
        ("owner/expired", (401, ""), ("401 Unauthorized", "check", "HF_TOKEN")),
        ("owner/broken", (500, ""), ("500 Internal Server Error", "give a folder")),
    ],
    ids=lambda value: value.partition("/")[2] if isinstance(value, str) else "",
)
def test_a_refusal_of_the_hub_is_one_line(
    hub: Hub, tmp_path: Path, repository: str, answer: tuple[int, str], parts: tuple[str, ...]
) -> None:
    hub.refused[repository] = answer
    assert_one_line(ask(hub.url, tmp_path, repository), f"{repository}: ", *parts)
    assert {name for _, _, name in hub.requests} == {"config.json"}


def test_an_unknown_revision_is_named(hub: Hub, tmp_path: Path) -> None:
    done = ask(hub.url, tmp_path, "owner/name", "--revision", "v9")
    assert_one_line(done, "owner/name: ", "no revision v9", "branches, tags or commits")


def test_a_repository_without_safetensors_is_refused(hub: Hub, tmp_path: Path) -> None:
    del hub.files["owner/name", COMMIT][WEIGHTS]
    done = ask(hub.url, tmp_path, "owner/name")
    how = "hf download owner/name --local-dir FOLDER, then --model FOLDER says how to convert it"
    assert_one_line(done, "owner/name at ", f"has no {WEIGHTS}", "safetensors weights", how)
    assert hub.fetched == ["config.json", "tokenizer.json"]


def test_an_unsupported_config_is_refused_before_another_file_is_requested(
    hub: Hub, tmp_path: Path
) -> None:
    hub.files["owner/name", COMMIT]["config.json"] = b'{"model_type": "gemma"}'
    done = ask(hub.url, tmp_path, "owner/name")
    assert_one_line(done, "owner--name", 'config.json: model_type is "gemma"', "llama")
    assert {name for _, _, name in hub.requests} == {"config.json"}


@pytest.mark.parametrize(
    ("offline", "reason", "remedy"),
    [
        ("1", "HF_HUB_OFFLINE is set", "unset it to download the file, or give a folder"),
        (
            "0",
            "the hub cannot be reached ([Errno 111] Connection refused)",
            "give a folder (elsewhere: hf download owner/name --local-dir FOLDER); with "
            "HF_HUB_OFFLINE=1, what is in the cache runs at once",
        ),
    ],
    ids=["offline", "no network"],
)
def test_an_unreachable_hub_with_an_empty_cache_is_one_line(
    tmp_path: Path, offline: str, reason: str, remedy: str
) -> None:
    done = ask(closed_port(), tmp_path, "owner/name", HF_HUB_OFFLINE=offline)
    assert_one_line(done, "owner/name: ", "config.json", reason, str(tmp_path), f"; {remedy}\n")


def test_shards_that_are_not_in_the_cache_are_counted(hub: Hub, tmp_path: Path) -> None:
    files = hub.files["owner/name", COMMIT]
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    files[names[0]] = files.pop(WEIGHTS)
    files[INDEX] = json.dumps({"weight_map": {name: name for name in names}}).encode()
    assert ask(hub.url, tmp_path, "owner/name")[0] == 2  # the hub itself has only one of them
    done = ask(hub.url, tmp_path, "owner/name", HF_HUB_OFFLINE="1")
    count = f"(2 of 3 shards are missing: {names[1]}, "  # a long path of the cache cuts the rest
    assert_one_line(done, "HF_HUB_OFFLINE is set", f"{names[1]} is not in the cache", count)


def test_a_branch_or_a_commit_can_be_chosen(hub: Hub, tmp_path: Path) -> None:
    older = write_checkpoint(tmp_path / "older", FAMILIES["llama"], seed=1)
    hub.add("owner/name", older, OLDER)
    script = (
        "import minise\n"
        f"for revision in (None, 'old', '{OLDER}', '{COMMIT}'):\n"
        "    lm = minise.load('owner/name', revision=revision)\n"
        "    print(lm.revision, lm.decoder.model.norm.weight[0].item())\n"
    )
    status, stdout, stderr = client(hub.url, tmp_path / "home", exec, script)
    assert status == 0, stderr
    lines = [line.split() for line in stdout.splitlines()]
    assert [commit for commit, _ in lines] == [COMMIT, OLDER, OLDER, COMMIT]
    new, *old, again = [value for _, value in lines]
    assert old == [str(load_file(older / WEIGHTS)["model.norm.weight"][0].item())] * 2
    assert new == again != old[0]


def test_the_token_comes_from_the_environment_only(
    hub: Hub, tmp_path: Path, expected: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refused["owner/name"] = (403, "GatedRepo")
    assert_answers(ask(hub.url, tmp_path, "owner/name", HF_TOKEN=TOKEN), expected)
    assert hub.authorizations == {f"Bearer {TOKEN}"}
    assert main(["ask", "--token", TOKEN]) == 2
    assert "--token" in capsys.readouterr().err


def test_an_interrupted_download_is_one_line_and_the_next_run_completes_it(
    hub: Hub, tmp_path: Path, expected: list[float]
) -> None:
    hub.broken = WEIGHTS
    done = ask(hub.url, tmp_path, "owner/name")
    assert_one_line(done, f"owner/name at {COMMIT}: {WEIGHTS} could not be fetched", "try again")
    hub.requests.clear()
    hub.broken = None
    assert_answers(ask(hub.url, tmp_path, "owner/name"), expected)
    assert hub.fetched == [WEIGHTS]


def closed_port() -> str:
    """An address at which no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
