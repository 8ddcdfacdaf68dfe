"""Count what commands do when something fails, or when a file is not what it should be.

    python -m tools.faults [KIND ...] [--cases 200]

A case is a command in a process of its own, and ends in one of four ways:

    refused    exit status 2, and one line on stderr says why
    right      it is done, with the result that it has without the fault
    wrong      it is done with another result, or ends without a word, or does what it must not
    traceback  a traceback, a signal, or no end within two minutes

What was cut off goes on, by the same command, to the right result: that belongs to the case. Prints
a table with a row for each kind, and on stderr each case that ended wrong or in a traceback. Exit
status 1 if there is one. Disks need the right to mount (root, on Linux).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from minise import guard
from minise.commands.cli import main as minise
from minise.lab.evaluation import metrics
from minise.lab.serving import http
from minise.layout import causal_mask
from minise.loading.plugin import load_extra
from minise.loading.source import INDEX, SINGLE
from tests.lab.serving.conftest import QWEN, Handler, Pretender
from tests.reference.support.tiny import FAMILIES, write_checkpoint

SECONDS = 120  # that a command may take
METHODS = "standard,self-ensemble,vector-scaling(folds=2),first-trials(trials=1)"
METHODS += ",cot(max_new_tokens=2)"
EVAL = ["eval", "--task", "miniature", "--limit", "4", "--cut-to", "4", "--trials", "2"]
EVAL += ["--group-size", "2", "--method", METHODS, "-o"]
ASK = ["ask", "--question", "Which is a bird?", "--choice", "wren", "--choice", "trout"]
ASK += ["--trials", "1", "--json", "--model"]
REQUEST = {"state": "The parcel is late.", "questions": {}}
REQUEST["questions"] = {"late": {"type": "noul", "instructions": "Is the parcel late?"}}
SAMPLES = "samples-miniature-k4-self-ensemble.jsonl"
TEXTS = "texts-miniature-k4-cot(max_new_tokens=2).jsonl"


# A command in a process of its own


@dataclass(frozen=True)
class Ended:
    """How a process ended. status: negative for a signal, None where it did not end."""

    status: int | None
    out: str
    err: str

    @property
    def has_failed(self) -> bool:
        return self.status not in (0, 1, 2) or "Traceback" in self.err

    @property
    def is_refusal(self) -> bool:
        last = (self.err.splitlines() or [""])[-1]  # before it a library or a command may tell more
        return self.status == 2 and last.startswith("minise: ")

    @property
    def answer(self) -> str:
        """What `ask` prints, but for the name of the model."""
        return self.out.partition('"method"')[2]


@dataclass(frozen=True)
class Process:
    """A child, and the files of what it prints."""

    id: int
    folder: Path

    def wait(self, seconds: float = SECONDS) -> Ended:
        """How it ended; it is killed after so many seconds."""
        status = None
        end = time.monotonic() + seconds
        while status is None and time.monotonic() < end:
            done, code = os.waitpid(self.id, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(code)
            else:
                time.sleep(0.002)
        if status is None:
            os.kill(self.id, signal.SIGKILL)
            os.waitpid(self.id, 0)
        texts = [(self.folder / name).read_text(errors="replace") for name in ("out", "err")]
        shutil.rmtree(self.folder)
        return Ended(status, *texts)


def start(words: list[object]) -> Process:
    """Begin a command in a child that has all modules already."""
    folder = Path(tempfile.mkdtemp(prefix="minise-faults-"))
    for name in ("out", "err"):
        (folder / name).touch()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return Process(child, folder)
    status = 70
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_WRONLY), number)
        status = minise([str(word) for word in words])
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def run(*words: object) -> Ended:
    return start(list(words)).wait()


@dataclass(frozen=True)
class Case:
    """What was done, how it ended, and whether that is the result without the fault."""

    what: str
    ended: Ended
    is_right: bool

    @property
    def verdict(self) -> str:
        if self.ended.has_failed:
            return "traceback"
        if self.ended.is_refusal:
            return "refused"
        return "right" if self.is_right and self.ended.status in (0, 1) else "wrong"


# Commands that write, and what they write


@dataclass(frozen=True)
class Writer:
    """words: of the command, for the place where it writes. whole: the files of an unbroken one."""

    name: str
    words: Callable[[Path], list[object]]
    needs_run: bool
    whole: dict[str, bytes]


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their names, without what depends on the clock. Of those that show
    times in other ways, whether they are whole."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "cuts")) or not path.is_file():
            continue
        data = re.sub(rb'"seconds": [^,}]+', b"", path.read_bytes())
        if path.suffix in (".md", ".png") or path.name == "results.json":
            data = b"whole" if data.endswith(END[path.suffix]) else b"torn"
        found[path.name] = data
    return found


END = {".md": b"\n", ".json": b"}\n", ".png": b"IEND\xaeB`\x82"}


@dataclass(frozen=True)
class Places:
    """A folder for all that is made; a finished run; a checkpoint; a file of requests."""

    work: Path
    run: Path
    checkpoint: Path
    request: Path

    def copy_of_run(self) -> Path:
        return Path(shutil.copytree(self.run, self.new()))

    def new(self) -> Path:
        """A path at which nothing is."""
        return Path(tempfile.mkdtemp(dir=self.work)) / "it"


def prepare(work: Path) -> Places:
    run_folder = work / "run"
    assert minise([*EVAL, str(run_folder)]) == 0
    request = work / "request.jsonl"
    request.write_text((json.dumps(REQUEST) + "\n") * 3)
    checkpoint = write_checkpoint(work / "checkpoint", FAMILIES["llama"])
    return Places(work, run_folder, checkpoint, request)


def writers(places: Places) -> list[Writer]:
    """Each command that writes files."""
    made = []
    words: dict[str, Callable[[Path], list[object]]] = {
        "eval": lambda folder: [*EVAL, folder],
        "report": lambda folder: ["report", folder],
        "explain": lambda folder: ["explain", "--trials", "1", "-o", folder / "page.html"],
        "decide": lambda folder: ["decide", places.request, "-o", folder / "answers.jsonl"],
    }
    for name, of_folder in words.items():
        folder = begin(places, name == "report")
        ended = run(*of_folder(folder))
        assert ended.status == 0, ended
        made.append(Writer(name, of_folder, name == "report", content(folder)))
    return made


def begin(places: Places, needs_run: bool) -> Path:
    """Where a command writes: a finished run without its report, or an empty folder."""
    folder = places.new()
    if not needs_run:
        folder.mkdir()
        return folder
    shutil.copytree(places.run, folder)
    for path in folder.iterdir():
        if path.suffix in (".md", ".png") or path.name == "results.json":
            path.unlink()
    return folder


# The kinds of faults


def kills(places: Places, cases: int) -> Iterator[Case]:
    """Each command is killed at any instant. No file is there in part, and it goes on."""
    draw = random.Random(0)
    all_writers = writers(places)
    for number in range(cases):
        writer = all_writers[number % len(all_writers)]
        folder = begin(places, writer.needs_run)
        began = time.monotonic()
        killed_at = draw.random() * seconds_of(writer, places)
        process = start(writer.words(folder))
        time.sleep(max(0.0, killed_at - (time.monotonic() - began)))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.id, signal.SIGKILL)
        process.wait()
        torn = []
        for name, data in content(folder).items():
            is_of_lines = name.endswith(".jsonl")
            if not is_of_lines and data != writer.whole[name]:
                torn.append(name)
        ended = run(*writer.words(folder))
        is_right = not torn and content(folder) == writer.whole
        yield Case(f"{writer.name} after {killed_at:.3f} s {torn}", ended, is_right)
        shutil.rmtree(folder.parent)


TAKEN: dict[str, float] = {}  # seconds of the whole command, by its name


def seconds_of(writer: Writer, places: Places) -> float:
    if writer.name not in TAKEN:
        began = time.monotonic()
        run(*writer.words(begin(places, writer.needs_run)))
        TAKEN[writer.name] = time.monotonic() - began
    return TAKEN[writer.name]


GONE = object()
VALUES = [GONE, None, True, -1, 0.5, 10**400, float("nan"), "", "\ud800", "\0", [], {}, [[None]]]


def values(places: Places, cases: int) -> Iterator[Case]:
    """Another value at each place of run.json, of samples and of texts. A number that could have
    been is taken as it is: here are those that could not."""
    for name in ("run.json", SAMPLES, TEXTS):
        sound = (places.run / name).read_bytes()
        lines = [sound] if name == "run.json" else sound.splitlines()
        all_changes: list[tuple[int, list[Any], Any]] = []
        for number, line in enumerate(lines):
            for place in places_in(json.loads(line)):
                all_changes.extend((number, place, value) for value in VALUES)
        drawn = random.Random(0).sample(all_changes, min(cases, len(all_changes)))
        for case, (number, place, value) in enumerate(drawn):
            damaged = list(lines)
            whole = json.loads(lines[number])
            damaged[number] = json.dumps(with_value(whole, place, value)).encode()
            folder = places.copy_of_run()
            (folder / name).write_bytes(b"\n".join(damaged) + b"\n")
            command = "eval" if case % 2 or name == TEXTS else "report"
            words = ["report"] if command == "report" else EVAL
            ended = run(*words, folder)
            what = (
                f"{command}, {name}, {number} {place}: {'gone' if value is GONE else value!r:.20}"
            )
            yield Case(what, ended, numbers(folder) == numbers(places.run))
            shutil.rmtree(folder.parent)


def places_in(value: Any) -> list[list[Any]]:
    """The keys and numbers that lead to each part of a value."""
    found: list[list[Any]] = []
    inside = value if isinstance(value, dict) else dict(enumerate(value))
    for key, part in inside.items():
        found.append([key])
        if isinstance(part, dict | list):
            found.extend([key, *rest] for rest in places_in(part))
    return found


def with_value(whole: Any, place: list[Any], value: Any) -> Any:
    """The whole with another value at a place, or GONE; it is changed itself."""
    *holders, last = place
    holder = whole
    for key in holders:
        holder = holder[key]
    if value is GONE:
        del holder[last]
    else:
        holder[last] = value
    return whole


def numbers(folder: Path) -> Any:
    """The numbers of a report, without times."""
    results = json.loads((folder / "results.json").read_text())["results"]
    for by_method in results.values():
        for of_method in by_method.values():
            of_method.pop("seconds", None)
    return results


def disks(places: Places, cases: int) -> Iterator[Case]:
    """A disk with some pages left, in steps; where a command failed, there is space again, and it
    goes on. Then each command in a folder that cannot be written."""
    all_writers = writers(places)
    for number in range(cases):
        writer = all_writers[number % len(all_writers)]
        kilobytes = 4 * (1 + number // len(all_writers))
        folder = places.new()
        folder.mkdir()
        if writer.needs_run:
            source = begin(places, needs_run=True)
            kilobytes += sum(1 + path.stat().st_size // 4096 for path in source.iterdir()) * 4
        with mounted(folder, f"size={kilobytes}k"):
            if writer.needs_run:
                shutil.copytree(source, folder, dirs_exist_ok=True)
            ended = run(*writer.words(folder))
            what = f"{writer.name}, a disk of {kilobytes} KiB"
            if ended.status == 2:
                mount("-o", "remount,size=100m", folder)
                again = run(*writer.words(folder))
                if again.status != 0 or content(folder) != writer.whole:
                    ended = again
                    what += ", again"
            yield Case(what, ended, content(folder) == writer.whole)
    for writer in all_writers:
        for is_finished in (False, True):
            folder = places.new()
            folder.mkdir()
            with mounted(folder, "size=100m"):
                if is_finished:
                    shutil.copytree(places.run, folder, dirs_exist_ok=True)
                mount("-o", "remount,ro", folder)
                ended = run(*writer.words(folder))
                yield Case(f"{writer.name}, finished: {is_finished}, read-only", ended, False)


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    mount("-t", "tmpfs", "-o", options, "none", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True, timeout=SECONDS)


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, timeout=SECONDS)


class Planted:
    """What touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def pickles(places: Places, cases: int) -> Iterator[Case]:
    """A pickle in place of each file that a command reads. None is run."""
    mark = places.work / "it-ran"
    for words, path in files_read(places):
        before = path.read_bytes() if path.exists() else None
        expected = run(*words)
        for form, data in pickled(mark, places.work).items():
            path.write_bytes(data)
            ended = run(*words)
            is_right = not mark.exists() and ended.out == expected.out
            if mark.exists():
                mark.rmdir()
                ended = Ended(0, "", "the pickle was run")
            yield Case(f"{' '.join(map(str, words))}, {path.name}, {form}", ended, is_right)
        path.unlink() if before is None else path.write_bytes(before)


