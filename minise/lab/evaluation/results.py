"""The lines of a run's folder, joined where they are of shards, and all numbers made from them."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.commands.result import few_on_labels
from minise.errors import InputError, Unsuited, one_line, quote
from minise.lab.evaluation import folder as files
from minise.lab.evaluation.facts import RunFacts, TaskFacts, at, read_facts
from minise.lab.evaluation.metrics import difference, holm, measure
from minise.lab.evaluation.request import hash_of
from minise.lab.evaluation.rows import LeftOut, key_of, left_out_words, line_of, read_rows
from minise.lab.files import write_file
from minise.lab.methods.fitted import Fitted, in_order
from minise.lab.methods.registry import make_method
from minise.lab.methods.saved import SavedAnswer

ByMethod = dict[str, list[SavedAnswer]]  # the answers to one task


@dataclass(frozen=True)
class Pair:
    """The two sides of a difference, a minus b, and what they are called."""

    task: str
    a: str
    b: str
    answers_a: list[SavedAnswer]
    answers_b: list[SavedAnswer]


@dataclass(frozen=True)
class Results:
    """A finished run: what run.json says, the answers by task, why methods are left out, and the
    content of results.json."""

    folder: Path
    facts: RunFacts
    answers: dict[str, ByMethod]
    left_out: list[str]
    content: dict[str, Any]


def read_run(folder: Path, named: Collection[str] = ()) -> Results:
    """Join, fit and measure a run, and write results.json. named: the user's own methods that may
    be fitted: their files are run, and run.json alone must not choose what is run. Raises
    InputError for a folder that holds no run, a part of another run, or not all answers."""
    facts = read_joined_facts(folder)
    left_out: list[str] = []
    answers: dict[str, ByMethod] = {}
    for task, task_facts in facts.tasks.items():
        done, reasons = read_task(folder, task, task_facts, facts.shards)
        left_out += reasons
        left_out += fit(folder, done, task, task_facts, named)
        if not done:
            raise InputError(f"{left_out[0]}; name another method")
        answers[task] = {name: done[name] for name in task_facts.methods if name in done}
        for name, of_method in answers[task].items():
            if facts.shards > 1 or task_facts.methods[name].fitted:
                lines = [json.dumps(line_of(answer)) + "\n" for answer in of_method]
                write_file(files.samples_path(folder, task, name), "".join(lines))

    results: dict[str, dict[str, Any]] = {}
    for task, by_method in answers.items():
        results[task] = {}
        for name, of_method in by_method.items():
            numbers: dict[str, Any] = {"template": facts.tasks[task].methods[name].template}
            numbers.update(measure(of_method))
            results[task][name] = numbers
    content = {
        "config": {**facts.as_json(), "left_out": left_out},
        "results": results,
        "differences": within_run(answers),
        "warnings": warnings(results),
    }
    write_file(folder / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    return Results(folder, facts, answers, left_out, content)


def warnings(results: dict[str, dict[str, Any]]) -> list[str]:
    """What a user should know before he trusts the answers. None depends on right answers."""
    found = []
    for task, by_method in results.items():
        for method, numbers in by_method.items():
            warning = few_on_labels(numbers["on_labels"])
            if warning:
                found.append(f"{task}, {method}: {warning}")
        n, with_answers = numbers["n"], numbers.get("scored", numbers["n"])
        if with_answers < n:
            found.append(f"{task}: scored are {with_answers:,} of {n:,}; the others have no answer")
    return found


def read_joined_facts(folder: Path) -> RunFacts:
    """What the run is. The shards must agree on it."""
    paths = files.run_files(folder)
    if not paths:
        raise InputError(f"{folder}: holds no run; give a folder of minise eval")
    first, *others = paths
    facts = read_facts(first)
    for path in others:
        differs = files.difference_of(read_facts(path), facts)
        if differs:
            raise InputError(f"{path}: is no part of the run in {first.name}: {differs}; move it")
    files.write_facts(folder / "run.json", facts)
    return facts


def read_task(folder: Path, task: str, facts: TaskFacts, shards: int) -> tuple[ByMethod, list[str]]:
    """The answers of the methods that asked the model, and why some are left out."""
    done: ByMethod = {}
    left_out = []
    for name, method in facts.methods.items():
        if method.fitted:
            continue
        paths = [files.samples_path(folder, task, name, (i, shards)) for i in range(shards)]
        reasons = []
        for path in paths:
            reason = files.read_reason(files.reason_path(path))
            if reason is not None:
                reasons.append(reason)
        if reasons:
            left_out.append(reasons[0])
        else:
            rows = read_shards(paths, facts)
            answers = [row for row in rows if isinstance(row, SavedAnswer)]
            missing = left_out_words(rows)
            if missing:
                left_out.append(f"{task}, {name}: {missing}")
            if answers:
                done[name] = answers
    return done, left_out


def read_shards(paths: Sequence[Path], facts: TaskFacts) -> list[SavedAnswer | LeftOut]:
    """The answers of one method to one task, or why there is none, in the order of the questions,
    which were dealt by striding."""
    n = len(paths)
    parts = []
    for i, path in enumerate(paths):
        part = read_rows(path)
        wanted = len(range(i, facts.questions, n))
        if len(part) != wanted:
            shard = f" --shard {i}/{n}" if n > 1 else ""
            lack = f"{len(part)} of {wanted} answers"
            raise InputError(f"{path}: has {lack}; finish it by the same minise eval{shard}")
        parts.append(part)
    answers = []
    for number in range(facts.questions):
        part = parts[number % n]
        answers.append(part[number // n])
    if hash_of([key_of(answer) for answer in answers]) != facts.hash:
        reason = "has answers to other questions than run.json names; ask them in another folder"
        raise InputError(f"{paths[0]}: {reason}")
    return answers


def fit(
    folder: Path, done: ByMethod, task: str, facts: TaskFacts, named: Collection[str]
) -> list[str]:
    """Add the answers of the fitted methods, those that need one last; why some are left out."""
    methods: dict[str, Fitted] = {}
    for name, method_facts in facts.methods.items():
        if method_facts.fitted:
            with at(f"{folder / 'run.json'}, task {quote(task)}, method {quote(name)}"):
                text = method_facts.text
                if ":" in text and text not in named:
                    remedy = f"if you trust it, name it too: minise report --method {quote(text)}"
                    raise InputError(f"it is code that is no part of minise; {remedy}")
                _, method = make_method(text, facts.options)
                if not isinstance(method, Fitted):
                    raise InputError(f"{quote(method_facts.text)} is not fitted; put another back")
            methods[name] = method

    left_out = []
    for name in in_order(methods):
        needs = methods[name].needs
        try:
            missing = [need for need in needs if need not in done]
            if missing:
                raise Unsuited(f"it needs {missing[0]}, which is left out")
            done[name] = methods[name].fit(common({need: done[need] for need in needs}))
        except Unsuited as error:
            left_out.append(f"{files.LEFT_OUT}{task}-{name}: {one_line(error)}")
    return left_out


def common(answers: ByMethod) -> ByMethod:
    """The answers to questions that no method leaves out."""
    keys = [{key_of(answer) for answer in of_method} for of_method in answers.values()]
    shared = set.intersection(*keys)
    found = {}
    for name, of_method in answers.items():
        found[name] = [answer for answer in of_method if key_of(answer) in shared]
    return found


def within_run(answers: dict[str, ByMethod]) -> dict[str, list[dict[str, Any]]]:
    """The differences within a run, by their task: each method minus the first."""
    pairs = []
    for task, by_method in answers.items():
        first, *others = by_method
        for name in others:
            pairs.append(Pair(task, name, first, by_method[name], by_method[first]))
    found: dict[str, list[dict[str, Any]]] = {task: [] for task in answers}
    for numbers in differences(pairs):
        found[numbers["task"]].append(numbers)
    return found


def between(labels: Sequence[str], runs: Sequence[Results]) -> list[dict[str, Any]]:
    """Each later run against the first: methods of one name on the same questions."""
    pairs = []
    for label, run in zip(labels[1:], runs[1:], strict=True):
        for task, by_method in run.answers.items():
            of_first = runs[0].answers.get(task, {})
            for name, answers in by_method.items():
                a = f"{label}: {name}"
                b = f"{labels[0]}: {name}"
                pairs.append(Pair(task, a, b, answers, of_first.get(name, [])))
    return differences(pairs)


def differences(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Those of pairs that share questions, with p values corrected over all of them."""
    found = []
    for pair in pairs:
        numbers = difference(pair.answers_a, pair.answers_b)
        if numbers is not None:
            found.append({"task": pair.task, "a": pair.a, "b": pair.b, **numbers})
    corrected = holm([numbers["mcnemar_p"] for numbers in found])
    for numbers, p in zip(found, corrected, strict=True):
        numbers["holm_p"] = p
    return found
