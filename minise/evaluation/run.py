"""A run: tasks x variants x seeds on one model, with every answer on the disk at once.

A folder holds `run.json` (what the run is), `samples-TASK-VARIANT.jsonl` with one line for each
seed and question, and at the end `results.json` and `predictions-TASK.csv`, which are made from
the samples. A task without answers has predictions alone, and no part in results.json. A run that
was cut off at any instant goes on and ends with the same results. (On the same machine: another
processor may round the last digits differently.)
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from minise.data.tasks import Task
from minise.engines import LanguageModel
from minise.errors import InputError, one_line, printable, say, shorten
from minise.evaluation import samples as files
from minise.evaluation.asking import Asker, Seeded, ask_each, for_trial
from minise.evaluation.meter import peak_bytes
from minise.evaluation.metrics import difference, summarise
from minise.evaluation.predictions import predictions_csv
from minise.evaluation.progress import Whole, progress
from minise.files import json_text, write_file
from minise.loading.identity import code_identity, machine, sha256
from minise.method import Method, Plan
from minise.methods.build import build
from minise.methods.fitted import Fitted, NotConverged
from minise.methods.registry import Variant
from minise.methods.sample import Sample
from minise.prompt import LABELS
from minise.question import Question

Methods = list[tuple[Variant, Method | Fitted]]  # of a task, in the order in which they run


@dataclass(frozen=True)
class Run:
    """The request of a run. The tasks of every seed have the same names; some draw by the seed."""

    tasks: dict[int, list[Task]]  # by seed
    variants: dict[str, list[Variant]]  # by task
    identity: dict[str, Any]  # what else makes it another run: model, dtype, limit, ...
    keep_groups: bool = False  # in all samples, not only in those that a fitted method needs
    keep_text: bool = True  # of questions, in samples and predictions; it makes no other run
    tokens_per_pass: int = 0  # of the questions that are run together; it makes no other run
    about: dict[str, Any] = field(default_factory=dict)  # more facts for results.json
    # More that is measured, by its key in results.json: a function of a task's samples by variant.
    extra: dict[str, Callable[[dict[str, list[Sample]]], Any]] = field(default_factory=dict)

    def questions(self, task: str) -> Seeded:
        """The questions of a task with their seeds, seed after seed."""
        return [
            (seed, question)
            for seed, tasks in self.tasks.items()
            for one in tasks
            if one.name == task
            for question in one.questions
        ]

    def describe(self) -> dict[str, Any]:
        """What must be equal for a run to go on in a folder. A JSON object."""
        tasks = {}
        for task in next(iter(self.tasks.values())):
            rows = [[s, q.id, q.content_hash, q.answer] for s, q in self.questions(task.name)]
            digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
            facts: dict[str, Any] = {"dataset": task.dataset, "choices": task.choices}
            if any(question.answer is None for question in task.questions):
                facts["answered"] = False
            tasks[task.name] = {"questions": len(rows), "hash": digest, **facts}
        variants = [v for of_task in self.variants.values() for v in of_task]
        names = {text for v in variants for text in (v.method, str(v.settings.get("grouping")))}
        files_run = sorted(name.rpartition(":")[0] for name in names if ".py:" in name)
        return {
            **self.identity,
            "seeds": list(self.tasks),
            "tasks": tasks,
            "variants": {t: [asdict(v) for v in vs] for t, vs in self.variants.items()},
            "code_sha256": code_identity() | {file: sha256(Path(file)) for file in files_run},
            "keep_groups": self.keep_groups,
        }


@dataclass(frozen=True)
class Answers:
    """A sample for each question, in their order; and the peak of memory (bytes) while the model
    was asked, None where it was not asked or the system does not say."""

    samples: list[Sample]
    peak_bytes: int | None = None


def evaluate(lm: LanguageModel, run: Run, folder: Path, resume: bool = False) -> dict[str, Any]:
    """Ask what is not asked yet, then fit and measure. Returns the content of results.json.

    Raises InputError, before any question is asked, for what a method cannot do and for a folder
    that is not this run's (`open_folder`). Later for a full disk, and for a question that cannot be
    answered, which is named. A new folder is not created if a method cannot answer its first
    question, for example because the model's numbers overflow. A fit that does not converge is left
    out of the results, which list it under "left_out".
    """
    began = time.time()
    methods = {task: _make_methods(run, task) for task in run.variants}
    description, this_machine = run.describe(), machine()
    _check_names(folder, methods)
    if not (folder / "run.json").exists():
        _try_each(lm, run, methods)
    with files.open_folder(folder, description, resume, this_machine) as moved:
        if moved:
            say(f"{moved}: the last digits may be rounded otherwise, but the run goes on")
        whole = _whole(lm, run, methods)
        answers: dict[str, dict[str, Answers]] = {}  # by task and variant
        left_out: dict[str, dict[str, str]] = {}  # the reasons by task and variant
        for task in methods:
            answers[task], left_out[task] = _answer(lm, run, task, methods[task], folder, whole)
        measured = _measure_all(run, description, answers, folder)
        config = {
            **description,
            **run.about,
            "prompts": {task: _prompts(lm, run, task, methods[task]) for task in methods},
            "regularisation": _regularisation(methods),
            "left_out": left_out,
            **this_machine,
            "wall_seconds": round(time.time() - began, 1),
        }
        text = json_text({"config": config, **measured}, indent=1, ensure_ascii=False)
        write_file(folder / "results.json", text + "\n")
        return json.loads(text)


# Before a question is asked


def _make_methods(run: Run, task: str) -> Methods:
    """The variants of a task with their methods, the fitted ones last. Raises InputError for what a
    method needs and does not find, and for what it cannot do."""
    methods = [(variant, build(variant)) for variant in run.variants[task]]
    methods.sort(key=lambda pair: isinstance(pair[1], Fitted))
    ready: set[str] = set()
    for variant, method in methods:
        if variant.name in ready:
            raise InputError(f"{task}: two methods have one name; give each its own")
        needs = method.needs if isinstance(method, Fitted) else ()
        if missing := [need for need in needs if need not in ready]:
            raise InputError(
                f"{variant.name} is fitted on {missing[0]}; name that method before it"
            )
        method.check(run.questions(task))
        ready.add(variant.name)
    return methods


def _check_names(folder: Path, methods: dict[str, Methods]) -> None:
    """Raise InputError for a folder that cannot be written, and for a file's name that is too
    long."""
    files.check_folder(folder)
    for task in methods:
        for variant, _ in methods[task]:
            files.samples_path(folder, task, variant.name)


def _try_each(lm: LanguageModel, run: Run, methods: dict[str, Methods]) -> None:
    """Ask each method its first question. Raises InputError for one that cannot answer it."""
    for task in methods:
        for variant, method in methods[task]:
            if isinstance(method, Method):
                first = run.questions(task)[:1]
                next(ask_each(Asker(lm, for_trial(variant, method), variant), first))


# Answers


def _askers(lm: LanguageModel, run: Run, methods: Methods) -> dict[str, Asker]:
    """The methods that ask the model, by the names of their variants. Samples keep their groups for
    methods that are fitted on them."""
    fitted = [method for _, method in methods if isinstance(method, Fitted)]
    needed = {need for method in fitted for need in method.needs}
    return {
        variant.name: Asker(
            lm, method, variant, run.keep_groups or variant.name in needed, run.tokens_per_pass
        )
        for variant, method in methods
        if isinstance(method, Method)
    }


def _key(task: str, asker: Asker) -> str:
    """The name of a task and variant in `Whole`."""
    return f"{task}/{asker.variant.name}"


def _whole(lm: LanguageModel, run: Run, methods: dict[str, Methods]) -> Whole:
    """What all variants have to do, if there are several. The work is in tokens: a question of a
    variant has about as many as the first one."""
    works: dict[str, float] = {}
    total = 0.0
    for task in methods:
        questions = run.questions(task)
        seed, first = questions[0]
        for asker in _askers(lm, run, methods[task]).values():
            plan: Plan = asker.method.plan(lm, first, seed)
            tokens = plan.tokens(lm.counted_as(asker.variant.engine)) + asker.method.max_new_tokens
            works[_key(task, asker)] = tokens
            total += tokens * len(questions)
    return Whole(f"all {len(works)} runs", works, total if len(works) > 1 else 0.0)


def _answer(
    lm: LanguageModel,
    run: Run,
    task: str,
    methods: Methods,
    folder: Path,
    whole: Whole,
) -> tuple[dict[str, Answers], dict[str, str]]:
    """The answers of each variant of a task, by its name; and the fits that did not converge, each
    with the reason."""
    answers: dict[str, Answers] = {}
    left_out: dict[str, str] = {}
    askers = _askers(lm, run, methods)
    for variant, method in methods:
        name, path = variant.name, files.samples_path(folder, task, variant.name)
        if isinstance(method, Method):
            answers[name] = _ask(askers[name], run, task, path, whole)
            continue
        try:
            if missing := [need for need in method.needs if need in left_out]:
                raise NotConverged(f"it is fitted on {missing[0]}, which is left out")
            samples: list[Sample] = method.fit({n: answers[n].samples for n in method.needs})
        except NotConverged as error:
            left_out[name] = one_line(error)
            say(f"{task}: {name} is left out of the results: {left_out[name]}")
            path.unlink(missing_ok=True)  # of an earlier fit
            continue
        keys = [(seed, question.id) for seed, question in run.questions(task)]
        if [sample.key for sample in samples] != keys:
            raise InputError(f"{name}: fit must give a sample for each question, in order")
        write_file(path, "".join(sample.line() for sample in samples))
        answers[name] = Answers(samples)
    return answers, left_out


def _ask(asker: Asker, run: Run, task: str, path: Path, whole: Whole) -> Answers:
    """The answers of a method that asks the model: those in its file, and those that it lacks,
    which are appended one by one."""
    questions = run.questions(task)
    samples = _read_answered(path, questions)
    pending = [(seed, q) for seed, q in questions if (seed, q.id) not in samples]
    title = printable(shorten(path.stem.removeprefix("samples-"), 60))
    work = whole.works[_key(task, asker)]
    whole.total -= work * len(samples)
    written_tokens = 0  # by a method that lets the model write

    def beside() -> str:
        return f"{written_tokens:,} tokens written" if written_tokens else ""

    def ask_pending() -> None:
        nonlocal written_tokens
        new = ask_each(asker, pending)
        shown = progress(pending, title, "question", beside, whole, work)
        with closing(new), closing(shown) as asking:
            for _, question in asking:
                try:
                    sample = next(new)
                except InputError as error:
                    remedy = "answers so far are kept, the same command with --resume goes on"
                    raise InputError(f"{shorten(str(error), 250)} ({remedy})") from error
                count = (sample.notes or {}).get("new_tokens")
                if type(count) is int:
                    written_tokens += count
                sample = _with_text(sample, question) if run.keep_text else _without_text(sample)
                files.append_lines(path, [sample.line()])
                samples[sample.key] = sample

    peak = None
    if pending:
        peak = peak_bytes(ask_pending, asker.lm.decoder.device)[0]
    return Answers([samples[seed, question.id] for seed, question in questions], peak)


def _read_answered(path: Path, questions: Seeded) -> dict[tuple[int, str], Sample]:
    """The samples of a file, by seed and id. Raises InputError for one of another question."""
    files.drop_torn_line(path)
    samples = {sample.key: sample for sample in files.read_samples(path)}
    hashes = {(seed, question.id): question.content_hash for seed, question in questions}
    if any(hashes.get(key) != sample.question_hash for key, sample in samples.items()):
        raise InputError(f"{path}: holds answers to other questions; choose another folder")
    return samples


def _with_text(sample: Sample, question: Question) -> Sample:
    """The sample with the question's text, for people."""
    right = None if question.answer is None else question.choices[question.answer]
    text = {"question": question.text, "choices": list(question.choices), "answer": right}
    return replace(sample, text=text)


