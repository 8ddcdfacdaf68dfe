"""Tasks of lm-evaluation-harness as questions of ours, and results in its JSON layout.

A task is read by the harness's own functions: the text of a document, its choices, its answer, and
examples before it. Ours are questions whose choices are listed with letters. So a document has to
hold a question and choices that answer it: listed in its text ("A. wren") or given beside a text
that ends in a question mark or a cue ("Answer:"). What does not is refused with the reason.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from math import sqrt
from pathlib import Path
from typing import Any

from minise.data.tasks import Task
from minise.errors import InputError, one_line, printable, quote
from minise.evaluation.samples import replace_file
from minise.loading.plugin import load_extra
from minise.prompt import LABELS
from minise.question import Question
from minise.report.results import model_name

PREFIX = "lm-eval:"
SEED = 1234  # of the examples, as the harness has it by default
OPTION = re.compile(r"[ \t]*(?:\(([A-Za-z])\)|([A-Za-z])[.:)])[ \t]*(\S.*?)\s*")
LETTER = re.compile(r"\s*\(?([A-Za-z])[).:]?\s*")
# The end of a text after which an answer is to come: one or two words and a colon, as a last line
# or after a sentence.
CUE = re.compile(
    r"(?:\n\s*|(?<=[.?!\uff1f\u3002])\s+)[^\s:\uff1a]+(?: [^\s:\uff1a]+)?[:\uff1a]\s*$"
)
HIGHER = {"acc": True, "nll": False, "brier_score": False}  # is better
ASKS = ("?", "\uff1f", "\u061f", "\u037e")


def load_task(
    name: str,
    include_path: Path | None = None,
    num_fewshot: int | None = None,
    skip_bad_rows: bool = False,
) -> Task:
    """The task "lm-eval:NAME", of the harness or of the folder `include_path`; or of a YAML file.

    `num_fewshot`: how many examples stand before a question; None: as many as the task says. The
    file may name functions of its own, which are run: give only files that you trust. Raises
    InputError where the extra is missing, for a task that the harness cannot load or that is no
    list of questions with one answer each, and for such documents unless `skip_bad_rows`.
    """
    extra = "lm-eval"
    load_extra("lm_eval", extra)
    tasks = load_extra("lm_eval.tasks", extra)
    wanted = name.removeprefix(PREFIX)
    if num_fewshot is not None and num_fewshot < 0:
        raise InputError(f"--num-fewshot {num_fewshot} is below 0")
    with _quiet():
        try:
            found = _find(tasks.TaskManager, wanted, include_path)
        except Exception as error:  # whatever a YAML file and its functions lead to
            raise InputError(f"{name}: the harness cannot load it ({one_line(error)})") from None
        if len(found) != 1:
            some = ", ".join(list(found)[:5])
            raise InputError(f"{name}: is a group of {len(found)} tasks; name one, such as {some}")
        ((called, task),) = found.items()
        shots = num_fewshot if num_fewshot is not None else task.config.num_fewshot or 0
        if getattr(task, "multiple_input", 0):
            raise InputError(f"{name}: its choices are texts with one ending; it asks no question")
        task.set_fewshot_seed(SEED)
        questions, bad = _questions(name, task, shots)
    if bad and not (skip_bad_rows and questions):
        other = "leave them out with --skip-bad-rows" if questions else "it is not for minise"
        raise InputError(f"{bad[0]} ({len(bad)} of {len(bad) + len(questions)}; {other})")
    asked = [[q.text, list(q.choices), q.answer] for q in questions.values()]
    source = {"task": wanted, "version": task.VERSION, "num_fewshot": shots}
    source["sha256"] = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    places = {question.id: place for place, question in questions.items()}
    kept = list(questions.values())
    return Task(str(called), "own", kept, source, skipped=bad, places=places)


def _find(manager: Any, wanted: str, include_path: Path | None) -> dict[str, Any]:
    """The tasks of a name. To look through the harness's own ones takes seconds, so they come
    last."""
    if wanted.endswith((".yaml", ".yml")):
        return dict(manager(include_defaults=False).load(wanted)["tasks"])
    if include_path is not None:
        if not include_path.is_dir():
            raise InputError(f"{include_path}: is no folder")
        mine = manager(include_path=str(include_path), include_defaults=False)
        if wanted in mine.all_tasks:
            return dict(mine.load(wanted)["tasks"])
    every = manager(include_path=None if include_path is None else str(include_path))
    if wanted not in every.all_tasks:
        raise InputError("no task has this name; give a folder of your own by --include-path")
    return dict(every.load(wanted)["tasks"])


def _questions(name: str, task: Any, shots: int) -> tuple[dict[str, Question], list[str]]:
    """The questions by their places, and the documents that are none, each with the reason."""
    questions: dict[str, Question] = {}
    bad: list[str] = []
    for index, doc in enumerate(task.eval_docs):
        place = f"{name}, document {index}"
        try:
            questions[place] = _question(task, doc, shots, str(index))
        except InputError as error:
            bad.append(printable(f"{place}: {error}"))
        except Exception as error:  # of a template or a function of the task
            bad.append(printable(f"{place}: {type(error).__name__}: {one_line(error)}"))
    return questions, bad


def _question(task: Any, doc: Any, shots: int, identity: str) -> Question:
    """A document as a question. Raises InputError with the reason where it is none."""
    text, target = task.doc_to_text(doc), task.doc_to_target(doc)
    given = task.doc_to_choice(doc) if task.config.doc_to_choice is not None else None
    if not isinstance(text, str):
        raise InputError("its text is a number: one of several texts is to be chosen")
    if isinstance(target, (list, tuple)):
        raise InputError(f"it has several answers, {quote(target)}")
    listed = _listed(text)
    letters = given is None or all(LETTER.fullmatch(str(one)) for one in given)
    if listed is not None and (letters or [str(x).strip() for x in given or ()] == listed[1]):
        question, choices = listed
    elif given is None:
        what = f"its output_type is {task.OUTPUT_TYPE}"
        raise InputError(f"{what}, and its text lists no choices as lines A. ..., B. ...")
    elif letters or all(re.search(rf"(?m)^\s*\(?{re.escape(str(x))}[.):]", text) for x in given):
        raise InputError("its choices are labels, but its text lists no lines A. ..., B. ...")
    elif (cue := CUE.search(text)) or text.rstrip().endswith(ASKS):
        question, choices = text[: cue.start()] if cue else text, [str(x).strip() for x in given]
    else:
        ends = quote(text.rstrip()[-30:])
        raise InputError(
            f"its choices continue the text, which ends in {ends}: no question, no cue"
        )
    if given is not None and len(given) != len(choices):
        raise InputError(f"it has {len(given)} choices, but its text lists {len(choices)}")
    answer = _answer(target, given, choices)
    context = task.fewshot_context(doc, num_fewshot=shots)
    before = context[: -len(text)] if text and context.endswith(text) else ""
    return Question(before + question.rstrip(), choices, id=identity, answer=answer)


def _listed(text: str) -> tuple[str, list[str]] | None:
    """The text before the last list of choices, A, B, ..., and the choices; None without a list."""
    lines = text.split("\n")
    for start in reversed(range(len(lines))):
        first = OPTION.fullmatch(lines[start])
        if first is None or _label(first) != "A":
            continue
        choices = [first[3]]
        for line in lines[start + 1 :]:
            found = OPTION.fullmatch(line)
            if found and _label(found) == LABELS[len(choices) : len(choices) + 1]:
                choices.append(found[3])
            elif line.strip():
                break
        if len(choices) > 1:
            before = "\n".join(lines[:start])
            # A line such as "Options:" belongs to the list.
            head = before.rstrip()
            return (head[: cue.start()] if (cue := CUE.search(head)) else before), choices
    return None


def _label(option: re.Match[str]) -> str:
    return str(option[1] or option[2]).upper()


def _answer(target: Any, given: Sequence[Any] | None, choices: list[str]) -> int:
    """The index of the right choice, as the harness finds it, or by its letter."""
    if isinstance(target, str):
        texts = [str(one) for one in given or ()]
        if target in texts:
            return texts.index(target)
        letter = LETTER.fullmatch(target)
        if letter and letter[1].upper() in LABELS[: len(choices)]:
            return LABELS.index(letter[1].upper())
        if target.strip().isdecimal():
            target = int(target)
    if type(target) is int and 0 <= target < len(choices):
        return target
    raise InputError(f"its answer {quote(target)} is none of its {len(choices)} choices")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes and bars of the harness and of datasets."""
    logger, datasets = logging.getLogger("lm_eval"), load_extra("datasets", "lm-eval")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        datasets.enable_progress_bars()


