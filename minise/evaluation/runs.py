"""A run: tasks x methods x seeds on one model, every answer on disk as soon as it is there.

A folder holds `run.json` (what the run is), `samples-TASK-METHOD.jsonl` and, at the end,
`results.json`, which is made from the samples alone. A run cut off at any instant goes on where it
stopped. Numbers do not depend on where that was: the questions of a forward pass are fixed by their
order, and a pass of which some lines are missing is run whole, its missing lines added. (On the
same machine, with as many threads: others round otherwise, in the last digits.)
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minise import __version__
from minise.bench.measure import peak_bytes, timed
from minise.checkpoint import LanguageModel
from minise.ensemble import Plan, answer, resolve
from minise.errors import InputError
from minise.evaluation.calibration import REGULARISATION, dirichlet, vector_scaling
from minise.evaluation.folder import open_folder, replace_file
from minise.evaluation.methods import FITTED, Method
from minise.evaluation.metrics import difference, measure
from minise.evaluation.samples import Sample, append_lines, drop_torn_line, read_samples
from minise.evaluation.tasks import Task
from minise.prompt import LABELS, Question
from minise.source import finder, weight_files

_FIT = {"vector-scaling": vector_scaling, "dirichlet": dirichlet}


@dataclass(frozen=True)
class Run:
    """What is to be done. `tasks` holds each seed's version of the same tasks (some draw their
    questions or choices by the seed), `methods` each task's; `identity` whatever else makes a run
    another run (model, dtype, limit, ...)."""

    tasks: dict[int, list[Task]]
    methods: dict[str, list[Method]]
    identity: dict[str, Any]
    folds: int = 5
    keep_groups: bool = False
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The tasks' names, in order."""
        return [task.name for task in next(iter(self.tasks.values()))]

    def questions(self, task: str) -> list[tuple[int, Question]]:
        """A task's questions with their seeds, seed after seed."""
        return [
            (seed, question)
            for seed, tasks in self.tasks.items()
            for one in tasks
            if one.name == task
            for question in one.questions
        ]

    def describe(self) -> dict[str, Any]:
        """What must be the same for a run to go on in a folder."""
        tasks = {}
        for name in self.names:
            hashes = [[seed, q.id, q.content_hash, q.answer] for seed, q in self.questions(name)]
            tasks[name] = {
                "questions": len(hashes),
                "hash": hashlib.sha256(json.dumps(hashes).encode()).hexdigest()[:16],
            }
        return json.loads(
            json.dumps(
                {
                    **self.identity,
                    "seeds": list(self.tasks),
                    "tasks": tasks,
                    "methods": {t: [asdict(m) for m in ms] for t, ms in self.methods.items()},
                    "folds": self.folds,
                    "keep_groups": self.keep_groups,
                }
            )
        )


def weights_identity(lm: LanguageModel) -> dict[str, Any]:
    """Which weights these are: the hub's commit, or the hashes of a folder's files."""
    if lm.revision is not None:
        return {"revision": lm.revision}
    find = finder(lm.name, None)
    files = weight_files(find, find("config.json").parent)
    return {"weights_sha256": {path.name: _sha256(path) for path in files}}


def samples_path(folder: Path, task: str, method: str) -> Path:
    return folder / f"samples-{task}-{method}.jsonl"


def evaluate(lm: LanguageModel, run: Run, folder: Path, resume: bool = False) -> dict[str, Any]:
    """Do what is not yet done, then measure. Returns what results.json holds.

    Raises InputError for a folder of another run, one that another process writes, one with samples
    in it where `resume` is not given, and a disk that takes no more.
    """
    began = time.time()
    _check_fitted(run)
    description = run.describe()
    with open_folder(folder, description, resume):
        peaks: dict[tuple[str, str], int | None] = {}
        for task in run.names:
            for together in _passes(run.methods[task]):
                peaks |= _answer_all(lm, run, task, together, folder)
            for method in run.methods[task]:
                if method.kind in FITTED:
                    _fit(run, task, method, folder)
        config = {
            **description,
            **run.about,
            "prompts": {task: _prompt_facts(lm, run, task) for task in run.names},
            "regularisation": REGULARISATION,
            **machine(),
            "wall_seconds": round(time.time() - began, 1),
        }
        return write_results(folder, config, run, peaks)


