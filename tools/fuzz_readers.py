"""Search for files that a reader neither reads nor refuses in one line. The search is guided by
which code a file reaches (libFuzzer, by atheris, which is no dependency of minise).

    python -m tools.fuzz_readers                                each reader for 60 seconds
    python -m tools.fuzz_readers config index --seconds 600     two of them, longer
    python -m tools.fuzz_readers config --input FILE            read this file alone

Half of the changes are made by the search itself, to bytes. The other half are those of
tests/support/damage.py, which know JSON and safetensors.

A reader may raise InputError with one line of at most 400 characters, and nothing else. It also
fails if it takes too long, too much memory, or writes outside its folder. What is found is
collected, once for each place in the code; the search goes on. The folder of a search holds the
files found and the corpus; a later search in the same folder goes on with that corpus. Linux only.
"""

from __future__ import annotations

import argparse
import inspect
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from safetensors.torch import load, save

from minise.commands.run_report import as_text
from minise.data.question_file import read_question
from minise.data.tasks import Selection, load_tasks
from minise.errors import InputError
from minise.evaluation.samples import DAMAGE, open_folder, peaks_so_far, read_samples
from minise.loading.checkpoint import load as load_checkpoint
from minise.loading.checkpoint import read_weights
from minise.loading.config_json import config_from_dict, read_config
from minise.loading.quantize import STATE, pack, read_stored
from minise.loading.source import finder, weight_files
from minise.loading.stored import read_headers
from minise.methods.sample import Sample
from minise.report.results import read_results, tell_apart
from minise.tokenizer import Tokenizer
from minise.writing.chat import chat_ids, stop_tokens
from tests.support import results as made
from tests.support.confine import confined
from tests.support.damage import damage_bytes, damage_json, damage_line, damage_safetensors
from tests.support.packed import in_4_bits
from tests.support.rows import OWN, write
from tests.support.tiny import FAMILIES, SIZES, make_tokenizer, write_checkpoint
from tools.fuzz import LONGEST, where

INSTALL = "the search needs atheris, for Linux: pip install atheris (python -m venv apart is best)"
SECONDS = 5  # of the processor's time, for one file; most take a millisecond
MEMORY = 4096  # MiB of a search
LARGEST = 1 << 16  # bytes of a file
SMALL = {**SIZES, "model_type": "llama", "hidden_size": 8, "intermediate_size": 8}
SMALL |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}

Damage = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Reader:
    """A reader of files. `seeds`: sound files. `read` gets the content of one; the current folder
    is its own. `damage` changes a file and knows its format."""

    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    damage: Damage = damage_json


# Each function makes a reader. The current folder is where it reads, and empty.


def config() -> Reader:
    path = Path("config.json")

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_config(path)

    return Reader([_json(raw) for raw in FAMILIES.values()], read)


def index() -> Reader:
    for name in ("a.safetensors", "b-1.safetensors"):
        Path(name).touch()

    def read(content: bytes) -> None:
        Path("model.safetensors.index.json").write_bytes(content)
        weight_files(finder(".", None), Path())

    return Reader([_json({"weight_map": {"x": "a.safetensors", "y": "b-1.safetensors"}})], read)


def weights(packed: bool = False) -> Reader:
    path = write_checkpoint(Path(), SMALL) / "model.safetensors"
    facts = config_from_dict(SMALL)
    if packed:
        path.write_bytes(save(in_4_bits(load(path.read_bytes()))))

    def read(content: bytes) -> None:
        path.write_bytes(content)
        stored = read_headers(facts, [path])
        read_weights(stored, torch.float32, torch.device("cpu"))

    return Reader([path.read_bytes()], read, damage_safetensors)


def state() -> Reader:
    """What bitsandbytes says in JSON of a matrix in 4 bits, beside its tensors."""
    packed = pack(torch.ones(48, 32), "nf4-double")
    parts = {name: part for name, part in packed.tensors.items() if name != "nested_offset"}
    facts = {"quant_type": "nf4", "blocksize": 64, "shape": [48, 32]}
    facts |= {"nested_blocksize": 256, "nested_offset": 0.5}

    def read(content: bytes) -> None:
        read_stored({**parts, STATE + "nf4": _as_tensor(content)}, (48, 32), "here").scales()

    return Reader([_json(facts)], read)


def tokenizer() -> Reader:
    path = Path("tokenizer.json")

    def read(content: bytes) -> None:
        path.write_bytes(content)
        Tokenizer.from_file(path).encode(["Which?\n(A) a", "é"])

    return Reader([make_tokenizer(bos=bos).to_str().encode() for bos in (True, False)], read)


