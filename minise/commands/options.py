"""The options that several commands share, and what the program makes of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from minise.errors import InputError, say, shorten
from minise.grouping import make_groups
from minise.groupings.registry import GROUPINGS, grouping_named
from minise.names import AUTO, DEFAULT_MODEL, DTYPES, FOUR_BIT, PRESETS, SHORT_DTYPES
from minise.question import Question

if TYPE_CHECKING:
    from minise.engines import LanguageModel
    from minise.loading.tensor_parallel import Share
    from minise.method import SelfEnsemble
    from minise.model import Decoder

# What `minise ask` and `minise verify` ask if no question is given. Chosen by a rule: the first of
# the miniature's evaluation questions (8 choices, seed 0) that tiny-llama answers wrongly by
# standard inference and rightly by Self-Ensemble, with the default options. A test finds it again.
QUESTION = Question(
    "What is the capital of Canada?",
    ["New Delhi", "Riyadh", "Ottawa", "Kingston", "Baghdad", "Athens", "Tokyo", "Nairobi"],
    id="miniature-0-3",
    answer=2,
)


def group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The group of this title in the help, made if it is not there."""
    there = [one for one in parser._action_groups if one.title == title]
    return there[0] if there else parser.add_argument_group(title)


def add_model(parser: argparse.ArgumentParser, dtype: str) -> None:
    """--model, by default one that ships, and how it is loaded: in `dtype` where that fits."""
    shipped = (
        "checkpoint folder or hub id, or transformers:FOLDER_OR_ID for any other family, by that "
        f"library (default: {DEFAULT_MODEL}, which ships)"
    )
    add = group(parser, "model").add_argument
    add("--model", default=DEFAULT_MODEL, metavar="PATH_OR_ID", help=shipped)
    parser.set_defaults(preferred=dtype)
    chosen = f"{AUTO}: on a CPU {dtype} where it fits, else as the weights are stored"
    devices = f"{AUTO}, cpu, cuda, cuda:1, ... ({AUTO}, the default: a GPU if there is one)"
    add_weights(parser, AUTO, AUTO, f"{chosen} (the default)", devices)
    packed = "pack the linear layers in 4 bits, as bitsandbytes does (a model stored so needs none)"
    add("--quantize", choices=FOUR_BIT, help=packed)
    twice = "with --quantize: keep the scales in 8 bits"
    add("--double-quant", action="store_true", help=twice)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """--dry-run."""
    plan = "say what would be run, in which dtype and memory, and load no weights"
    group(parser, "output").add_argument("--dry-run", action="store_true", help=plan)


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
    kinds = f"{dtypes}; short names: {', '.join(SHORT_DTYPES)}"
    known = (AUTO, *DTYPES) if dtype == AUTO else DTYPES
    add = group(parser, "model").add_argument
    add("--dtype", type=_dtype, choices=known, default=dtype, help=kinds)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """--threads."""
    threads = (
        "of the CPU (default: 1 for a model of fewer than 20 million parameters, unless "
        "OMP_NUM_THREADS is set; else torch's own choice)"
    )
    group(parser, "model").add_argument("--threads", type=_threads, metavar="N", help=threads)


def add_question(parser: argparse.ArgumentParser) -> None:
    """One question from a file, and how its groups are formed."""
    add = group(parser, "question").add_argument
    form = (
        'one question, as minise eval --task reads it: {"question": "...", "choices": ["...", ...]}'
        "; - for standard input"
    )
    add("--file", type=Path, metavar="FILE", help=form)
    add = group(parser, "method").add_argument
    add("--group-size", type=int, default=4, metavar="M", help="choices in a group (default: 4)")
    add("--trials", type=int, default=20, metavar="N", help="splits into groups (default: 20)")
    add("--seed", type=int, default=0, help="seed of the groups (default: 0)")
    add_prompts(parser)
    gone(parser, "--max-tokens", "it is gone; --grouping exact refuses over 50,000 groups")


def add_prompts(parser: argparse.ArgumentParser, preset: Callable[[str], str] = str) -> None:
    """--grouping, --preset and --no-null-option."""
    add = group(parser, "method").add_argument
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


def _dtype(text: str) -> str:
    return SHORT_DTYPES.get(text, text)


def _threads(text: str) -> int:
    most = os.cpu_count() or 1
    if not (text.isdecimal() and 1 <= int(text[:9]) <= most):
        has = f"this machine has {most}"
        raise argparse.ArgumentTypeError(f"{shorten(text, 80)}: give a number from 1; {has}")
    return int(text)


def add_budget(parser: argparse.ArgumentParser) -> None:
    """--max-new-tokens, for methods that let the model write."""
    add = group(parser, "method").add_argument
    budget = "the most tokens that cot and reasoning may write (default: 256 and 2,048)"
    add("--max-new-tokens", type=_positive, metavar="N", help=budget)