def write_results(
    folder: Path,
    config: dict[str, Any],
    run: Run,
    peaks: dict[tuple[str, str], int | None],
) -> dict[str, Any]:
    """Measure the samples on disk and write results.json."""
    results: dict[str, Any] = {}
    differences: dict[str, Any] = {}
    timing: dict[str, Any] = {}
    measured = _measured_before(folder)
    for task in run.names:
        cells = {}
        for method in run.methods[task]:
            cells[method.name] = _samples_in_order(run, folder, task, method.name)
        results[task] = {name: measure(samples) for name, samples in cells.items()}
        differences[task] = [
            {"a": a, "b": b, "changed": _changed(cells[a], cells[b])}
            | difference(cells[a], cells[b])
            for a, b in _pairs(list(cells))
        ]
        timing[task] = {
            method.name: {
                "seconds_per_question": None
                if method.share or method.kind in FITTED
                else sum(s.seconds for s in cells[method.name]) / len(cells[method.name]),
                "peak_bytes": peaks.get((task, method.name), measured(task, method.name)),
            }
            for method in run.methods[task]
        }
    report = {"config": config, "results": results, "differences": differences, "timing": timing}
    replace_file(folder / "results.json", json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return report


def _samples_in_order(run: Run, folder: Path, task: str, method: str) -> list[Sample]:
    """A method's samples on disk, in the order of the task's questions."""
    found = {sample.key: sample for sample in read_samples(samples_path(folder, task, method))}
    return [found[seed, question.id] for seed, question in run.questions(task)]


def _measured_before(folder: Path) -> Callable[[str, str], int | None]:
    """The peak memory that an earlier end of this run has noted."""
    path = folder / "results.json"
    timing = json.loads(path.read_text(encoding="utf-8"))["timing"] if path.exists() else {}
    return lambda task, method: timing.get(task, {}).get(method, {}).get("peak_bytes")


def _changed(a: Sequence[Sample], b: Sequence[Sample]) -> int:
    """How many questions two methods answer differently."""
    return sum(x.prediction != y.prediction for x, y in zip(a, b, strict=True))


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each method against those before it; of many, against the first alone."""
    if len(names) > 8:
        return [(name, names[0]) for name in names[1:]]
    return [(a, b) for i, a in enumerate(names) for b in names[:i]]


def _passes(methods: Sequence[Method]) -> list[list[Method]]:
    """The methods that ask the model, those that share their forward passes side by side."""
    together: dict[str, list[Method]] = {}
    for method in methods:
        if method.kind not in FITTED:
            together.setdefault(method.share or f"alone: {method.name}", []).append(method)
    return list(together.values())


def _answer_all(
    lm: LanguageModel, run: Run, task: str, methods: list[Method], folder: Path
) -> dict[tuple[str, str], int | None]:
    """All questions of a task under methods that run together; the peak memory of doing so."""
    paths = {m.name: samples_path(folder, task, m.name) for m in methods}
    done: dict[str, set[tuple[int, str]]] = {}
    questions = run.questions(task)
    wanted = {(seed, q.id): q.content_hash for seed, q in questions}
    for name, path in paths.items():
        drop_torn_line(path)
        found = read_samples(path)
        if any(wanted.get(s.key) != s.question_hash for s in found):
            raise InputError(f"{path}: holds answers to other questions; choose another folder")
        done[name] = {s.key for s in found}
    size = methods[0].questions_per_pass if len(methods) == 1 else 1
    chunks = [questions[i : i + size] for i in range(0, len(questions), size)]

    def missing(chunk: Sequence[tuple[int, Question]]) -> bool:
        return any((seed, q.id) not in done[m.name] for seed, q in chunk for m in methods)

    pending = [chunk for chunk in chunks if missing(chunk)]
    if not pending:
        return {}
    left = sum(map(len, pending))
    bar = tqdm(
        total=len(questions),
        initial=len(questions) - left,
        desc=f"{task} {methods[0].share or methods[0].name}",
        unit="question",
        disable=None,
        leave=False,
    )

    def work() -> None:
        for chunk in pending:
            answers = _answer(lm, methods, chunk, run.keep_groups)
            for name, samples in answers.items():
                new = [s for s in samples if s.key not in done[name]]
                if new:
                    append_lines(paths[name], [sample.line() for sample in new])
            bar.update(len(chunk))

    device = lm.decoder.model.embed_tokens.weight.device
    with bar:
        peak, _ = peak_bytes(work, device)
    return {(task, m.name): None if m.share else peak for m in methods}


def _answer(
    lm: LanguageModel,
    methods: Sequence[Method],
    chunk: Sequence[tuple[int, Question]],
    keep_groups: bool,
) -> dict[str, list[Sample]]:
    """One forward pass, and each method's samples from it."""
    asked = [
        (method, seed, question, method.plan(lm, question, seed))
        for method in methods
        for seed, question in chunk
    ]
    plans = [plan for *_, plan in asked]
    logits = []
    device = lm.decoder.model.embed_tokens.weight.device
    seconds = timed(lambda: logits.extend(methods[0].logits(lm, plans)), device)
    samples: dict[str, list[Sample]] = {method.name: [] for method in methods}
    for (method, seed, question, plan), rows in zip(asked, logits, strict=True):
        said = answer(plan, rows)
        assert question.answer is not None
        alone = len(rows) == 1 and method.kind == "standard"
        samples[method.name].append(
            Sample(
                id=question.id,
                seed=seed,
                question_hash=question.content_hash,
                answer=question.answer,
                prediction=said.prediction,
                probabilities=said.probabilities.tolist(),
                scores=said.scores.tolist(),
                tokens=method.tokens(plan),
                seconds=seconds / len(asked),
                logits=rows[0].tolist() if alone else None,
                groups=[_group(group) for group in said.groups] if keep_groups else None,
            )
        )
    return samples


def _group(group: Any) -> dict[str, Any]:
    return {
        "choices": list(group.choices),
        "probabilities": group.probabilities.tolist(),
        "null": group.null,
    }


def _check_fitted(run: Run) -> None:
    """Refuse beforehand what a fitted method could not do at the end."""
    for task in run.names:
        kinds = [method.kind for method in run.methods[task]]
        fitted = [kind for kind in kinds if kind in FITTED]
        sizes = sorted({len(q.choices) for _, q in run.questions(task)})
        if fitted and len(sizes) > 1:
            raise InputError(
                f"{fitted[0]} needs the same number of choices in every question; {task} has "
                f"{sizes[0]} to {sizes[-1]}: use --choices K or --num-choices K"
            )
        for kind in fitted:  # rehearsed on blank logits: the folds and answers are what they are
            _FIT[kind]([_blank(seed, q) for seed, q in run.questions(task)], run.folds)


def _blank(seed: int, question: Question) -> Sample:
    assert question.answer is not None
    zeros = [0.0] * len(question.choices)
    return Sample(question.id, seed, "", question.answer, 0, zeros, zeros, 0, 0.0, zeros)


def _fit(run: Run, task: str, method: Method, folder: Path) -> None:
    """A fitted method's samples, from those of standard inference; no model is asked."""
    standard = next(m.name for m in run.methods[task] if m.kind == "standard")
    fitted = _FIT[method.kind](_samples_in_order(run, folder, task, standard), run.folds)
    replace_file(samples_path(folder, task, method.name), "".join(s.line() for s in fitted))


def _prompt_facts(lm: LanguageModel, run: Run, task: str) -> dict[str, Any]:
    """Templates, their hash, and the label tokens, as the first method with prompts has them."""
    method = next(m for m in run.methods[task] if m.kind not in FITTED)
    seed, question = run.questions(task)[0]
    preset = resolve(lm, method.preset)
    plan: Plan = method.plan(lm, question, seed)
    ids = max(plan.prompts.label_ids, key=len)
    templates = {"group": asdict(preset.template), "standard": asdict(preset.standard_template)}
    return {
        "label_ids": dict(zip(LABELS, ids, strict=False)),
        "templates": templates,
        "template_hash": hashlib.sha256(json.dumps(templates).encode()).hexdigest()[:16],
    }


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def machine() -> dict[str, Any]:
    """What ran it."""
    packages = ("torch", "safetensors", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {
        "versions": {
            "minise": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{name: version(name) for name in packages},
        },
        "threads": torch.get_num_threads(),
    }
