"""List the tasks, methods, experiments and models that the other commands take, a line for each."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

EXAMPLE = "minise tasks --json"


@dataclass(frozen=True)
class TasksRequest:
    json: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def request(args: argparse.Namespace) -> TasksRequest:
    return TasksRequest(args.json)
