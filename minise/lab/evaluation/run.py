"""A run: methods x questions on one model, with every answer on the disk before the next pass.

A folder holds run.json, which says what the run is, and samples-TASK-METHOD.jsonl with a line for
each answer, in the order of the questions; cuts.jsonl says when and where it ran. A run that was
cut off at any instant goes on where the lines end, with the same bits on the same machine and
number of threads: which questions share a pass follows from all questions, whatever has been
answered (pipeline.py). A shard of a run writes files of its own into the same folder; results.py
joins them.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm

from minise.errors import InputError, QuestionUnsuited, Unsuited, one_line, quote, shorten
from minise.lab.data.asked import Asked
from minise.lab.evaluation.cuts import noted
from minise.lab.evaluation.folder import LEFT_OUT, opened, reason_path, samples_path, texts_path
from minise.lab.evaluation.lines import append_line, open_lines
from minise.lab.evaluation.peak import Measured
from minise.lab.evaluation.pipeline import answers
from minise.lab.evaluation.price import for_a_server, left, model_for
from minise.lab.evaluation.request import Run, describe, needed_by
from minise.lab.evaluation.rows import (
    Keep,
    beginning,
    key_of,
    key_of_question,
    left_out,
    left_out_words,
    line_of,
    read_rows,
    saved,
)
from minise.lab.evaluation.texts import KeptTexts
from minise.lab.files import read_file, write_file
from minise.lab.methods.writes_first import Texts, WritesFirst
from minise.lm import LocalModel
from minise.method import Method, ask
from minise.prompts import LanguageModel


def evaluate(lm: LanguageModel, run: Run, folder: Path, tell: Callable[[str], None]) -> None:
    """Ask what this folder has no answer to. `tell` is given lines for the user. Raises InputError
    for a folder of another run, and for a question that a method cannot be asked."""
    i, n = run.shard
    with opened(folder, describe(lm, run), run.shard), noted(folder, run.shard):
        if not isinstance(lm, LocalModel):
            price = for_a_server(lm, run, folder)
            if price:
                tell(price)
        try_own(lm, run, folder)
        for task in run.tasks:
            methods = task.methods
            needed = needed_by(methods)
            for variant in task.variants:
                method = methods[variant.name]
                if not isinstance(method, Method):
                    continue  # it is fitted later, on the answers of others
                keep = replace(run.keep, groups=run.keep.groups or variant.name in needed)
                path = samples_path(folder, task.name, variant.name, run.shard)
                reason = reason_path(path)
                if read_file(reason) is not None:
                    reason.unlink()
                texts = None
                if isinstance(method, WritesFirst):
                    texts = KeptTexts(texts_path(folder, task.name, variant.name, run.shard))
                try:
                    model = model_for(lm, variant, run.peak)
                    append_answers(path, model, method, task.questions[i::n], keep, texts)
                except Unsuited as error:
                    why = f"{LEFT_OUT}{one_line(error)}"
                    write_file(reason, why)
                    tell(why)
                missing = left_out_words(read_rows(path))
                if missing:
                    tell(f"{task.name}, {variant.name}: {missing}")


def try_own(lm: LanguageModel, run: Run, folder: Path) -> None:
    """Ask the first question of each task by each method of the user's own that has no answer yet,
    so that a mistake in it shows before a long run of the others. Raises whatever it raises."""
    first = {task.name: task.questions[run.shard[0]] for task in run.tasks}
    for one in left(lm, run, folder):
        if ":" in one.text and one.questions[0] == first[one.task]:
            with suppress(Unsuited):  # said when it is its turn
                for answered in answers(one.model, one.method, one.questions[:1]):
                    json.dumps(line_of(saved(answered, run.keep, one.model.engine)))


def append_answers(
    path: Path,
    lm: LanguageModel,
    method: Method,
    questions: Sequence[Asked],
    keep: Keep,
    texts: Texts | None,
) -> None:
    """Write a line for each question that has none. Each is on the disk before the next pass."""
    title = shorten(path.stem.removeprefix("samples-"), 60)
    kept = read_rows(path)
    done = len(kept)
    asked_before = [key_of(answer) for answer in kept]
    if asked_before != [key_of_question(asked) for asked in questions[:done]]:
        raise InputError(f"{path}: holds answers to other questions; choose another folder")
    if done == len(questions):
        return
    bar = tqdm(total=len(questions), initial=done, desc=title, disable=None)
    with open_lines(path, beginning(questions[done])) as file, bar:
        try:
            if isinstance(lm, Measured):
                # A first pass also reads the weights from their files.
                ask(lm, method, questions[done].question)
            while done < len(questions):
                try:
                    for answered in answers(lm, method, questions, done, texts):
                        peak_bytes = lm.peak_bytes if isinstance(lm, Measured) else None
                        answer = saved(answered, keep, lm.engine, peak_bytes)
                        append_line(file, line_of(answer))
                        done += 1
                        bar.update()
                except QuestionUnsuited as error:  # of the next question
                    append_line(file, asdict(left_out(questions[done], one_line(error))))
                    done += 1
                    bar.update()
        except InputError as error:  # also Unsuited
            where = f"question {quote(questions[done].question.id, 40)}"
            raise type(error)(f"{title}, {where}: {error} (answers so far are kept)") from error
