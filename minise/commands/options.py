"""The options that several commands share, and what the program makes of them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from minise.errors import InputError
from minise.grouping import GROUPINGS
from minise.names import DEFAULT_MODEL, DTYPES, PRESETS
from minise.question import Question

if TYPE_CHECKING:
    from minise.engines import LanguageModel
    from minise.ensemble import SelfEnsemble

# What `minise ask` and `minise verify` ask if no question is given.
QUESTION = Question(
    "What is the capital of Spain?",
    ["Paris", "Lisbon", "Rome", "Berlin", "Athens", "Madrid", "Tokyo", "London"],
    id="built-in",
)


def add_model(parser: argparse.ArgumentParser, dtype: str) -> None:
    """--model, by default one that ships, and how it is loaded."""
    shipped = f"checkpoint folder or hub id (default: {DEFAULT_MODEL}, which ships)"
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="PATH_OR_ID", help=shipped)
    add_weights(parser, dtype)


def add_weights(parser: argparse.ArgumentParser, dtype: str) -> None:
    """How weights are loaded, and --json."""
    add = parser.add_argument
    add("--revision", help="branch, tag or commit of a hub id")
    add("--dtype", choices=DTYPES, default=dtype, help=f"default: {dtype}")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    add("--json", action="store_true", help="print one JSON object instead")


def add_question(parser: argparse.ArgumentParser) -> None:
    """One question from a file, and how its groups are formed."""
    add = parser.add_argument
    form = '{"question": "...", "choices": ["...", ...]}; optional: "id", "answer" (an index)'
    add("--file", type=Path, metavar="Q.json", help=form)
    add("--group-size", type=int, default=4, metavar="M", help="choices in a group (default: 4)")
    add("--trials", type=int, default=20, metavar="N", help="splits into groups (default: 20)")
    add("--seed", type=int, default=0, help="seed of the groups (default: 0)")
    add_prompts(parser)
    gone(parser, "--max-tokens", "it is gone; --grouping exact refuses over 50,000 groups")


def add_prompts(parser: argparse.ArgumentParser, preset: Callable[[str], str] = str) -> None:
    """--grouping, --preset and --no-null-option."""
    add = parser.add_argument
    groupings = (
        "random: random partitions; balanced: partitions that are chosen together, more precise at "
        "the same cost; independent: draws, as in the released code; exact: every ordered group; "
        "or a function of your own, FILE.py:NAME (default: the preset's)"
    )
    add("--grouping", type=_grouping, metavar="NAME", help=groupings)
    both = "paper: as written; authors-code: as its released code computes (default: paper)"
    add("--preset", type=preset, choices=PRESETS, default="paper", help=both)
    alone = 'leave "None of the above" out of the groups'
    add("--no-null-option", dest="null_option", action="store_const", const=False, help=alone)


def _grouping(text: str) -> str:
    if text not in GROUPINGS and ":" not in text:
        known = ", ".join(GROUPINGS)
        raise argparse.ArgumentTypeError(f"{text} is unknown; use one of {known}, or FILE.py:NAME")
    return text


def gone(parser: argparse.ArgumentParser, option: str, hint: str) -> None:
    """Refuse an option of an earlier version with one line that says what to write instead."""

    def refuse(_: str) -> NoReturn:
        raise argparse.ArgumentTypeError(hint)

    parser.add_argument(option, type=refuse, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def read_question(args: argparse.Namespace) -> Question:
    """The question of --file, or of --question and --choice, or the built-in one."""
    text, choices = getattr(args, "question", None), getattr(args, "choice", None)
    if args.file is not None:
        if text is not None or choices is not None:
            raise InputError("--file and --question or --choice exclude each other; give one")
        from minise import question_file  # it imports the hub's client

        return question_file.read_question(args.file)
    if text is None and choices is None:
        return QUESTION
    if text is None:
        raise InputError("--choice without a question; add --question TEXT")
    return Question(text, choices or [])


def load_model(args: argparse.Namespace) -> LanguageModel:
    """The checkpoint of --model."""
    import torch

    from minise.checkpoint import load

    dtype = getattr(torch, args.dtype)
    return load(args.model, revision=args.revision, dtype=dtype, device=args.device)


def self_ensemble(args: argparse.Namespace) -> SelfEnsemble:
    """The method with the settings of `add_question`."""
    from minise.ensemble import SelfEnsemble

    return SelfEnsemble(args.group_size, args.trials, args.grouping, args.null_option, args.preset)
