"""Print and draw the tables and figures of finished runs again.

No model is needed. Several folders of one experiment, for example one for each model, make one
table.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from minise.commands import options
from minise.errors import InputError

EXAMPLE = "minise report runs/llama runs/qwen --output-path runs/both"


@dataclass(frozen=True)
class ReportRequest:
    """The folders of the runs, with a label or None for each, and where the report is written.
    differences: two methods whose answers are compared question by question."""

    folders: tuple[Path, ...]
    labels: tuple[str | None, ...]
    output: Path
    differences: tuple[str, str] | None
    json: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="run of `minise eval`")
    where = "default: the first DIR"
    parser.add_argument("-o", "--output-path", type=Path, metavar="DIR", help=where)
    label = "names of the runs in tables and figures, in the order of the folders"
    parser.add_argument("--label", metavar="TEXT[,TEXT...]", help=label)
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead")
    two = "list the questions on which two methods disagree, and write them to differences.md"
    parser.add_argument("--differences", nargs=2, metavar=("A", "B"), help=two)


def request(args: argparse.Namespace) -> ReportRequest:
    options.need_evaluation()
    folders = tuple(args.folders)
    labels = tuple(args.label.split(",")) if args.label else (None,) * len(folders)
    if len(labels) != len(folders):
        reason = f"names {len(labels)} runs, and there are {len(folders)}"
        raise InputError(f"--label {reason} folders; give one for each")
    return ReportRequest(
        folders=folders,
        labels=labels,
        output=args.output_path or folders[0],
        differences=None if args.differences is None else tuple(args.differences),
        json=args.json,
    )