def writing() -> Reader:
    """generation_config.json and tokenizer_config.json, as one object with both."""
    lm = load_checkpoint(write_checkpoint(Path(), SMALL))
    messages = [{"role": "user", "content": "Which?"}]
    template = "{{ bos_token }}{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
    named = [{"name": "default", "template": template}, {"name": "tool_use", "template": "x"}]

    def read(content: bytes) -> None:
        try:
            names = json.loads(content)
            parts = {name: _json(names[name]) for name in ("generation", "tokenizer")}
        except DAMAGE:
            parts = {"generation": b"{}", "tokenizer": content}
        for name, part in parts.items():
            Path(f"{name}_config.json").write_bytes(part)
        fresh = replace(lm)  # files are read once for each model
        stop_tokens(fresh)
        chat_ids(fresh, messages)

    tokens = {"bos_token": "<s>", "eos_token": {"content": "<s>"}}
    seeds = [{"generation": {"eos_token_id": [3, 4]}, "tokenizer": {"chat_template": template}}]
    seeds += [{"generation": {}, "tokenizer": {"chat_template": named, **tokens}}]
    return Reader([_json(seed) for seed in seeds], read)


def questions(kind: str) -> Reader:
    path = Path(f"words.{kind}")
    rows = [{**OWN[0], "id": f"q{i}", "answer": i % 3} for i in range(3)]
    seeds = [write(path, rows).read_bytes(), write(path, OWN).read_bytes()]
    if kind == "csv":
        seeds += [b"question;A;B;answer\nx;y;z;B\n", b"Question,option_a,option_b\nx,y,z\n"]

    def read(content: bytes) -> None:
        path.write_bytes(content)
        with suppress(InputError):
            _check(partial(read_question, path))
        load_tasks([str(path)], Selection(skip_bad_rows=True))

    how = {"csv": damage_bytes, "json": damage_json, "jsonl": damage_line}
    return Reader(seeds, read, how[kind])


def samples() -> Reader:
    path = Path("samples-words-standard.jsonl")
    lines = [_sample(number).line() for number in range(3)]

    def read(content: bytes) -> None:
        path.write_bytes(content)
        for sample in read_samples(path):
            json.dumps(json.loads(sample.line()), allow_nan=False)

    return Reader(["".join(lines).encode()], read, damage_line)


def run() -> Reader:
    """run.json, with which `--resume` compares."""
    facts = {"seeds": [0, 1], "model": {"config": {"hidden_size": 8}}, "methods": ["standard"]}
    machine = {"threads": 2}

    def read(content: bytes) -> None:
        Path("run.json").write_bytes(content)
        with open_folder(Path(), facts, resume=True, machine=machine):
            pass

    return Reader([_json({**facts, "machine": machine})], read)


def results() -> Reader:
    path = Path("results.json")
    tasks = {"words": {"standard": made.cell(), "self-ensemble": made.ours()}}
    seeds = [made.make(None, tasks, differences={"words": [{**made.DIFFERENCE, "b": "standard"}]})]
    seeds += [made.make("main", {"qasc": tasks["words"]})]

    def read(content: bytes) -> None:
        path.write_bytes(content)
        peaks_so_far(path)
        run = read_results(Path())
        with suppress(*DAMAGE):  # as `minise report` does
            as_text(tell_apart([run]))

    return Reader([_json(seed) for seed in seeds], read)


READERS: dict[str, Callable[[], Reader]] = {
    **{"config": config, "index": index, "weights": weights, "packed": partial(weights, True)},
    **{"state": state, "tokenizer": tokenizer, "writing": writing},
    **{kind: partial(questions, kind) for kind in ("csv", "json", "jsonl")},
    **{"samples": samples, "run": run, "results": results},
}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _as_tensor(content: bytes) -> torch.Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


def _sample(number: int) -> Sample:
    return Sample(
        seed=0,
        id=f"q{number}",
        question_hash="0" * 16,
        answer=number % 2,
        prediction=0,
        probabilities=[0.75, 0.25],
        scores=[0.75, 0.25],
        tokens=9,
        seconds=0.5,
    )


# What is wrong with how a reader took a file.


def judge(read: Callable[[], object]) -> tuple[str, str]:
    """What is wrong, equal for equal defects, and the details. Empty texts if nothing is."""
    try:
        read()
    except InputError as error:
        message = str(error)
        if len(message) > LONGEST:
            return f"a message of over {LONGEST} characters{_raised(error)}", message
        if len(message.splitlines()) != 1:
            return f"a message that is not one line{_raised(error)}", repr(message)
    except BaseException as error:  # a library written in Rust may raise one, too
        return where(error), traceback.format_exc()
    return "", ""


def _check(read: Callable[[], object]) -> None:
    """Raise RuntimeError for what `judge` finds: in a reader that calls several."""
    if found := judge(read)[1]:
        raise RuntimeError(found)


