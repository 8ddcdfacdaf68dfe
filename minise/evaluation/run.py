"""A run: tasks x variants x seeds on one model, with every answer on the disk at once.

A folder holds `run.json` (what the run is), `samples-TASK-VARIANT.jsonl` with one line for each
seed and question, and at the end `results.json`, which is made from the samples. A run that was cut
off at any instant goes on and ends with the same results. (On the same machine: another processor
may round the last digits differently.)
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from minise.engines import LanguageModel
from minise.ensemble import Answer, Plan, label_logits
from minise.errors import InputError
from minise.evaluation import samples as files
from minise.evaluation.first_trials import group_records
from minise.evaluation.metrics import difference, summarise
from minise.evaluation.samples import Sample
from minise.evaluation.tasks import Task
from minise.identity import machine, sha256
from minise.meter import peak_bytes, timed
from minise.methods.registry import Variant, build
from minise.presets import resolve
from minise.prompt import LABELS
from minise.question import Question

Seeded = list[tuple[int, Question]]  # questions with their seeds, seed after seed
Made = list[tuple[Variant, Any]]  # variants and their methods, in the order in which they run
Asked = tuple[list[Sample], int | None]  # in the order of the questions; the peak of memory (bytes)


@dataclass(frozen=True)
class Run:
    """What to do. The tasks of every seed have the same names; some draw by the seed."""

    tasks: dict[int, list[Task]]  # by seed
    variants: dict[str, list[Variant]]  # by task
    identity: dict[str, Any]  # what else makes it another run: model, dtype, limit, ...
    keep_groups: bool = False  # in all samples, not only in those that a fitted method needs
    about: dict[str, Any] = field(default_factory=dict)  # more that results.json says
    # More that is measured, by its key in results.json: a function of a task's samples by variant.
    extra: dict[str, Callable[[dict[str, list[Sample]]], Any]] = field(default_factory=dict)

    def questions(self, task: str) -> Seeded:
        same = [(seed, one) for seed, tasks in self.tasks.items() for one in tasks]
        return [(seed, q) for seed, one in same if one.name == task for q in one.questions]

    def describe(self) -> dict[str, Any]:
        """What must be equal for a run to go on in a folder. A JSON object."""
        tasks = {}
        for task in next(iter(self.tasks.values())):
            asked = [[s, q.id, q.content_hash, q.answer] for s, q in self.questions(task.name)]
            digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
            facts = {"dataset": task.dataset, "choices": task.choices}
            tasks[task.name] = {"questions": len(asked), "hash": digest, **facts}
        every = [v for variants in self.variants.values() for v in variants]
        named = {text for v in every for text in (v.method, str(v.settings.get("grouping")))}
        own = sorted(text.rpartition(":")[0] for text in named if ".py:" in text)
        return {
            **self.identity,
            "seeds": list(self.tasks),
            "tasks": tasks,
            "variants": {t: [asdict(v) for v in vs] for t, vs in self.variants.items()},
            "code_sha256": {file: sha256(Path(file)) for file in own},
            "keep_groups": self.keep_groups,
        }


def evaluate(lm: LanguageModel, run: Run, folder: Path, resume: bool = False) -> dict[str, Any]:
    """Ask what is not asked yet, then fit and measure. Returns what results.json holds.

    Raises InputError, before any question is asked, for what a method cannot do and for a folder
    that is not this run's (`open_folder`); later for a full disk.
    """
    began = time.time()
    made = {task: _make_methods(run, task) for task in run.variants}
    description = run.describe()
    path = folder / "results.json"
    with files.open_folder(folder, description, resume):
        asked = {task: _run_task(lm, run, task, made[task], folder) for task in made}
        before = json.loads(path.read_text(encoding="utf-8"))["timing"] if path.exists() else {}
        found = {task: _measure(run, task, asked[task], before.get(task, {})) for task in made}
        methods = {variant.name: method for each in made.values() for variant, method in each}
        config = {
            **description,
            **run.about,
            "prompts": {task: _prompts(lm, run, task, made[task][0][1]) for task in made},
            "regularisation": {
                n: m.regularisation for n, m in methods.items() if hasattr(m, "regularisation")
            },
            **machine(),
            "wall_seconds": round(time.time() - began, 1),
        }
        keys = ("results", "differences", "timing", *run.extra)
        measured = {key: {task: found[task][key] for task in found} for key in keys}
        text = json.dumps({"config": config, **measured}, indent=1, ensure_ascii=False)
        files.replace_file(path, text + "\n")
        return json.loads(text)


def _make_methods(run: Run, task: str) -> Made:
    """The variants of a task with their methods, the fitted ones last. Raises InputError for what a
    method needs and does not find, and for what it cannot do."""
    made = [(variant, build(variant)) for variant in run.variants[task]]
    made.sort(key=lambda one: hasattr(one[1], "fit"))
    ready: set[str] = set()
    for variant, method in made:
        if variant.name in ready:
            raise InputError(f"{task}: two methods have one name; give each its own")
        if missing := [need for need in getattr(method, "needs", ()) if need not in ready]:
            raise InputError(
                f"{variant.name} is fitted on {missing[0]}; name that method before it"
            )
        if hasattr(method, "check"):
            method.check(run.questions(task))
        ready.add(variant.name)
    return made


def _run_task(lm: LanguageModel, run: Run, task: str, made: Made, folder: Path) -> dict[str, Asked]:
    """What each variant answers, by its name."""
    asked: dict[str, Asked] = {}
    questions = run.questions(task)
    needed = {need for _, method in made for need in getattr(method, "needs", ())}
    for variant, method in made:
        name, path = variant.name, files.samples_path(folder, task, variant.name)
        if not hasattr(method, "fit"):
            keep_groups = run.keep_groups or name in needed
            asked[name] = _ask_all(lm, method, variant.engine, keep_groups, questions, path)
            continue
        fitted: list[Sample] = method.fit({need: asked[need][0] for need in method.needs})
        if [sample.key for sample in fitted] != [
            (seed, question.id) for seed, question in questions
        ]:
            raise InputError(f"{name}: fit must give a sample for each question, in order")
        files.replace_file(path, "".join(sample.line() for sample in fitted))
        asked[name] = fitted, None
    return asked


def _ask_all(
    lm: LanguageModel, method: Any, engine: str, keep_groups: bool, questions: Seeded, path: Path
) -> Asked:
    """The samples of a method that asks the model: those of its file, and those that it lacks."""
    files.drop_torn_line(path)
    found = {sample.key: sample for sample in files.read_samples(path)}
    hashes = {(seed, question.id): question.content_hash for seed, question in questions}
    if any(hashes.get(key) != sample.question_hash for key, sample in found.items()):
        raise InputError(f"{path}: holds answers to other questions; choose another folder")
    pending = [(seed, question) for seed, question in questions if (seed, question.id) not in found]
    what = path.stem.removeprefix("samples-")

    def ask_pending() -> None:
        # disable=None: no bar where there is no terminal.
        with tqdm(pending, what, unit="question", leave=False, disable=None) as bar:
            for seed, question in bar:
                sample = _ask(lm, method, engine, keep_groups, question, seed)
                files.append_lines(path, [sample.line()])
                found[sample.key] = sample

    peak = peak_bytes(ask_pending, lm.decoder.device)[0] if pending else None
    return [found[key] for key in hashes], peak


def _ask(
    lm: LanguageModel, method: Any, engine: str, keep_groups: bool, question: Question, seed: int
) -> Sample:
    """One question: plan its prompts, run them in one forward pass, read the answer."""
    plan: Plan = method.plan(lm, question, seed)
    logits: list[Tensor] = []
    seconds = timed(lambda: logits.extend(label_logits(lm, plan, engine)), lm.decoder.device)
    answer: Answer = method.answer(plan, logits)
    assert question.answer is not None, "the questions of a task have answers"
    K = len(question.choices)
    alone = plan.groups.flat == [tuple(range(K))] and len(logits[0]) == K
    return Sample(
        id=question.id,
        seed=seed,
        question_hash=question.content_hash,
        answer=question.answer,
        prediction=answer.prediction,
        probabilities=answer.probabilities.tolist(),
        scores=answer.scores.tolist(),
        tokens=plan.tokens(engine),
        seconds=seconds,
        logits=logits[0].tolist() if alone else None,
        groups=group_records(plan, answer, engine) if keep_groups else None,
        notes=method.notes(lm, plan, answer, seed) if hasattr(method, "notes") else None,
    )


def _measure(
    run: Run, task: str, asked: dict[str, Asked], before: dict[str, Any]
) -> dict[str, Any]:
    """The numbers of a task, by their keys in results.json. `before`: its timing so far."""
    samples = {variant.name: asked[variant.name][0] for variant in run.variants[task]}
    names = list(samples)
    # Each with those before it; of many variants, with the first alone.
    others = {b: names[: i if len(names) <= 8 else min(i, 1)] for i, b in enumerate(names)}
    timing = {}
    for name in names:
        seconds = [sample.seconds for sample in samples[name] if sample.seconds is not None]
        mean = sum(seconds) / len(seconds) if seconds else None
        # A run that has nothing left to ask keeps the peak that was measured before.
        peak = asked[name][1] or before.get(name, {}).get("peak_bytes")
        timing[name] = {"seconds_per_question": mean, "peak_bytes": peak}
    return {
        "results": {
            v.name: {"method": v.method, "settings": v.settings, "engine": v.engine}
            | summarise(samples[v.name])
            for v in run.variants[task]
        },
        "differences": [
            {"a": a, "b": b, **difference(samples[a], samples[b])} for a in names for b in others[a]
        ],
        "timing": timing,
        **{key: measure(samples) for key, measure in run.extra.items()},
    }


def _prompts(lm: LanguageModel, run: Run, task: str, method: Any) -> dict[str, Any]:
    """The templates, and the label tokens of a method that asks the model."""
    seed, question = run.questions(task)[0]
    plan: Plan = method.plan(lm, question, seed)
    ids = max((prompt.label_ids for prompt in plan.prompts), key=len)
    preset = resolve(getattr(method, "preset", "paper"), lm.config.model_type)
    templates = {"group": asdict(preset.template), "standard": asdict(preset.standard_template)}
    return {"label_ids": dict(zip(LABELS, ids, strict=False)), "templates": templates}
