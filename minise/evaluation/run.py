"""A run: methods x questions on one model, with every answer on the disk before the next pass.

A folder holds run.json, which says what the run is, and samples-TASK-METHOD.jsonl with a line for
each answer, in the order of the questions. A run that was cut off at any instant goes on where the
lines end. A shard of a run writes files of its own into the same folder; results.py joins them.
"""

import ctypes
import hashlib
import inspect
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import filelock
import pandas as pd
import torch
from tqdm import tqdm

from minise import __version__
from minise.engines import LanguageModel
from minise.errors import InputError, Unsuited, one_line, quote, shorten
from minise.evaluation.experiments import Variant
from minise.files import write_file
from minise.layout import shared_length
from minise.method import Method, Plan
from minise.methods.first_trials import group_records
from minise.methods.fitted import Fitted, Row
from minise.methods.registry import make_method, read_settings
from minise.methods.together import pass_logits
from minise.question import Question

Asked = list[tuple[int, Question]]  # with the seeds of the groups
Shard = tuple[int, int]  # the i-th of n, from 0
WHOLE: Shard = (0, 1)
LEFT_OUT = ".left-out"  # ends the file that says why a method does not suit a task
TOGETHER = 512  # tokens after a common beginning, up to which questions share a pass
KEYS = ("seed", "id", "question_hash", "answer")  # which question a line answers


@dataclass(frozen=True)
class TaskRun:
    """What runs on one task. options: settings of all methods that have them."""

    name: str
    dataset: str
    questions: Asked
    variants: Sequence[Variant]
    options: dict[str, Any]

    @property
    def methods(self) -> dict[str, Method | Fitted]:
        return {one.name: make_method(one.text, self.options)[1] for one in self.variants}


@dataclass(frozen=True)
class Run:
    """The request of a run. about: what else makes it another run. keep_groups: in all lines, not
    only in those that fitted methods need. keep_text: of questions, and what a model writes. peak:
    measure memory."""

    tasks: Sequence[TaskRun]
    about: dict[str, Any]
    shard: Shard = WHOLE
    keep_groups: bool = False
    keep_text: bool = False
    peak: bool = False


def evaluate(lm: LanguageModel, run: Run, folder: Path, tell: Callable[[str], None]) -> None:
    """Ask what this folder has no answer to. `tell` is given lines for the user. Raises InputError
    for a folder of another run, and for a question that a method cannot be asked."""
    i, n = run.shard
    with opened(folder, describe(lm, run), run.shard):
        for task in run.tasks:
            methods = task.methods
            needed = {need for one in methods.values() for need in getattr(one, "needs", ())}
            for variant in task.variants:
                if isinstance(method := methods[variant.name], Method):
                    keep = run.keep_groups or variant.name in needed
                    asker = Asker(lm, method, variant.engine, replace(run, keep_groups=keep))
                    path = samples_path(folder, task.name, variant.name, run.shard)
                    path.with_suffix(LEFT_OUT).unlink(missing_ok=True)
                    try:
                        append_answers(path, asker, task.questions[i::n])
                    except Unsuited as error:
                        write_file(path.with_suffix(LEFT_OUT), f"left out: {one_line(error)}")
                        tell(f"left out: {one_line(error)}")


def append_answers(path: Path, asker: "Asker", questions: Asked) -> None:
    """Write a line for each question that has none. Each is on the disk before the next pass."""
    rows, title = read_rows(path, cut=True), shorten(path.stem.removeprefix("samples-"), 60)
    wanted = [(seed, q.id, q.content_hash, q.answer) for seed, q in questions]
    if [tuple(row[key] for key in KEYS) for row in rows] != wanted[: len(rows)]:
        raise InputError(f"{path}: holds answers to other questions; choose another folder")
    bar = tqdm(total=len(questions), initial=len(rows), desc=title, disable=None)
    with path.open("ab") as file, bar:
        try:
            for row in asker.answers(questions[len(rows) :]):
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                rows.append(row)
                bar.update()
        except InputError as error:  # also Unsuited
            where = f"question {quote(questions[len(rows)][1].id, 40)}"
            raise type(error)(f"{title}, {where}: {error} (answers so far are kept)") from error