def _raised(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f" in {Path(last.filename).name}:{last.lineno} ({last.name})"


# The search.


def search(name: str, folder: Path, seconds: int) -> None:
    """Search in this process, which ends with the search. In `folder` are then `corpus`; `found`,
    with a file and a text for each defect; and `log`. The reader works in `case`."""
    atheris: Any = import_module("atheris")
    corpus, found, case = folder / "corpus", folder / "found", folder / "case"
    for part in (corpus, found, case):
        part.mkdir(exist_ok=True)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    known: set[str] = set()
    with confined(folder, SECONDS):
        os.chdir(case)
        reader = READERS[name]()
        for number, seed in enumerate(reader.seeds):
            (corpus / f"seed-{number}").write_bytes(seed)
        for function in package_functions():
            atheris.instrument_func(function)

        def one(content: bytes) -> None:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            defect, detail = judge(partial(reader.read, content))
            if defect and defect not in known:
                known.add(defect)
                (found / str(len(known))).write_bytes(content)
                text = f"{defect}\n{detail}"
                (found / f"{len(known)}.txt").write_text(text, errors="backslashreplace")

        def change(content: bytes, most: int, seed: int) -> bytes:
            draw = random.Random(seed)
            if draw.random() < 0.5:
                with suppress(Exception):  # it has not the format any more
                    changed = reader.damage(content, draw)
                    if len(changed) <= most:
                        return changed
            mutated: bytes = atheris.Mutate(content, most)
            return mutated

        limits = [f"-max_total_time={seconds}", f"-max_len={LARGEST}", f"-rss_limit_mb={MEMORY}"]
        limits += [f"-timeout={6 * SECONDS}", "-len_control=0", f"-artifact_prefix={found}/"]
        atheris.Setup([name, *limits, str(corpus)], one, custom_mutator=change)
        atheris.Fuzz()


def package_functions() -> Iterator[FunctionType]:
    """Every function of minise that is imported, in its modules and classes."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "minise":
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    members = list(vars(value).values()) if isinstance(value, type) else [value]
                    yield from filter(None, map(_function, members))


def _function(value: Any) -> FunctionType | None:
    for inside in ("fget", "func", "__func__"):  # of a property, a cached one, a class method
        value = getattr(value, inside, value)
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


def report(name: str, folder: Path, status: int | None) -> int:
    """Print what a search did and found; returns how many defects."""
    log = (folder / "log").read_text(errors="replace")
    counted = re.findall(r"^#(\d+)\s.*cov: (\d+).*corp: (\d+)", log, re.MULTILINE)
    runs, edges, kept = counted[-1] if counted else ("0", "0", "0")
    found = sorted((folder / "found").glob("*.txt"))
    print(f"{name}: {int(runs):,} files read, {edges} edges reached, {kept} files kept", end="")
    print(f", {len(found)} defects", flush=True)
    for path in found:
        print(f"  {path.with_suffix('')}: {path.read_text().splitlines()[0]}")
    if status:
        print(f"  the search ended with status {status}; see {folder / 'log'}")
    return len(found) + bool(status)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("readers", nargs="*", metavar="READER", help=", ".join(READERS))
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--folder", type=Path, help="of the search; default: a new one")
    parser.add_argument("--input", type=Path, help="read this file once, and search nothing")
    args = parser.parse_args(arguments)
    names = args.readers or list(READERS)
    if unknown := [name for name in names if name not in READERS]:
        parser.error(f"no reader is called {unknown[0]}; there are {', '.join(READERS)}")
    torch.set_num_threads(1)  # a process that has threads cannot be forked safely
    if args.input:
        return show(names[0], args.input.read_bytes())
    try:
        import_module("atheris")
    except ModuleNotFoundError:
        print(INSTALL, file=sys.stderr)
        return 2
    root = args.folder or Path(tempfile.mkdtemp(prefix="minise-fuzz-readers-"))
    defects = 0
    for name in names:
        folder = (root / name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        child = multiprocessing.get_context("fork").Process(
            target=search, args=(name, folder, args.seconds)
        )
        child.start()
        child.join()
        defects += report(name, folder, child.exitcode)
    if not (defects or args.folder):
        shutil.rmtree(root)
    return 1 if defects else 0


def show(name: str, content: bytes) -> int:
    """Read one file and print what is wrong with how it was taken."""
    with tempfile.TemporaryDirectory() as folder, confined(Path(folder), SECONDS):
        defect, detail = judge(partial(READERS[name]().read, content))
    print(f"{defect}\n{detail}" if defect else "read, or refused in one line")
    return 1 if defect else 0


if __name__ == "__main__":
    sys.exit(main())
