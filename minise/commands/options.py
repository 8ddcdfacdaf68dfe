"""The options that several commands share, and the requests that are made from them.

A request is frozen: nothing is written to it, and what is chosen later (a dtype for "auto") is
returned by the function that chooses it. This file imports neither torch nor numpy.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

from minise.data.rows import FIELDS, FORMS, is_choice
from minise.errors import InputError, quote, shorten
from minise.groupings.registry import GROUPINGS
from minise.loading.names import AUTO, DEFAULT_MODEL, DTYPES, FOUR_BIT, SHORT_DTYPES
from minise.loading.plugin import load_extra
from minise.methods.registry import PRESET_NAMES
from minise.question import Question

# What `minise ask` and `minise verify` ask if no question is given. Chosen by a rule: the first of
# the miniature's evaluation questions (8 choices, seed 0) that tiny-llama answers wrongly by
# standard inference and rightly by Self-Ensemble, with the default options. A test finds it again.
QUESTION = Question(
    "What is the capital of Canada?",
    ["New Delhi", "Riyadh", "Ottawa", "Kingston", "Baghdad", "Athens", "Tokyo", "Nairobi"],
    id="miniature-0-3",
    answer=2,
)
Request = TypeVar("Request")  # the dataclass of a command


@dataclass(frozen=True)
class ModelRequest:
    """Which model to load, and how.

    dtype, device: a name, or "auto". preferred: the dtype that "auto" takes where it fits.
    """

    model: str
    revision: str | None = None
    dtype: str = AUTO
    device: str = AUTO
    threads: int | None = None
    quantize: str | None = None
    preferred: str = "float32"


@dataclass(frozen=True)
class QuestionRequest:
    """One question, from a file or as text with choices or the built-in one; and its groups.
    columns, answers: see `add_columns`."""

    file: Path | None
    columns: Mapping[str, str]
    answers: str | None
    text: str | None
    choices: tuple[str, ...] | None
    group_size: int
    trials: int
    seed: int
    grouping: str | None
    null_option: bool | None
    preset: str


def filled(kind: type[Request], args: argparse.Namespace, **more: Any) -> Request:
    """A request of this class. Each field is in `more`, or the option of the same name."""
    names = [name for name in signature(kind).parameters if name not in more]
    return kind(**{name: getattr(args, name) for name in names}, **more)


def group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The group of this title in the help. It is created if the parser has none."""
    for existing in parser._action_groups:
        if existing.title == title:
            return existing
    return parser.add_argument_group(title)


def add_model(parser: argparse.ArgumentParser, dtype: str = "float32") -> None:
    """The options of a ModelRequest. --model is by default one that ships, and is loaded in `dtype`
    where that fits."""
    parser.set_defaults(preferred=dtype)
    model = f"checkpoint folder or hub id (default: {DEFAULT_MODEL}, which ships)"
    add = group(parser, "model").add_argument
    add("--model", default=DEFAULT_MODEL, metavar="PATH_OR_ID", help=model)
    dtypes = f"{AUTO} (the default): on a CPU {dtype}, else as the weights are stored"
    devices = f"{AUTO} (the default): a GPU if there is one; or cpu, cuda, cuda:1, ..."
    add_weights(parser, AUTO, AUTO, dtypes, devices)
    packed = "pack the linear layers in 4 bits, as bitsandbytes does"
    add("--quantize", choices=FOUR_BIT, help=packed)


def add_weights(
    parser: argparse.ArgumentParser,
    dtype: str = "float32",
    device: str = "cpu",
    dtypes: str = "default: float32",
    devices: str = "cpu, cuda, cuda:1, ... (default: cpu)",
) -> None:
    """How weights are loaded and run, and --json."""
    add = group(parser, "model").add_argument
    add("--revision", help="branch, tag or commit of a hub id")
    add_dtype(parser, dtype, dtypes)
    add("--device", default=device, help=devices)
    add_threads(parser)
    add = group(parser, "output").add_argument
    add("--json", action="store_true", help="print one JSON object instead")


def add_dtype(
    parser: argparse.ArgumentParser, dtype: str = "float32", dtypes: str = "default: float32"
) -> None:
    """--dtype, by default `dtype`."""
    text = f"{dtypes}; short names: {', '.join(SHORT_DTYPES)}"
    names = (AUTO, *DTYPES) if dtype == AUTO else DTYPES
    add = group(parser, "model").add_argument
    add("--dtype", type=_dtype, choices=names, default=dtype, help=text)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """--threads."""
    threads = (
        "threads of the CPU (default: 1 for a model of fewer than 20 million parameters, unless "
        "OMP_NUM_THREADS is set; else torch's own choice)"
    )
    group(parser, "model").add_argument("--threads", type=_threads, metavar="N", help=threads)