def pickled(mark: Path, work: Path) -> dict[str, bytes]:
    """A pickle in the forms in which such files are written."""
    found = {}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found[f"protocol {protocol}"] = pickle.dumps(Planted(mark), protocol)
    path = work / "form"
    torch.save({"model.norm.weight": Planted(mark)}, path)
    found["torch.save"] = path.read_bytes()
    torch.save([Planted(mark)], path, _use_new_zipfile_serialization=False)
    found["torch.save, legacy"] = path.read_bytes()
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    array += pickle.dumps([Planted(mark)])
    found["npy"] = array
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("input_ids.npy", array)
        archive.writestr("documents.npy", array)
    found["npz"] = path.read_bytes()
    return found


def files_read(places: Places) -> Iterator[tuple[list[object], Path]]:
    """Each file that a command reads, with the command."""
    names = ["config.json", "tokenizer.json", SINGLE, INDEX, "pytorch_model.bin"]
    names += ["adapter_config.json", "adapter_model.bin", "generation_config.json"]
    for kind in ("", "transformers:"):
        for name in names:
            yield [*ASK, f"{kind}{places.checkpoint}"], places.checkpoint / name
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        yield [*ASK, places.checkpoint, "--template", "chat"], places.checkpoint / name
    template = places.work / "template.json"
    template.write_text('{"choice": "{label}) {choice}\\n"}')
    yield [*ASK, places.checkpoint, "--template", template], template
    question = {"question": "Which is a bird?", "choices": ["wren", "trout"], "answer": 0}
    for kind in ("jsonl", "json", "csv", "tsv", "parquet", "jsonl.gz"):
        path = places.work / f"questions.{kind}"
        path.write_text(json.dumps(question))
        yield ["ask", "--trials", "1", "--json", "--file", path], path
    for kind in ("json", "npz", "safetensors"):
        path = places.work / f"row.{kind}"
        path.write_text('{"documents": [2]}')
        yield ["check", path], path
    yield ["decide", places.request], places.request
    for name in ("run.json", SAMPLES, SAMPLES.replace("jsonl", "left-out")):
        yield ["report", places.run], places.run / name
    for name in (TEXTS, "cuts.jsonl"):
        yield [*EVAL, places.run], places.run / name


