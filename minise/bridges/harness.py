"""Tasks of lm-evaluation-harness as questions of ours, and results in its JSON layout.

    python -m minise.bridges.harness DIR       write the results of a finished run in that layout

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
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from math import sqrt
from pathlib import Path
from typing import Any

from minise.data.tasks import Task
from minise.errors import InputError, one_line, printable, quote, say
from minise.evaluation.samples import DAMAGE
from minise.files import json_text, make_folder, write_file
from minise.loading.plugin import load_extra
from minise.prompt import LABELS
from minise.question import Question
from minise.report.results import model_name, read_results

PREFIX = "lm-eval"  # of a task's name, and the extra that has the harness
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


def _read_name(text: str) -> tuple[str, int | None, Path | None]:
    """The parts of "lm-eval:NAME(num_fewshot=N,include_path=DIR)". Without a number of examples,
    there are as many as the task says; without a folder, the harness's own tasks are searched."""
    match = re.fullmatch(r"(.*?)(?:\(([^()]*)\))?", text.partition(":")[2], re.DOTALL)
    assert match is not None  # the first group takes any text
    shots, folder = None, None
    for setting in match[2].split(",") if match[2] else ():
        name, _, value = (part.strip() for part in setting.partition("="))
        if name == "num_fewshot" and re.fullmatch("[0-9]{1,4}", value):
            shots = int(value)
        elif name == "include_path" and value:
            folder = Path(value)
        else:
            form = f"{PREFIX}:NAME(num_fewshot=N,include_path=DIR), N from 0"
            raise InputError(f"{quote(text)}: {quote(setting)} sets nothing; write {form}")
    return match[1], shots, folder


def load_task(text: str, skip_bad_rows: bool = False) -> Task:
    """The task "lm-eval:NAME", of the harness or of one's own; or that of a YAML file. Settings can
    follow in parentheses: num_fewshot, the number of examples before each question, and
    include_path, a folder of YAML files.

    A YAML file may name functions, which are run: use only files that you trust. Raises InputError
    where the extra is missing, for a task that the harness cannot load or that is no list of
    questions with one answer each, and for such documents unless `skip_bad_rows`.
    """
    name, shots, folder = _read_name(text)
    load_extra("lm_eval", PREFIX)
    manager = load_extra("lm_eval.tasks", PREFIX).TaskManager
    with _quiet():
        try:
            tasks = _find(manager, name, folder)
        except Exception as error:  # whatever a YAML file and its functions lead to
            raise InputError(f"{text}: the harness cannot load it ({one_line(error)})") from None
        if len(tasks) != 1:
            some = ", ".join(list(tasks)[:5])
            raise InputError(f"{text}: is a group of {len(tasks)} tasks; name one, such as {some}")
        ((title, task),) = tasks.items()
        if shots is None:
            shots = task.config.num_fewshot or 0
        if getattr(task, "multiple_input", 0):
            raise InputError(f"{text}: its choices are texts with one ending; it asks no question")
        task.set_fewshot_seed(SEED)
        questions, bad = _questions(text, task, shots)
    if bad and not (skip_bad_rows and questions):
        other = "leave them out with --skip-bad-rows" if questions else "it is not for minise"
        raise InputError(f"{bad[0]} ({len(bad)} of {len(bad) + len(questions)}; {other})")
    rows = [[q.text, list(q.choices), q.answer] for q in questions.values()]
    source = {"task": name, "version": task.VERSION, "num_fewshot": shots}
    source["sha256"] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    places = {question.id: place for place, question in questions.items()}
    return Task(str(title), "own", list(questions.values()), source, skipped=bad, places=places)


def _find(manager: Any, name: str, folder: Path | None) -> dict[str, Any]:
    """The tasks of a name. To look through the harness's own ones takes seconds, so they come
    last."""
    if name.endswith((".yaml", ".yml")):
        return dict(manager(include_defaults=False).load(name)["tasks"])
    if folder is not None:
        if not folder.is_dir():
            raise InputError(f"{folder}: is no folder")
        of_folder = manager(include_path=str(folder), include_defaults=False)
        if name in of_folder.all_tasks:
            return dict(of_folder.load(name)["tasks"])
    every = manager(include_path=None if folder is None else str(folder))
    if name not in every.all_tasks:
        form = f"'{PREFIX}:{name}(include_path=DIR)'"
        raise InputError(f"no task has this name; give a folder of your own, {form}")
    return dict(every.load(name)["tasks"])


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
    has_choices = task.config.doc_to_choice is not None
    options = [str(option) for option in task.doc_to_choice(doc)] if has_choices else None
    if not isinstance(text, str):
        raise InputError("its text is a number: one of several texts is to be chosen")
    if isinstance(target, (list, tuple)):
        raise InputError(f"it has several answers, {quote(target)}")
    question, choices = _split(text, options, task.OUTPUT_TYPE)
    if options is not None and len(options) != len(choices):
        raise InputError(f"it has {len(options)} choices, but its text lists {len(choices)}")
    answer = _answer(target, options or [], choices)
    context = task.fewshot_context(doc, num_fewshot=shots)
    before = context[: -len(text)] if text and context.endswith(text) else ""
    return Question(before + question.rstrip(), choices, id=identity, answer=answer)


