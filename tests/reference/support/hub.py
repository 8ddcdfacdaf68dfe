"""A local server in place of the hub, and processes that use it: no network is used."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT, OLDER = "c" * 40, "0" * 40
TOKEN = "hf_of_a_test"
ROOT = Path(__file__).parents[3]


class Hub(ThreadingHTTPServer):
    """Serves `files[repository, commit][name]` as the hub does, models and data sets alike."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.branches = {"main": COMMIT, "old": OLDER}
        self.refused: dict[str, tuple[int, str]] = {}  # without TOKEN: status, X-Error-Code
        self.fetched: list[str] = []  # the files that were sent
        self.broken: str | None = None  # a file whose connection closes half way
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, repository: str, folder: Path, commit: str = COMMIT) -> None:
        """Publish a folder, and beside it files that minise must never fetch."""
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        extra = dict.fromkeys(("pytorch_model.bin", "modeling.py", "README.md"), b"not asked for")
        self.files[repository, commit] = files | extra


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.server, self.path.partition("?")[0].replace("/datasets/", "/")
        match = re.fullmatch(
            r"/(?:api/)?(?:models/)?([\w.-]+/[\w.-]+)/(revision|tree|resolve)/([^/]+)(?:/(.+))?",
            path,
        )
        if match is None:
            return self.send(404, {})
        repository, what, revision, name = match.groups()
        if repository in hub.refused and self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, code = hub.refused[repository]
            return self.send(status, {"X-Error-Code": code})
        commit = hub.branches.get(revision, revision)
        if not any(name == repository for name, _ in hub.files):
            return self.send(404, {"X-Error-Code": "RepoNotFound"})
        files = hub.files.get((repository, commit))
        if files is None:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if what == "revision":
            return self.send(200, headers, json.dumps({"id": repository, "sha": commit}).encode())
        if what == "tree":
            tree = [
                {"type": "file", "path": path, "size": len(body), "oid": hashed(body)}
                for path, body in files.items()
            ]
            return self.send(200, headers, json.dumps(tree).encode())
        if name not in files:
            return self.send(404, headers | {"X-Error-Code": "EntryNotFound"})
        headers["ETag"] = f'"{hashed(files[name])}"'
        start = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        body, status = files[name], 206 if start else 200
        if start:
            headers["Content-Range"] = f"bytes {start[1]}-{len(body) - 1}/{len(body)}"
            body = body[int(start[1]) :]
        if self.command == "GET":
            hub.fetched.append(name)
        return self.send(status, headers, body, cut=name == hub.broken)

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


def hashed(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


def client(url: str, home: Path, script: str, **environment: str) -> list[str]:
    """The lines that a script prints in a process with `url` as its hub and a cache under `home`.
    The hub's library reads its variables when it is imported, and retries without its waits."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    variables |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    variables |= {"HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", **environment}
    script = f"import time\ntime.sleep = lambda seconds: None\n{script}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "it/s" not in done.stderr  # no bars where there is no terminal
    return done.stdout.splitlines()
