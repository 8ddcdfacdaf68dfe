"""Print and draw the tables and figures of finished runs again.

No model is needed. Several folders of one experiment, for example one for each model, make one
table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minise.errors import InputError
from minise.plugin import load_extra

if TYPE_CHECKING:
    from minise.evaluation.results import Results

EXAMPLE = "minise report runs/llama runs/qwen --output-path runs/both"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of `minise eval`")
    parser.add_argument("--output-path", type=Path, metavar="DIR", help="default: the first DIR")
    parser.add_argument("--json", action="store_true", help="print the results instead")


def run(args: argparse.Namespace) -> int:
    need_extras()
    from minise.evaluation.results import read_results

    runs = [read_results(folder) for folder in args.folders]
    show(runs, args.output_path or args.folders[0], args.json)
    return 0


def need_extras() -> None:
    """Raise InputError, before any work, if a package that evaluations need is not installed."""
    for module in ("scipy", "sklearn", "matplotlib", "filelock"):
        load_extra(module)


def show(runs: Sequence[Results], folder: Path, as_json: bool) -> None:
    """Write report.md and the figures, and print the tables, or the results as JSON."""
    from minise.evaluation.figures import draw
    from minise.evaluation.tables import render

    text = render(runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = draw(runs, folder)
        pictures = "".join(f"\n![{path.stem}]({path.name})\n" for path in figures)
        (folder / "report.md").write_text(text + pictures, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: could not be written ({error.strerror})") from None
    if as_json:
        raw = [run.raw for run in runs]
        print(json.dumps(raw[0] if len(raw) == 1 else raw))
        return
    print(text)
    for run in runs:
        rates: dict[str, list[str]] = {}
        for cell in run.cells:
            if seconds := cell.timing["seconds_per_question"]:
                rates.setdefault(cell.task, []).append(f"{cell.name} {1 / seconds:.3g}")
        for task, each in rates.items():
            print(f"{task}: questions a second: {', '.join(each)}")
    print(f"written: {', '.join(map(str, [folder / 'report.md', *figures]))}")