def _split(text: str, options: list[str] | None, output_type: str) -> tuple[str, list[str]]:
    """The question in a text, and its choices: those that the text lists, or the `options` beside
    it. Raises InputError where the text asks no question that they answer."""
    listed = _listed(text)
    are_letters = options is None or all(LETTER.fullmatch(option) for option in options)
    stripped = [option.strip() for option in options or ()]
    if listed is not None and (are_letters or stripped == listed[1]):
        return listed
    if options is None:
        what = f"its output_type is {output_type}"
        raise InputError(f"{what}, and its text lists no choices as lines A. ..., B. ...")
    labels = (rf"(?m)^\s*\(?{re.escape(option)}[.):]" for option in options)
    if are_letters or all(re.search(label, text) for label in labels):
        raise InputError("its choices are labels, but its text lists no lines A. ..., B. ...")
    if cue := CUE.search(text):
        return text[: cue.start()], stripped
    if text.rstrip().endswith(ASKS):
        return text, stripped
    ends = quote(text.rstrip()[-30:])
    raise InputError(f"its choices continue the text, which ends in {ends}: no question, no cue")


def _listed(text: str) -> tuple[str, list[str]] | None:
    """The text before the last list of choices, A, B, ..., and the choices; None without a list."""
    lines = text.split("\n")
    for start in reversed(range(len(lines))):
        first = OPTION.fullmatch(lines[start])
        if first is None or _label(first) != "A":
            continue
        choices = [first[3]]
        for line in lines[start + 1 :]:
            option = OPTION.fullmatch(line)
            if option and _label(option) == LABELS[len(choices) : len(choices) + 1]:
                choices.append(option[3])
            elif line.strip():
                break
        if len(choices) > 1:
            before = "\n".join(lines[:start])
            # A line such as "Options:" belongs to the list.
            head = before.rstrip()
            cue = CUE.search(head)
            return (before if cue is None else head[: cue.start()]), choices
    return None


def _label(option: re.Match[str]) -> str:
    return str(option[1] or option[2]).upper()


def _answer(target: Any, options: list[str], choices: list[str]) -> int:
    """The index of the right choice, as the harness finds it, or by its letter."""
    if isinstance(target, str):
        if target in options:
            return options.index(target)
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
    config, cells = results["config"], results["results"]
    methods = dict.fromkeys(name for task in cells.values() for name in task)
    return {name: _of_method(name, config, cells) for name in methods}


def _of_method(
    method: str, config: dict[str, Any], cells: dict[str, dict[str, dict[str, Any]]]
) -> dict[str, Any]:
    tasks = {task: by_method[method] for task, by_method in cells.items() if method in by_method}
    sources = {task: config.get("sources", {}).get(task, {}) for task in tasks}
    model = f"{model_name(config['model'])}/{method}"
    return {
        "results": {task: _metrics(task, cell) for task, cell in tasks.items()},
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


def _metrics(task: str, cell: dict[str, Any]) -> dict[str, Any]:
    accuracy, n = cell["accuracy"], cell["n"]
    # The sample standard deviation over the root of n, as the harness has it.
    error: float | str = sqrt(accuracy * (1 - accuracy) / (n - 1)) if n > 1 else "N/A"
    return {
        "name": task,
        "alias": task,
        "sample_len": n,
        "acc,none": accuracy,
        "acc_stderr,none": error,
        "nll,none": cell["nll"],
        "nll_stderr,none": "N/A",
        "brier_score,none": cell["brier"],
        "brier_score_stderr,none": "N/A",
    }


def convert(folder: Path) -> list[Path]:
    """Write the results of a finished run in the harness's layout, a file for each method, where
    the harness would: lm-eval/MODEL/results_DATE.json in the run's folder. Returns their paths.
    Raises InputError for a folder without sound results, or with none of a task that has answers.
    """
    try:
        reports = as_harness(read_results(folder).raw)
    except DAMAGE as error:
        reason = f"damaged ({type(error).__name__}: {one_line(error)})"
        raise InputError(f"{folder / 'results.json'}: {reason}") from None
    if not reports:
        raise InputError(f"{folder}: none of its tasks has answers, so there are no results")
    date = datetime.now().isoformat().replace(":", "-")
    paths = []
    for report in reports.values():
        path = folder / "lm-eval" / report["model_name_sanitized"] / f"results_{date}.json"
        make_folder(path.parent)
        write_file(path, json_text(report, indent=2, ensure_ascii=False) + "\n")
        paths.append(path)
    return paths


def main(arguments: Sequence[str]) -> int:
    """`python -m minise.bridges.harness DIR`. Returns the exit status."""
    try:
        if len(arguments) != 1 or arguments[0].startswith("-"):
            raise InputError("give one folder of minise eval: python -m minise.bridges.harness DIR")
        for path in convert(Path(arguments[0])):
            print(f"written: {printable(str(path))}")
    except InputError as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"{error.filename}: could not be written ({error.strerror})")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