def safetensors(places: Places, cases: int) -> Iterator[Case]:
    """Weights whose header lies: its size, offsets, dtypes and shapes."""
    path = places.checkpoint / SINGLE
    sound = path.read_bytes()
    length = struct.unpack("<Q", sound[:8])[0]
    header = json.loads(sound[8 : 8 + length])
    data = sound[8 + length :]
    expected = {}
    for kind in ("", "transformers:"):
        expected[kind] = run(*ASK, f"{kind}{places.checkpoint}").out
    for what, content_now in lies(header, data, sound):
        path.write_bytes(content_now)
        for kind in ("", "transformers:"):
            ended = run(*ASK, f"{kind}{places.checkpoint}")
            yield Case(f"{kind} {what}", ended, ended.out == expected[kind])
        row = places.work / "row.safetensors"
        row.write_bytes(content_now)
        yield Case(f"check {what}", run("check", row), False)
    path.write_bytes(sound)


def lies(header: dict[str, Any], data: bytes, sound: bytes) -> Iterator[tuple[str, bytes]]:
    """Files that are none, and in what."""
    for size in (0, 1, 7, 8, len(sound), 2**31, 2**32 + 8, 2**53, 2**63, 2**64 - 1):
        yield f"a header of {size} bytes", struct.pack("<Q", size) + sound[8:]
    for cut in (0, 4, 8, 100, len(sound) - 1):
        yield f"cut at {cut}", sound[:cut]
    yield "bytes after the end", sound + b"\0" * 64
    names = sorted(header)
    first, second = names[0], names[1]
    start, end = header[first]["data_offsets"]
    other = header[second]["data_offsets"]
    changes: dict[str, dict[str, Any]] = {}
    for offsets in (
        other,
        [start + 4, end + 4],
        [end, start],
        [-8, end],
        [0, 2**63],
        [2**64 - 8, 2**64],
        [start, end + 8],
        [start],
        "all",
        None,
        [0.5, 1.5],
    ):
        changes[f"offsets {offsets}"] = {"data_offsets": offsets}
    for dtype in ("F16", "F64", "I32", "BOOL", "U8", "F8_E4M3", "C64", "object", "", None, 7):
        changes[f"dtype {dtype}"] = {"dtype": dtype}
    for shape in ([2**32, 2**32], [-1], [], [0], [0.5], "all", None, [2**64], [1] * 10_000):
        changes[f"shape {str(shape)[:20]}"] = {"shape": shape}
    for what, change in changes.items():
        yield what, written({**header, first: {**header[first], **change}}, data)
    yield "a tensor that is a number", written({**header, first: 5}, data)
    yield "a header that is a list", written([header], data)
    twice = json.dumps(header)[:-1] + f', "{first}": {json.dumps(header[second])}}}'
    yield "a name twice", struct.pack("<Q", len(twice)) + twice.encode() + data
    yield (
        "all tensors share bytes",
        written(
            {name: {**facts, "data_offsets": [start, end]} for name, facts in header.items()}, data
        ),
    )


