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
from minise.evaluation.asking import Asker, Seeded, ask_each, ask_together, for_trial
from minise.evaluation.meter import peak_bytes
from minise.evaluation.metrics import difference, summarise
from minise.evaluation.predictions import predictions_csv
from minise.evaluation.progress import progress
from minise.loading.identity import code_identity, machine, sha256
from minise.loading.parallel import ALONE, World
from minise.method import Method, Plan
from minise.methods.build import build
from minise.methods.fitted import Fitted, NotConverged
from minise.methods.registry import Variant
from minise.methods.sample import Sample
from minise.prompt import LABELS
from minise.question import Question
from minise.report.results import peaks_so_far

Made = list[
    tuple[Variant, Method | Fitted]
]  # variants and their methods, in the order in which they run
Asked = tuple[list[Sample], int | None]  # in the order of the questions; the peak of memory (bytes)


@dataclass(frozen=True)
class Run:
    """What to do. The tasks of every seed have the same names; some draw by the seed."""

    tasks: dict[int, list[Task]]  # by seed
    variants: dict[str, list[Variant]]  # by task
    identity: dict[str, Any]  # what else makes it another run: model, dtype, limit, ...
    keep_groups: bool = False  # in all samples, not only in those that a fitted method needs
    keep_text: bool = True  # of questions, in samples and predictions; it makes no other run
    tokens_per_pass: int = 0  # of the questions that are run together; it makes no other run
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
            facts: dict[str, Any] = {"dataset": task.dataset, "choices": task.choices}
            if any(question.answer is None for question in task.questions):
                facts["answered"] = False
            tasks[task.name] = {"questions": len(asked), "hash": digest, **facts}
        every = [v for variants in self.variants.values() for v in variants]
        named = {text for v in every for text in (v.method, str(v.settings.get("grouping")))}
        own = sorted(text.rpartition(":")[0] for text in named if ".py:" in text)
        return {
            **self.identity,
            "seeds": list(self.tasks),
            "tasks": tasks,
            "variants": {t: [asdict(v) for v in vs] for t, vs in self.variants.items()},
            "code_sha256": code_identity() | {file: sha256(Path(file)) for file in own},
            "keep_groups": self.keep_groups,
        }


def evaluate(
    lm: LanguageModel, run: Run, folder: Path, resume: bool = False, world: World = ALONE
) -> dict[str, Any]:
    """Ask what is not asked yet, then fit and measure. Returns what results.json holds.

    The other processes of `world` have to call `assist` with the same run meanwhile.

    Raises InputError, before any question is asked, for what a method cannot do and for a folder
    that is not this run's (`open_folder`). Later for a full disk, and for a question that cannot be
    answered, which is named. A new folder is not created if a method cannot answer its first
    question, for example because the model's numbers overflow. A fit that does not converge is left
    out of the results, which say so under "left_out".
    """
    began = time.time()
    made = {task: _make_methods(run, task) for task in run.variants}
    description, here = run.describe(), machine()
    for other, told in enumerate(world.gather("run", ""), 1):
        mine = json.loads(json.dumps(description))  # as JSON brings it back
        if difference := files.first_difference(json.loads(told), mine):
            raise InputError(
                f"process {other} would run something else than process 0 ({difference}); give "
                "all of them the same files"
            )
    files.check_folder(folder)
    path, is_new = folder / "results.json", not (folder / "run.json").exists()
    for task in made:
        for variant, _ in made[task]:
            files.samples_path(folder, task, variant.name)  # refuses a name that is too long
    if world.width > 1:
        world.send("new", "yes" if is_new else "")
    if is_new:
        _try_each(lm, run, made)
    with files.open_folder(folder, description, resume, here) as moved:
        if moved:
            say(f"{moved}: the last digits may be rounded otherwise, but the run goes on")
        asked, left_out = {}, {}
        for task in made:
            asked[task], left_out[task] = _run_task(lm, run, task, made[task], folder, world)
        before, damage = peaks_so_far(path)
        if damage:
            say(f"{path}: damaged ({damage}), so left out; it is written anew from the samples")
        for task, each in asked.items():
            table = predictions_csv({name: samples for name, (samples, _) in each.items()})
            files.replace_file(folder / f"predictions-{task}.csv", table)
        known = [task for task in made if description["tasks"][task].get("answered", True)]
        found = {task: _measure(run, task, asked[task], before) for task in known}
        methods = {variant.name: method for each in made.values() for variant, method in each}
        config = {
            **description,
            **run.about,
            "prompts": {task: _prompts(lm, run, task, made[task]) for task in made},
            "regularisation": {
                n: m.regularisation
                for n, m in methods.items()
                if isinstance(m, Fitted) and m.regularisation
            },
            "left_out": left_out,
            **here,
            "wall_seconds": round(time.time() - began, 1),
        }
        keys = ("results", "differences", "timing", *run.extra)
        measured = {key: {task: found[task][key] for task in found} for key in keys}
        text = json.dumps({"config": config, **measured}, indent=1, ensure_ascii=False)
        files.replace_file(path, text + "\n")
        return json.loads(text)


