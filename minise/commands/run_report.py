"""`minise report`: read finished runs, and write and print what they show. `minise eval` ends with
`show`, too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from minise.commands.report import ReportRequest
from minise.commands.written import listed, near
from minise.errors import InputError, one_line, printable
from minise.evaluation.samples import DAMAGE, check_folder
from minise.files import json_text, write_file
from minise.report.across import across
from minise.report.disagreements import disagreements
from minise.report.figures import draw
from minise.report.markdown import as_markdown
from minise.report.results import Results, read_results, tell_apart
from minise.report.tables import render


def run(request: ReportRequest) -> int:
    runs = []
    for folder, label in zip(request.folders, request.labels, strict=True):
        runs.append(_read(folder, label))
    if request.differences is not None:
        _show_differences(request, runs, *request.differences)
    else:
        show(runs, request.output, request.json, across(request.folders, runs))
    return 0


def _read(folder: Path, label: str | None) -> Results:
    """The results of a run. The file may hold anything, so they are rendered once."""
    results = read_results(folder, label)
    try:
        as_text(tell_apart([results]))
    except DAMAGE as error:
        problem = f"{folder / 'results.json'}: damaged ({type(error).__name__}: {one_line(error)})"
        raise InputError(f"{problem}; minise eval --resume writes it again") from None
    return results


def _show_differences(
    request: ReportRequest, runs: Sequence[Results], first: str, second: str
) -> None:
    tasks = disagreements(list(zip(request.folders, runs, strict=True)), first, second)
    check_folder(request.output)
    path = request.output / "differences.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "\n".join(task.as_markdown() for task in tasks))
    if request.json:
        print(json_text([{"task": task.task, "questions": task.rows()} for task in tasks]))
        return
    print("\n\n".join(task.as_text() for task in tasks))
    print(f"\nwritten: {near(path)}")


def show(
    runs: Sequence[Results],
    folder: Path,
    as_json: bool,
    differences: Sequence[dict[str, Any]] = (),
) -> None:
    """Write report.md, and print the tables, or the results as JSON. Then draw the figures: what
    goes wrong there loses nothing. `differences`: between the runs."""
    raw = [run.raw for run in runs]
    runs = tell_apart(runs)
    tables = render(runs, differences)
    check_folder(folder)
    report = folder / "report.md"
    folder.mkdir(parents=True, exist_ok=True)
    write_file(report, tables)
    if as_json:
        print(json_text(raw[0] if len(raw) == 1 else {"runs": raw, "differences": differences}))
    else:
        print(as_text(runs, differences))
    figures = draw(runs, folder)
    pictures = "".join(
        f"\n![{as_markdown(path.stem)}]({quote(os.fsencode(path.name))})\n" for path in figures
    )
    write_file(report, tables + printable(pictures))
    if not as_json:
        print(f"written in {near(folder)}:")
        print(listed("  tables:", [report.name]))
        if figures:
            print(listed("  figures:", [path.name for path in figures]))
        if predictions := sorted(path.name for path in folder.glob("predictions-*.csv")):
            print(listed("  predictions, for a spreadsheet:", predictions))


def as_text(runs: Sequence[Results], differences: Sequence[dict[str, Any]] = ()) -> str:
    """The tables, as wide as the terminal, and how fast each task went."""
    lines = [render(runs, differences, shutil.get_terminal_size((100, 24)).columns)]
    for run in runs:
        rates: dict[str, list[str]] = {}
        for cell in run.cells:
            if seconds := cell.timing["seconds_per_question"]:
                rates.setdefault(cell.task, []).append(f"{cell.name} {1 / seconds:.3g}")
        for task, each in rates.items():
            lines.append(f"{task}: questions a second: {', '.join(each)}")
    return printable("\n".join(lines))