def written(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def leads(places: Places, cases: int) -> Iterator[Case]:
    """A checkpoint that leads to files of another one, or only to its own."""
    other = write_checkpoint(places.work / "other", FAMILIES["llama"], seed=1)
    for kind in ("", "transformers:"):
        right = run(*ASK, f"{kind}{places.checkpoint}").answer
        for what, folder in led(places, other):
            ended = run(*ASK, f"{kind}{folder}")
            yield Case(f"{kind} {what}", ended, ended.answer == right)


def led(places: Places, other: Path) -> Iterator[tuple[str, Path]]:
    """Folders that lead elsewhere, and in what."""
    tensors = load_file(places.checkpoint / SINGLE)
    outside = os.path.relpath(other / SINGLE, places.work / "x" / "it")
    for name in (outside, str(other / SINGLE), f"./{SINGLE}", f"inside/{SINGLE}", "..", "", "/"):
        folder = copy_of_checkpoint(places)
        (folder / SINGLE).rename(folder / "weights")
        (folder / "inside").symlink_to(other)
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
        (folder / INDEX).write_text(json.dumps(index))
        yield f"an index that names {name}", folder
    for name in ("config.json", "tokenizer.json", SINGLE):
        for target in (other / name, Path("/dev/zero"), Path("/etc/passwd"), Path(name)):
            folder = copy_of_checkpoint(places)
            (folder / name).unlink()
            (folder / name).symlink_to(target)
            yield f"{name} is a link to {target}", folder
        folder = copy_of_checkpoint(places)
        (folder / name).rename(folder / "inside")
        (folder / name).symlink_to("inside")
        yield f"{name} is a link to its own", folder
        folder = copy_of_checkpoint(places)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        yield f"{name} is a pipe", folder
    cached = places.new() / "models--owner--name" / "snapshots" / ("c" * 40)
    blobs = cached.parents[1] / "blobs"
    shutil.copytree(places.checkpoint, blobs)
    cached.mkdir(parents=True)
    for path in blobs.iterdir():
        (cached / path.name).symlink_to(f"../../blobs/{path.name}")
    yield "links of the hub's cache", cached


def copy_of_checkpoint(places: Places) -> Path:
    return Path(shutil.copytree(places.checkpoint, places.new()))


def servers(places: Places, cases: int) -> Iterator[Case]:
    """A server stops after so many requests, between two or within an answer. What was answered is
    kept; when it is there again, the same command goes on."""
    os.environ["NO_PROXY"] = "127.0.0.1"
    served = write_checkpoint(places.work / "served", QWEN)
    kinds = ("vllm", "llamacpp", "openai")
    cuts = cases // len(kinds)
    for kind in kinds:
        server = Pretender(kind)
        words = ["eval", "--task", "miniature", "--limit", "6", "--cut-to", "4", "--trials", "1"]
        words += ["--method", "standard,self-ensemble", "--model", f"server:{server.url}"]
        words += ["--tokenizer", str(served), "-o"]
        whole = places.new()
        assert run(*words, whole).status == 0
        requests = len(server.asked)
        for number in range(cuts):
            before = number * requests // cuts
            folder = places.new()
            go_on: Callable[[Handler], bytes | None] = lambda handler: None  # noqa: E731
            stop = hang_up if number % 2 else send_half
            server.faults = [go_on] * before + [stop] * 500
            ended = run_impatient(*words, folder)
            server.faults = []
            what = f"{kind}, {stop.__name__} after {before} requests"
            if ended.status == 2:
                again = run(*words, folder)
                if again.status != 0 or content(folder) != content(whole):
                    ended = again
                    what += ", again"
            yield Case(what, ended, content(folder) == content(whole))
        server.kill()


def run_impatient(*words: object) -> Ended:
    """A command that tries for a second what it tries for minutes."""
    patience = http.Http.request.__defaults__
    http.Http.request.__defaults__ = (None, 1.0)
    try:
        return run(*words)
    finally:
        http.Http.request.__defaults__ = patience


def hang_up(handler: Handler) -> bytes | None:
    """The connection ends before an answer."""
    handler.connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError


def send_half(handler: Handler) -> bytes | None:
    """The connection ends within an answer."""
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [{')
    return hang_up(handler)


# A guard, whose verdict is compared with the numbers in float64

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
SIZES |= {"vocab_size": 300, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"n_embd": 32, "n_layer": 3, "n_head": 4}
WRONG, RIGHT = 1e-3, 1e-5  # relative errors; between the two float32 decides


def guards(places: Places, cases: int) -> Iterator[Case]:
    """A packed row of up to three documents in a random model, with a mistake or without. refused:
    it is wrong, and the guard says so. right: it is equal, and the guard says nothing."""
    draw = random.Random(0)
    models = {name: random_model(name) for name in ("llama", "qwen3", "gpt2", "olmo2", "mistral")}
    done = 0
    while done < cases:
        name = draw.choice(sorted(models))
        lengths = [draw.randint(2, 12) for _ in range(draw.randint(2, 3))]
        mistake, call = packed_call(draw, lengths)
        error = error_of(models[name], call, lengths)
        if RIGHT < error < WRONG:
            continue
        done += 1
        said: list[str] = []
        model = models[name].float()
        watch = guard(model, lambda words, again, said=said: said.append(words))
        with torch.no_grad():
            model(**call)
        watch.remove()
        is_found = bool(said)
        what = f"{name}, documents of {lengths}, {mistake}, error {error:.2g}, found: {is_found}"
        if error >= WRONG and is_found:
            yield Case(what, Ended(2, "", "minise: found\n"), False)
        else:
            yield Case(what, Ended(0, "", ""), error <= RIGHT and not is_found)


def random_model(kind: str) -> Any:
    library = load_extra("transformers", "parity")
    config = library.AutoConfig.for_model(kind, **SIZES)
    model = library.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.2 + (parameter.data == 1)
    return model.eval()


def packed_call(draw: random.Random, lengths: list[int]) -> tuple[str, dict[str, Any]]:
    """The arguments of a call that packs documents, and the mistake in them."""
    T = sum(lengths)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    mask = causal_mask(T) & (document[:, None] == document)
    first = sum(lengths[:-1])  # token of the last document
    names = ["none", "none", "none", "no mask", "positions run on", "a leak", "a hole", "shifted"]
    mistake = draw.choice([*names, "one document late", "doubled positions"])
    if mistake == "no mask":
        mask = causal_mask(T)
    elif mistake == "positions run on":
        positions = torch.arange(T)
    elif mistake == "a leak":
        mask[first, draw.randrange(first)] = True
    elif mistake == "a hole":
        mask[T - 1, draw.randrange(first, T - 1)] = False
    elif mistake == "shifted":
        mask = mask.roll(1, -1) | torch.eye(T, dtype=torch.bool)
    elif mistake == "one document late":
        positions[first:] += 1
    elif mistake == "doubled positions":
        positions = 2 * positions
    ids = torch.tensor([[draw.randrange(5, 290) for _ in range(T)]])
    call = {"input_ids": ids, "position_ids": positions[None], "attention_mask": mask[None, None]}
    return mistake, {**call, "use_cache": False}


@torch.no_grad()
def error_of(model: Any, call: dict[str, Any], lengths: list[int]) -> float:
    """How far the logits of any document are from those of the document alone, in float64: the
    largest distance, relative to the largest logit."""
    model.double()
    packed = model(**call).logits[0]
    worst = 0.0
    start = 0
    for length in lengths:
        ids = call["input_ids"][:, start : start + length]
        alone = model(input_ids=ids, use_cache=False).logits[0]
        distance = (packed[start : start + length] - alone).abs().max()
        worst = max(worst, float(distance / alone.abs().max()))
        start += length
    return worst


KINDS: dict[str, Callable[[Places, int], Iterator[Case]]] = {
    "kills": kills,
    "values": values,
    "disks": disks,
    "pickles": pickles,
    "safetensors": safetensors,
    "leads": leads,
    "servers": servers,
    "guards": guards,
}
VERDICTS = ("refused", "right", "wrong", "traceback")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--cases", type=int, default=200, help="of a kind that has no list of them")
    options = parser.parse_args()
    unknown = set(options.kinds) - set(KINDS)
    if unknown:
        parser.error(f"{', '.join(unknown)}: the kinds are {', '.join(KINDS)}")
    torch.set_num_threads(1)
    metrics.RESAMPLES = 2  # intervals are not what is tried here
    rows = []
    with tempfile.TemporaryDirectory(prefix="minise-faults-") as work:
        with contextlib.redirect_stdout(io.StringIO()):
            places = prepare(Path(work))
        for kind in options.kinds or KINDS:
            counts: Counter[str] = Counter()
            for case in KINDS[kind](places, options.cases):
                counts[case.verdict] += 1
                if case.verdict in ("wrong", "traceback"):
                    last = case.ended.err.strip().splitlines()[-1:]
                    print(f"{kind}: {case.verdict}: {case.what}: {last}", file=sys.stderr)
            rows.append([kind, counts.total(), *[counts[verdict] for verdict in VERDICTS]])
            print(rows[-1], file=sys.stderr)
    print("| kind | cases | refused | right | wrong | traceback |\n| --- |" + " ---: |" * 5)
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    return int(any(row[4] or row[5] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