def assist(lm: LanguageModel, run: Run, world: World) -> None:
    """Ask a part of the questions of process 0, which calls `evaluate`. Writes no file."""
    made = {task: _make_methods(run, task) for task in run.variants}
    world.gather("run", json.dumps(run.describe()))
    if world.rank < world.width and world.receive("new"):
        _try_each(lm, run, made)
    for task in made:
        for asker in _askers(lm, run, made[task]).values():
            key = f"{task}/{asker.variant.name}"
            for _ in ask_together(asker, world, key, run.questions(task)):
                pass


def _try_each(lm: LanguageModel, run: Run, made: dict[str, Made]) -> None:
    """Ask each method its first question. Raises InputError for one that cannot answer it."""
    for task in made:
        for variant, method in made[task]:
            if isinstance(method, Method):
                first = run.questions(task)[:1]
                next(ask_each(Asker(lm, for_trial(variant, method), variant), first))


def _askers(lm: LanguageModel, run: Run, made: Made) -> dict[str, Asker]:
    """The methods that ask the model, by the names of their variants. Samples keep their groups for
    methods that are fitted on them."""
    fitted = [method for _, method in made if isinstance(method, Fitted)]
    needed = {need for method in fitted for need in method.needs}
    return {
        variant.name: Asker(
            lm, method, variant, run.keep_groups or variant.name in needed, run.tokens_per_pass
        )
        for variant, method in made
        if isinstance(method, Method)
    }


def _make_methods(run: Run, task: str) -> Made:
    """The variants of a task with their methods, the fitted ones last. Raises InputError for what a
    method needs and does not find, and for what it cannot do."""
    made = [(variant, build(variant)) for variant in run.variants[task]]
    made.sort(key=lambda one: isinstance(one[1], Fitted))
    ready: set[str] = set()
    for variant, method in made:
        if variant.name in ready:
            raise InputError(f"{task}: two methods have one name; give each its own")
        needs = method.needs if isinstance(method, Fitted) else ()
        if missing := [need for need in needs if need not in ready]:
            raise InputError(
                f"{variant.name} is fitted on {missing[0]}; name that method before it"
            )
        method.check(run.questions(task))
        ready.add(variant.name)
    return made


def _run_task(
    lm: LanguageModel, run: Run, task: str, made: Made, folder: Path, world: World
) -> tuple[dict[str, Asked], dict[str, str]]:
    """What each variant answers, by its name; and the fits that did not converge, each with the
    reason."""
    asked: dict[str, Asked] = {}
    left_out: dict[str, str] = {}
    askers, questions = _askers(lm, run, made), run.questions(task)
    for variant, method in made:
        name, path = variant.name, files.samples_path(folder, task, variant.name)
        if isinstance(method, Method):
            asked[name] = _ask_all(askers[name], run, task, path, world)
            continue
        try:
            if missing := [need for need in method.needs if need in left_out]:
                raise NotConverged(f"it is fitted on {missing[0]}, which is left out")
            fitted: list[Sample] = method.fit({need: asked[need][0] for need in method.needs})
        except NotConverged as error:
            left_out[name] = one_line(error)
            say(f"{task}: {name} is left out of the results: {left_out[name]}")
            path.unlink(missing_ok=True)  # of an earlier fit
            continue
        if [sample.key for sample in fitted] != [
            (seed, question.id) for seed, question in questions
        ]:
            raise InputError(f"{name}: fit must give a sample for each question, in order")
        files.replace_file(path, "".join(sample.line() for sample in fitted))
        asked[name] = fitted, None
    return asked, left_out