def _without_text(sample: Sample) -> Sample:
    """The sample without the text that the model wrote about a question."""
    if not sample.notes:
        return sample
    notes = {name: value for name, value in sample.notes.items() if name != "reasoning"}
    return replace(sample, notes=notes)


# Results


def _measure_all(
    run: Run, description: dict[str, Any], answers: dict[str, dict[str, Answers]], folder: Path
) -> dict[str, Any]:
    """All of results.json but its config, each part by task. A task without answers is left out.
    Also writes the predictions of every task."""
    path = folder / "results.json"
    peaks, damage = files.peaks_so_far(path)
    if damage:
        say(f"{path}: damaged ({damage}), so it is written again from the samples")
    for task, by_variant in answers.items():
        of_seeds = [one for tasks in run.tasks.values() for one in tasks if one.name == task]
        places = {id: place for one in of_seeds for id, place in one.places.items()}
        # Of secret questions nothing is kept, and any column may tell of them.
        rows = {id: row for one in of_seeds if run.keep_text for id, row in one.rows.items()}
        samples = {name: one.samples for name, one in by_variant.items()}
        table = predictions_csv(samples, places, rows)
        write_file(folder / f"predictions-{task}.csv", table)
    measured = {
        task: _measure(run, task, answers[task], peaks)
        for task in answers
        if description["tasks"][task].get("answered", True)
    }
    keys = ("results", "differences", "timing", *run.extra)
    return {key: {task: measured[task][key] for task in measured} for key in keys}