def add_until_decided(parser: argparse.ArgumentParser) -> None:
    """--until-decided and --max-trials."""
    add = group(parser, "method").add_argument
    rounds = (
        "in place of self-ensemble: ask in rounds, until the prediction is that of infinitely many "
        "trials with a probability of at least 1 - ALPHA, such as 0.01"
    )
    add("--until-decided", type=_alpha, metavar="ALPHA", help=rounds)
    most = "of until-decided; what is not decided then is undecided (default: 80)"
    add("--max-trials", type=_positive, metavar="N", help=most)


def until_decided(args: argparse.Namespace, named: list[str]) -> list[str]:
    """The methods, with until-decided in place of self-ensemble if --until-decided is given. Raises
    InputError where neither that nor --max-trials has a method to work on."""
    if args.until_decided is not None:
        named = [
            name.replace("self-ensemble", "until-decided", 1)
            if name.partition("(")[0].strip() == "self-ensemble"
            else name
            for name in named
        ]
    given = {"--until-decided": args.until_decided, "--max-trials": args.max_trials}
    used = [option for option, value in given.items() if value is not None]
    if used and not any(name.partition("(")[0].strip() == "until-decided" for name in named):
        raise InputError(f"{used[0]} is for the method until-decided; name it after --method")
    return named


def _alpha(text: str) -> float:
    try:
        if 0 < (alpha := float(text)) < 1:
            return alpha
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{shorten(text, 80)}: give a number between 0 and 1")


def _positive(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text[:9]) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{shorten(text, 80)}: give a number from 1 to 1,000,000")
    return int(text)


def _grouping(text: str) -> str:
    if text not in GROUPINGS and ":" not in text:
        known = ", ".join(GROUPINGS)
        raise argparse.ArgumentTypeError(
            f"{shorten(text, 80)} is unknown; use one of {known}, or FILE.py:NAME"
        )
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
        from minise.data import question_file  # it imports the hub's client

        return question_file.read_question(args.file)
    if text is None and choices is None:
        return QUESTION
    if text is None:
        raise InputError("--choice without a question; add --question TEXT")
    return Question(text, choices or [])


def check_groups(question: Question, settings: dict[str, Any], seed: int) -> None:
    """Form the groups once, so that what is wrong is said before a large model is loaded."""
    from minise.prompt import check_labels

    K, m = len(question.choices), settings["group_size"]
    check_labels(min(K, m))
    grouping = grouping_named(settings["grouping"] or "random")
    make_groups(K, m, settings.get("trials", 1), seed, question.id, grouping)


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


def load_model(args: argparse.Namespace, share: Share | None = None) -> LanguageModel:
    """The checkpoint of --model, or this process' share of it; with --dry-run without its weights.
    What was chosen for "auto" is said, unless it is the plain case, and stands in `args` then."""
    if args.model.startswith("transformers:"):
        from minise.commands import library as command

        return command.load_model(args, share)
    import torch

    from minise.loading import checkpoint
    from minise.loading.placement import name_of

    quantize, double = getattr(args, "quantize", None), getattr(args, "double_quant", False)
    only_planned = getattr(args, "dry_run", False)
    dtype = args.dtype if args.dtype == AUTO else getattr(torch, args.dtype)
    preferred = getattr(torch, getattr(args, "preferred", "float32"))
    lm, stored, placed = checkpoint.prepare(
        *(args.model, args.revision, dtype, args.device, quantize, double, preferred),
        fetch=not only_planned,
        share=share,
    )
    args.dtype, args.device = name_of(placed.dtype), str(placed.device)
    if only_planned:
        args.placed, args.packed = placed, "as stored" if stored.packed else quantize
        if quantize and double:
            args.packed += "-double"
        return lm
    if placed.why:
        say(f"{args.model}: {args.dtype} on {args.device}, {placed.why}")
    set_threads(args, stored.values)  # first: the numbers of rows depend on it (exact/probe.py)
    where = (placed.dtype, placed.device)
    return replace(lm, decoder=checkpoint.read_weights(stored, *where, quantize, double))


def set_threads(args: argparse.Namespace, values: int) -> None:
    """As many threads as --threads says, or one for a model of few values. results.json records
    them."""
    import torch

    from minise.loading.placement import SMALL

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    elif values < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def values_of(decoder: Decoder) -> int:
    """How many numbers its parameters hold; for `set_threads`."""
    return sum(parameter.numel() for parameter in decoder.parameters())


def self_ensemble(args: argparse.Namespace) -> SelfEnsemble:
    """The method with the settings of `add_question`."""
    from minise.method import SelfEnsemble
    from minise.methods.presets import preset_named

    grouping = None if args.grouping is None else grouping_named(args.grouping)
    preset = preset_named(args.preset)
    return SelfEnsemble(args.group_size, args.trials, grouping, args.null_option, preset)
