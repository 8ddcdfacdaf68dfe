"""Print and draw the tables and figures of finished runs again.

No model is needed. Several folders of one experiment, for example one for each model, make one
table.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from minise.errors import InputError, one_line, printable
from minise.loading.plugin import load_extra

if TYPE_CHECKING:
    from minise.report.results import Results

EXAMPLE = "minise report runs/llama runs/qwen --output-path runs/both"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of `minise eval`")
    where = "default: the first DIR"
    parser.add_argument("-o", "--output-path", type=Path, metavar="DIR", help=where)
    label = "names of the runs in tables and figures, in the order of the folders"
    parser.add_argument("--label", metavar="TEXT[,TEXT...]", help=label)
    parser.add_argument("--json", action="store_true", help="print the results instead")
    two = "list the questions on which two methods disagree, and write them to differences.md"
    parser.add_argument("--differences", nargs=2, metavar=("A", "B"), help=two)


def run(args: argparse.Namespace) -> int:
    need_extras()
    from minise.evaluation.samples import DAMAGE
    from minise.report.across import across
    from minise.report.results import read_results, tell_apart

    labels = args.label.split(",") if args.label else [None] * len(args.folders)
    if len(labels) != len(args.folders):
        reason = f"names {len(labels)} runs, and there are {len(args.folders)}"
        raise InputError(f"--label {reason} folders; give one for each")
    runs = []
    for folder, label in zip(args.folders, labels, strict=True):
        runs.append(read_results(folder, label))
        try:  # the file may hold anything: see whether it can be told
            as_text(tell_apart(runs[-1:]))
        except DAMAGE as error:
            problem = (
                f"{folder / 'results.json'}: damaged ({type(error).__name__}: {one_line(error)})"
            )
            raise InputError(f"{problem}; minise eval --resume writes it again") from None
    folder = args.output_path or args.folders[0]
    if args.differences:
        _show_differences(list(zip(args.folders, runs, strict=True)), folder, args)
    else:
        show(runs, folder, args.json, across(args.folders, runs))
    return 0


def _show_differences(
    runs: Sequence[tuple[Path, Results]], folder: Path, args: argparse.Namespace
) -> None:
    from minise.evaluation.predictions import disagreements
    from minise.evaluation.samples import check_folder

    found = disagreements(runs, *args.differences)
    check_folder(folder)
    path = folder / "differences.md"
    _write(path, "\n".join(one.as_markdown() for one in found))
    if args.json:
        print(json.dumps([{"task": one.task, "questions": one.rows()} for one in found]))
        return
    print("\n\n".join(one.as_text() for one in found))
    print(f"\nwritten: {printable(str(path))}")


def need_extras() -> None:
    """Raise InputError, before any work, if a package that evaluations need is not installed."""
    # Matplotlib tells of its font cache and its folders on stderr.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for module in ("scipy", "sklearn", "matplotlib", "filelock"):
        load_extra(module)


def show(
    runs: Sequence[Results],
    folder: Path,
    as_json: bool,
    across: Sequence[dict[str, Any]] = (),
) -> None:
    """Write report.md, and print the tables, or the results as JSON. Then draw the figures: what
    goes wrong there loses nothing. `across`: differences between the runs."""
    from minise.evaluation.samples import check_folder
    from minise.report.figures import draw
    from minise.report.results import tell_apart
    from minise.report.tables import render

    raw = [run.raw for run in runs]
    runs = tell_apart(runs)
    tables = render(runs, across)
    check_folder(folder)
    report = folder / "report.md"
    _write(report, tables)
    if as_json:
        print(json.dumps(raw[0] if len(raw) == 1 else {"runs": raw, "differences": across}))
    else:
        print(as_text(runs, across))
    figures = draw(runs, folder)
    pictures = "".join(f"\n![{path.stem}]({quote(os.fsencode(path.name))})\n" for path in figures)
    _write(report, tables + printable(pictures))
    if not as_json:
        print(f"written: {printable(', '.join(map(str, [report, *figures])))}")
        if there := sorted(folder.glob("predictions-*.csv")):
            print(f"predictions, for a spreadsheet: {printable(', '.join(map(str, there)))}")


def as_text(runs: Sequence[Results], across: Sequence[dict[str, Any]] = ()) -> str:
    """The tables, as wide as the terminal, and how fast each task went."""
    from minise.report.tables import render

    lines = [render(runs, across, shutil.get_terminal_size((100, 24)).columns)]
    for run in runs:
        rates: dict[str, list[str]] = {}
        for cell in run.cells:
            if seconds := cell.timing["seconds_per_question"]:
                rates.setdefault(cell.task, []).append(f"{cell.name} {1 / seconds:.3g}")
        lines += [f"{task}: questions a second: {', '.join(each)}" for task, each in rates.items()]
    return printable("\n".join(lines))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: could not be written ({error.strerror})") from None