def add_question_text(parser: argparse.ArgumentParser) -> None:
    """--question and --choice."""
    add = group(parser, "question").add_argument
    add("--question", metavar="TEXT", help="the question; choices by --choice")
    add("--choice", metavar="TEXT", action="append", help="a choice; give one --choice for each")


def add_question(parser: argparse.ArgumentParser) -> None:
    """One question from a file, and how its groups are formed."""
    parser.set_defaults(question=None, choice=None)  # of a command without add_question_text
    add = group(parser, "question").add_argument
    form = (
        'one question, as minise eval --task reads it: {"question": "...", "choices": ["...", ...]}'
        "; - for standard input"
    )
    add("--file", type=Path, metavar="FILE", help=form)
    add_columns(parser)
    add = group(parser, "method").add_argument
    add("--group-size", type=int, default=4, metavar="M", help="choices in a group (default: 4)")
    add("--trials", type=int, default=20, metavar="N", help="splits into groups (default: 20)")
    add("--seed", type=int, default=0, help="seed of the groups (default: 0)")
    add_prompts(parser)


def add_columns(parser: argparse.ArgumentParser) -> None:
    """--columns and --answers: how to read a file of the user's own questions."""
    add = group(parser, "question").add_argument
    names = "how your file calls its columns: answer='Correct Answer',id=Nr.,question=...,A=..."
    add(
        "--columns",
        type=_columns,
        action=_Together,
        default={},
        metavar="NAME=COLUMN[,...]",
        help=names,
    )
    forms = "the form of its answers; an index is counted from 0 or 1 (default: found out)"
    add("--answers", choices=FORMS, help=forms)


def question_request(args: argparse.Namespace) -> QuestionRequest:
    """The options of `add_question` and `add_question_text`."""
    choices = None if args.choice is None else tuple(args.choice)
    return filled(QuestionRequest, args, text=args.question, choices=choices)


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """--grouping, --preset and --no-null-option."""
    add = group(parser, "method").add_argument
    groupings = (
        "random: random partitions; independent: each group drawn by itself, as in the released "
        "code; exact: every ordered group; or a function of your own, FILE.py:NAME (default: the "
        "preset's)"
    )
    add("--grouping", type=_grouping, metavar="NAME", help=groupings)
    both = "paper: as it is written (default); authors-code: as the authors' released code computes"
    add("--preset", choices=PRESET_NAMES, default="paper", help=both)
    alone = 'leave "None of the above" out of the groups'
    add("--no-null-option", dest="null_option", action="store_const", const=False, help=alone)


def check_output(path: Path | None, *endings: str) -> None:
    """Raise InputError, before a model is loaded, where a file cannot be written, and for a picture
    whose name has none of the endings."""
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{path}: a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: no such folder to write to")
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"{path}: its ending is no picture; end it in {' or '.join(endings)}")


def need_evaluation() -> None:
    """Raise InputError, before any work, if a package that evaluations need is not installed."""
    # Matplotlib writes about its font cache and its folders to stderr when it is imported.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for module in ("scipy", "sklearn", "matplotlib", "filelock"):
        load_extra(module)


def _dtype(text: str) -> str:
    return SHORT_DTYPES.get(text, text)


def _threads(text: str) -> int:
    most = os.cpu_count() or 1
    if not (text.isdecimal() and 1 <= int(text[:9]) <= most):
        has = f"this machine has {most}"
        raise argparse.ArgumentTypeError(f"{shorten(text, 80)}: give a number from 1; {has}")
    return int(text)


class _Together(argparse.Action):
    """An option that may be written several times: what each says is joined."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), **values})


def check_tolerance(tolerance: float | None) -> None:
    """Raise InputError for a --tolerance below 0 or NaN."""
    if tolerance is not None and not tolerance >= 0:
        raise InputError(f"--tolerance {tolerance} is below 0 or not a number")


def _columns(text: str) -> dict[str, str]:
    """Columns by their names here. A comma that no NAME= follows belongs to the column."""
    columns: dict[str, str] = {}
    for part in re.split(r",(?=[^,=]*=)", text):
        name, _, column = (piece.strip() for piece in part.partition("="))
        if re.fullmatch("'.+'|\".+\"", column):  # quotes in quotes, which a shell keeps
            column = column[1:-1]
        is_known = name.lower() in FIELDS or is_choice(name)
        if not (is_known and column) or name.lower() in map(str.lower, columns):
            known = f"{', '.join(FIELDS)}, A, B, ..., each once: answer='Correct Answer',id=Nr."
            raise argparse.ArgumentTypeError(f"{quote(part)}: give NAME=COLUMN; names are {known}")
        columns[name.lower() if name.lower() in FIELDS else name] = column
    return columns


def _grouping(text: str) -> str:
    if text not in GROUPINGS and ":" not in text:
        names = ", ".join(GROUPINGS)
        raise argparse.ArgumentTypeError(
            f"{shorten(text, 80)} is unknown; use one of {names}, or FILE.py:NAME"
        )
    return text
