"""`minise explain`: write the page, and say what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minise.commands.explain import ExplainRequest
from minise.commands.model import load_model
from minise.commands.options import check_output
from minise.commands.question import check_groups, read_question, self_ensemble
from minise.commands.written import near
from minise.errors import InputError, printable
from minise.explaining.collect import explain_data
from minise.explaining.data import Data
from minise.explaining.page import Page
from minise.files import json_text, write_file
from minise.live.page import live_page, why_not_live
from minise.live.recording import check_scenes, recorded_page


def run(request: ExplainRequest) -> int:
    if request.live:
        return write_live(request)
    question = read_question(request.question)
    check_output(request.output)
    check_output(request.figure, ".svg")
    check_groups(question, request.question)
    method, seed = self_ensemble(request.question), request.question.seed
    lm = load_model(request.model).lm
    page = Page(explain_data(lm, method, question, seed, request.detail))
    write_file(request.output, page.html)
    size = len(page.html.encode())
    if request.figure is not None:
        write_file(request.figure, page.figure)
    report = as_json(request, page.data, size)
    print(json_text(report) if request.json else printable(as_text(report)))
    return 0


def write_live(request: ExplainRequest) -> int:
    """Write the live page, or its scenes with recorded answers where the model does not run in a
    page. Raises InputError as `live_page` and `recorded_page` do, and for options that the page has
    no use for."""
    refuse({"--figure": request.figure is not None, "--detail": request.detail is not None})
    check_output(request.output)
    model = request.model
    if model.quantize is not None:
        why = f"--quantize {model.quantize} packs it in 4 bits"
    else:
        why = why_not_live(model.model, model.revision)
    text = recorded(request, why) if why else live(request)
    write_file(request.output, text)
    size = len(text.encode())
    report = {"model": model.model, "output": str(request.output), "bytes": size}
    told = f"written: {near(request.output)} ({size / 1e6:.2f} MB)"
    told += ", with recorded answers" if why else ""
    print(json_text(report | {"recorded": bool(why)}) if request.json else printable(told))
    return 0


def live(request: ExplainRequest) -> str:
    """The live page. Questions are typed there."""
    asked = request.question
    refuse(
        {
            "--question": asked.text is not None or asked.choices is not None,
            "--file": asked.file is not None,
        }
    )
    return live_page(request.model.model, request.model.revision)


def recorded(request: ExplainRequest, why: str) -> str:
    """The scenes with recorded answers to one question. Their groups are drawn in the page."""
    asked = request.question
    question = read_question(asked)
    refuse(
        {
            "--grouping": asked.grouping not in (None, "random"),
            "--preset": asked.preset != "paper",
            "--no-null-option": asked.null_option is False,
        }
    )
    check_scenes(question, asked.group_size, asked.trials, asked.seed)
    lm = load_model(request.model).lm
    return recorded_page(lm, question, asked.group_size, asked.trials, asked.seed, why)


def refuse(options: dict[str, bool]) -> None:
    """Raise InputError for the first option that is used."""
    for option, is_used in options.items():
        if is_used:
            raise InputError(f"{option} is not for the live page; leave it out, or --live")


def as_json(request: ExplainRequest, data: Data, size: int) -> dict[str, Any]:
    """What was written, and what it shows. `size`: of the page, in bytes."""
    return {
        "model": request.model.model,
        "question": data["question"],
        "output": str(request.output),
        "bytes": size,
        "figure": None if request.figure is None else str(request.figure),
        "detail": data["detail"],
        "tokens": {"dense": len(data["packed"]["texts"]), "tree": len(data["tree"]["texts"])},
        "bitwise": {name: data["bitwise"].get(name) for name in ("dense", "tree")},
        "apart": {name: largest_difference(data, name) for name in ("dense", "tree")},
        "prediction": data["self_ensemble"]["prediction"],
        "left_out": data["left_out"],
    }


def largest_difference(data: Data, engine: str) -> float | None:
    """The largest difference of a hidden state from the separate run's, as a part of its size."""
    differences = data["equality"].get(engine)
    return None if differences is None else float(np.nanmax(differences))


def as_text(report: dict[str, Any]) -> str:
    measured = [value for value in report["apart"].values() if value is not None]
    equal = "equal bit for bit" if measured else "not compared"
    if False in report["bitwise"].values():
        equal = f"hidden states differ by at most {max(measured):.1e} of their size"
    size, tokens = f"{report['bytes'] / 1e6:.2f} MB", report["tokens"]["dense"]
    lines = [f"written: {near(Path(report['output']))} ({size})"]
    if report["figure"]:
        lines.append(f"written: {near(Path(report['figure']))}")
    lines.append(f"{tokens:,} packed tokens, packed and separate {equal}")
    return "\n".join([*lines, *report["left_out"]])
