"""`minise explain`: write the page, and say what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from minise.commands.explain import ExplainRequest
from minise.commands.model import load_model
from minise.commands.options import OTHER_LIBRARY, check_output
from minise.commands.question import check_groups, read_question, self_ensemble
from minise.commands.written import near
from minise.errors import InputError, printable
from minise.explaining.collect import explain_data
from minise.explaining.data import Data
from minise.explaining.page import Page
from minise.files import json_text, write_file
from minise.live.page import live_page


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
    size = write_file(request.output, page.html)
    if request.figure is not None:
        write_file(request.figure, page.figure)
    report = as_json(request, page.data, size)
    print(json_text(report) if request.json else printable(as_text(report)))
    return 0


def write_live(request: ExplainRequest) -> int:
    """Write the live page. Raises InputError as `live_page` does, and for options that it has no
    use for."""
    refused = {
        "--question": request.question.text is not None or request.question.choices is not None,
        "--file": request.question.file is not None,
        "--figure": request.figure is not None,
        "--detail": request.detail is not None,
        "--quantize": request.model.quantize is not None,
        OTHER_LIBRARY: request.model.of_other_library,
    }
    for option, is_used in refused.items():
        if is_used:
            raise InputError(f"{option} is not for the live page; leave it out, or --live")
    check_output(request.output)
    size = write_file(request.output, live_page(request.model.model, request.model.revision))
    model, output = request.model.model, str(request.output)
    report = {"model": model, "output": output, "bytes": size}
    text = f"written: {near(request.output)} ({size / 1e6:.2f} MB)"
    print(json_text(report) if request.json else printable(text))
    return 0


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