def as_harness(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A run's results.json in the harness's layout, by method: there a file is of one model, here a
    model with a method. acc and its standard error, nll (nats) and brier_score."""
    config, found = results["config"], results["results"]
    methods = dict.fromkeys(name for task in found.values() for name in task)
    return {name: _of_method(name, config, found) for name in methods}


def _of_method(method: str, config: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    tasks = {task: told[method] for task, told in found.items() if method in told}
    sources = {task: config.get("sources", {}).get(task, {}) for task in tasks}
    model = f"{model_name(config['model'])}/{method}"
    return {
        "results": {task: _metrics(task, told) for task, told in tasks.items()},
        "group_subtasks": {task: [] for task in tasks},
        "configs": {
            task: {"task": task, "output_type": "multiple_choice", "metadata": sources[task]}
            for task in tasks
        },
        "versions": {task: source.get("version", "N/A") for task, source in sources.items()},
        "n-shot": {task: source.get("num_fewshot", 0) for task, source in sources.items()},
        "higher_is_better": {task: dict(HIGHER) for task in tasks},
        "n-samples": {t: {"original": x["n"], "effective": x["n"]} for t, x in tasks.items()},
        "config": {
            "model": "minise",
            "model_args": {"pretrained": config["model"], "method": method}
            | next(iter(tasks.values()))["settings"],
            "model_dtype": config["dtype"],
            "device": config["device"],
            "limit": config["limit"],
            "minise_version": config["versions"]["minise"],
        },
        "git_hash": None,
        "date": datetime.now().timestamp(),
        "model_source": "minise",
        "model_name": model,
        "model_name_sanitized": re.sub(r"[\"<>:/\|\\?\*\[\]]+", "__", model),
        "total_evaluation_time_seconds": str(config["wall_seconds"]),
    }


def _metrics(task: str, told: dict[str, Any]) -> dict[str, Any]:
    accuracy, n = told["accuracy"], told["n"]
    # The sample standard deviation over the root of n, as the harness has it.
    error: float | str = sqrt(accuracy * (1 - accuracy) / (n - 1)) if n > 1 else "N/A"
    measured = {"acc,none": accuracy, "acc_stderr,none": error}
    measured |= {"nll,none": told["nll"], "nll_stderr,none": "N/A"}
    measured |= {"brier_score,none": told["brier"], "brier_score_stderr,none": "N/A"}
    return {"name": task, "alias": task, "sample_len": n, **measured}


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write a file for each method, where the harness would: MODEL/results_DATE.json below
    `folder`/lm-eval."""
    date = datetime.now().isoformat().replace(":", "-")
    paths = []
    for told in as_harness(results).values():
        path = folder / "lm-eval" / told["model_name_sanitized"] / f"results_{date}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        paths.append(path)
    return paths