def read_rows(path: Path, cut: bool = False) -> list[Row]:
    """The answers of a file, if there is one. What a kill has left of a last line is not read, and
    is cut off with `cut`. Raises InputError for a line that is no answer."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if cut and len(whole) < len(content):
        os.truncate(path, len(whole))
    rows: list[Row] = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            rows.append(json.loads(line))
            [rows[-1][key] for key in (*KEYS, "prediction", "probabilities", "scores", "tokens")]
        except (ValueError, LookupError, TypeError):
            remedy = "delete it and what follows, then run the same command again"
            raise InputError(f"{path}, line {number}: is no answer; {remedy}") from None
    return rows


def suffix(shard: Shard) -> str:
    return "" if shard == WHOLE else f".shard-{shard[0]}-of-{shard[1]}"


def samples_path(folder: Path, task: str, method: str, shard: Shard = WHOLE) -> Path:
    name = f"samples-{task}-{method}{suffix(shard)}.jsonl"
    return folder / re.sub(r"[/\\]", "_", name)


@dataclass(frozen=True)
class Planned:
    """A question to be asked. seconds: how long its plan took."""

    seed: int
    plan: Plan
    tokens: int
    seconds: float


def beyond(batch: Sequence[Planned], plan: Plan) -> int:
    """How many tokens a batch has after what its questions and one more begin with: solved
    questions are the same for all, and a pass has them once."""
    shared = shared_length([plan.prefix, *(one.plan.prefix for one in batch)])
    return sum(one.tokens - shared for one in batch)


@dataclass(frozen=True)
class Asker:
    """A method that asks a model, and how."""

    lm: LanguageModel
    method: Method
    engine: str
    run: Run

    def answers(self, questions: Asked) -> Iterator[Row]:
        """The line of each question, in their order. An error comes after the lines before it."""
        batch: list[Planned] = []
        if self.run.peak and questions:  # a first pass also reads the weights from their files
            pass_logits(self.lm, [self.method.plan(self.lm, questions[0][1])], self.engine)
        most = TOGETHER if self.engine == "tree" and not self.run.peak else 0
        most *= 8 if str(self.lm.decoder.device).startswith("cuda") else 1  # docs/costs.md
        for seed, question in questions:
            began = time.perf_counter()
            try:
                plan = self.method.plan(self.lm, question, seed)
            except InputError:
                yield from self.asked(batch)
                raise
            tokens = plan.tokens(self.engine)
            new = Planned(seed, plan, tokens, time.perf_counter() - began)
            if batch and beyond(batch, plan) >= most:
                yield from self.asked(batch)
                batch = []
            batch.append(new)
        yield from self.asked(batch)

    def asked(self, batch: Sequence[Planned]) -> Iterator[Row]:
        """The lines of questions in one pass; each has a share of its seconds by its tokens."""
        if not batch:
            return
        before = memory(self.lm, reset=True) if self.run.peak else 0
        began = time.perf_counter()
        try:
            plans = [one.plan for one in batch]
            logits = pass_logits(self.lm, plans, self.engine, total=True)
        except InputError:  # one by one: then it is known which
            if len(batch) == 1:
                raise
            for one in batch:
                yield from self.asked([one])
            return
        peak = {"peak_bytes": memory(self.lm) - before} if self.run.peak else {}
        each = (time.perf_counter() - began) / sum(one.tokens for one in batch)
        for one, rows in zip(batch, logits, strict=True):
            seconds = one.seconds + each * one.tokens
            cost = {"tokens": one.tokens, "seconds": seconds, **peak}
            yield self.row(one.seed, one.plan, rows, cost)

    def row(self, seed: int, plan: Plan, logits: list[torch.Tensor], cost: Row) -> Row:
        """A line of a samples file. on_labels: of the probability after a prompt, the share that
        its labels have; the mean over the prompts. None where no labels are read."""
        has_labels = plan.prompts[0].label_ids is not None
        shares = [(row[:-1].logsumexp(dim=0) - row[-1]).exp() for row in logits]
        logits = [row[:-1] for row in logits]
        question, answer = plan.question, self.method.answer(plan, logits)
        alone = answer.groups[0].choices if len(answer.groups) == 1 else ()
        nulls = [(one.weight, one.null) for one in answer.groups if one.null is not None]
        row = {
            "id": question.id,
            "seed": seed,
            "cluster": question.cluster or None,
            "question_hash": question.content_hash,
            "answer": question.answer,
            "prediction": answer.prediction,
            "probabilities": answer.probabilities.tolist(),
            "scores": answer.scores.tolist(),
            "label": alone.index(answer.prediction) if answer.prediction in alone else None,
            "logits": logits[0].tolist() if has_labels else None,
            "on_labels": float(torch.stack(shares).mean()) if has_labels else None,
            "null": sum(w * p for w, p in nulls) / sum(w for w, _ in nulls) if nulls else None,
            **cost,
        }
        if self.run.keep_groups:
            row["groups"] = group_records(plan, answer, self.engine)
        if notes := {k: v for k, v in plan.notes.items() if k != "reasoning" or self.run.keep_text}:
            row["notes"] = notes
        if self.run.keep_text:
            row |= {"question": question.text, "choices": list(question.choices)}
        return row


def memory(lm: LanguageModel, reset: bool = False) -> int:
    """The peak of memory in bytes since the last reset; with `reset` what is in use now. Allocated
    on CUDA, resident on Linux."""
    if str(lm.decoder.device).startswith("cuda"):
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return torch.cuda.max_memory_allocated()
    if reset:  # what the allocator keeps for reuse would hide what a run takes: give it back
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is in use now
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def describe(lm: LanguageModel, run: Run) -> dict[str, Any]:
    """What must be equal for a run to go on in a folder, as JSON gives it back."""
    what = {
        **run.about,
        "model": lm.name,
        "revision": lm.revision,
        "weights": weights_hash(lm),
        "parameters": sum(p.numel() for p in lm.decoder.parameters()),
        "dtype": str(lm.decoder.dtype).removeprefix("torch."),
        "device": str(lm.decoder.device).partition(":")[0],
        "versions": {"minise": __version__, "torch": torch.__version__},
        "shards": run.shard[1],
        "keep": {"groups": run.keep_groups, "text": run.keep_text},
        "tasks": {task.name: describe_task(task) for task in run.tasks},
    }
    text = re.sub(" at 0x[0-9a-f]+", "", json.dumps(what, default=repr))  # of functions
    return dict(json.loads(text))


def describe_task(task: TaskRun) -> dict[str, Any]:
    """The questions by a hash, and the methods."""
    rows = [[seed, q.id, q.content_hash, q.answer] for seed, q in task.questions]
    sizes = {len(question.choices) for _, question in task.questions}
    methods = zip(task.variants, task.methods.values(), strict=True)
    return {
        "dataset": task.dataset,
        "choices": sizes.pop() if len(sizes) == 1 else None,
        "questions": len(rows),
        "hash": hash_of(rows),
        "options": task.options,
        "methods": {one.name: describe_method(one, made, task.options) for one, made in methods},
    }


def describe_method(
    variant: Variant, method: Method | Fitted, options: dict[str, Any]
) -> dict[str, Any]:
    cls = type(method)
    template = (options | read_settings(variant.text)[1]).get("template", "default")
    return {
        "text": variant.text,
        "engine": variant.engine,
        "kind": cls.name,
        "template": template if "template" in vars(method) else None,
        "settings": vars(method),
        "fitted": isinstance(method, Fitted),
        "code": hash_of([Path(inspect.getfile(cls)).read_text()]),  # it may be the user's own
    }


def weights_hash(lm: LanguageModel) -> str:
    """Of the config, and of some 64 numbers of each parameter: all would take too long."""
    tensors = lm.decoder.state_dict().items()
    some = {name: x.flatten()[:: max(1, x.numel() // 64)].tolist() for name, x in tensors}
    return hash_of([repr(lm.config), some])


def hash_of(rows: list[Any]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


@contextmanager
def opened(folder: Path, what: dict[str, Any], shard: Shard) -> Iterator[None]:
    """A run's folder, created or checked, and locked against a second process of this shard. The
    system releases the lock even if the process is killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / f".lock{suffix(shard)}").acquire(timeout=0)
    except filelock.Timeout:
        raise InputError(f"{folder}: another process is writing here; choose another") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"{folder}: could not be written ({reason}); choose another") from None
    with lock:
        for path in run_files(folder):
            if found := difference_of(json.loads(path.read_bytes()), what):
                raise InputError(f"{folder} holds another run ({found}); choose another folder")
        write_file(folder / f"run{suffix(shard)}.json", json.dumps(what, indent=1) + "\n")
        yield


def run_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("run.shard-*-of-*.json")) + sorted(folder.glob("run.json"))


def difference_of(there: Any, here: Any) -> str:
    """Where two runs first differ, such as "tasks.words.hash", and how; empty if they are equal."""
    flat = [pd.json_normalize(what).iloc[0].to_dict() for what in (there, here)]
    for key in {**flat[0], **flat[1]}:
        a, b = (quote(one.get(key, "missing"), 70) for one in flat)
        if a != b:
            return f"{key} is {a} there and {b} here"
    return ""