def _ask_all(asker: Asker, run: Run, task: str, path: Path, world: World) -> Asked:
    """The samples of a method that asks the model: those of its file, and those that it lacks."""
    questions = run.questions(task)
    files.drop_torn_line(path)
    found = {sample.key: sample for sample in files.read_samples(path)}
    hashes = {(seed, question.id): question.content_hash for seed, question in questions}
    if any(hashes.get(key) != sample.question_hash for key, sample in found.items()):
        raise InputError(f"{path}: holds answers to other questions; choose another folder")
    places = [i for i, (seed, question) in enumerate(questions) if (seed, question.id) not in found]
    pending = [questions[i] for i in places]
    what = printable(shorten(path.stem.removeprefix("samples-"), 60))

    written = 0  # tokens, by a method that writes

    def told() -> str:
        return f"{written:,} tokens written" if written else ""

    def ask_pending() -> None:
        nonlocal written
        samples = ask_together(asker, world, f"{task}/{asker.variant.name}", questions, places)
        with closing(samples), closing(progress(pending, what, "question", told)) as asking:
            for _, question in asking:
                try:
                    sample = next(samples)
                except InputError as error:
                    remedy = "answers so far are kept, the same command with --resume goes on"
                    raise InputError(f"{shorten(str(error), 250)} ({remedy})") from error
                if type(wrote := (sample.notes or {}).get("new_tokens")) is int:
                    written += wrote
                if run.keep_text:
                    sample = replace(sample, text=_text(question))
                elif sample.notes:
                    kept = {k: v for k, v in sample.notes.items() if k != "reasoning"}
                    sample = replace(sample, notes=kept)
                files.append_lines(path, [sample.line()])
                found[sample.key] = sample

    peak = peak_bytes(ask_pending, asker.lm.decoder.device)[0] if pending else None
    return [found[key] for key in hashes], peak


def _text(question: Question) -> dict[str, Any]:
    right = None if question.answer is None else question.choices[question.answer]
    return {"question": question.text, "choices": list(question.choices), "answer": right}


def _measure(
    run: Run, task: str, asked: dict[str, Asked], before: dict[tuple[str, str], Any]
) -> dict[str, Any]:
    """The numbers of a task, by their keys in results.json. `before`: the peaks so far."""
    variants = [variant for variant in run.variants[task] if variant.name in asked]
    samples = {variant.name: asked[variant.name][0] for variant in variants}
    names = list(samples)
    # Each with those before it; of many variants, with the first alone.
    others = {b: names[: i if len(names) <= 8 else min(i, 1)] for i, b in enumerate(names)}
    timing = {}
    for name in names:
        seconds = [sample.seconds for sample in samples[name] if sample.seconds is not None]
        mean = sum(seconds) / len(seconds) if seconds else None
        # A run that has nothing left to ask keeps the peak that was measured before.
        peak = asked[name][1] or before.get((task, name))
        timing[name] = {"seconds_per_question": mean, "peak_bytes": peak}
    return {
        "results": {
            v.name: {"method": v.method, "settings": v.settings, "engine": v.engine}
            | summarise(samples[v.name])
            for v in variants
        },
        "differences": [
            {"a": a, "b": b, **difference(samples[a], samples[b])} for a in names for b in others[a]
        ],
        "timing": timing,
        **{key: measure(samples) for key, measure in run.extra.items()},
    }


def _prompts(lm: LanguageModel, run: Run, task: str, made: Made) -> dict[str, Any]:
    """The templates, and the label tokens of the first method that asks the model."""
    method = next(method for _, method in made if isinstance(method, Method))
    seed, question = run.questions(task)[0]
    plan: Plan = method.plan(lm, question, seed)
    # A method may read the probability of every token: then it has no labels.
    known = (p.label_ids for p in plan.prompts if len(p.label_ids) <= len(LABELS))
    ids = max(known, key=len, default=[])
    preset = method.preset.of(lm.config.model_type)
    templates = {"group": asdict(preset.template), "standard": asdict(preset.standard_template)}
    return {"label_ids": dict(zip(LABELS, ids, strict=False)), "templates": templates}