def _measure(
    run: Run, task: str, answers: dict[str, Answers], peaks: dict[tuple[str, str], int]
) -> dict[str, Any]:
    """The numbers of a task, by their keys in results.json. `peaks`: of memory (bytes), by task
    and variant, from an earlier part of this run."""
    variants = [variant for variant in run.variants[task] if variant.name in answers]
    samples = {variant.name: answers[variant.name].samples for variant in variants}
    results = {}
    for variant in variants:
        facts = {"method": variant.method, "settings": variant.settings, "engine": variant.engine}
        results[variant.name] = facts | summarise(samples[variant.name])
    names = list(samples)
    differences = []
    for number, a in enumerate(names):
        # Each with those before it; of many variants, with Self-Ensemble or the first alone.
        one = "self-ensemble" if "self-ensemble" in names else names[0]
        for b in names[:number] if len(names) <= 8 else [one] * (a != one):
            differences.append({"a": a, "b": b, **difference(samples[a], samples[b])})
    timing = {}
    for name in names:
        seconds = [sample.seconds for sample in samples[name] if sample.seconds is not None]
        timing[name] = {
            "seconds_per_question": sum(seconds) / len(seconds) if seconds else None,
            # A run that has nothing left to ask keeps the peak that was measured before.
            "peak_bytes": answers[name].peak_bytes or peaks.get((task, name)),
        }
    extra = {key: measure(samples) for key, measure in run.extra.items()}
    return {"results": results, "differences": differences, "timing": timing, **extra}


def _prompts(lm: LanguageModel, run: Run, task: str, methods: Methods) -> dict[str, Any]:
    """The templates, and the label tokens of the first method that asks the model."""
    method = next(method for _, method in methods if isinstance(method, Method))
    seed, question = run.questions(task)[0]
    plan: Plan = method.plan(lm, question, seed)
    # A method may read the probability of every token: then it has no labels.
    labels = (p.label_ids for p in plan.prompts if len(p.label_ids) <= len(LABELS))
    ids = max(labels, key=len, default=[])
    preset = method.preset.of(lm.config.model_type)
    templates = {"group": asdict(preset.template), "standard": asdict(preset.standard_template)}
    return {"label_ids": dict(zip(LABELS, ids, strict=False)), "templates": templates}


def _regularisation(methods: dict[str, Methods]) -> dict[str, str]:
    """What each fitted method minimises, in words, where that matters."""
    texts = {}
    for of_task in methods.values():
        for variant, method in of_task:
            if isinstance(method, Fitted) and method.regularisation:
                texts[variant.name] = method.regularisation
    return texts
