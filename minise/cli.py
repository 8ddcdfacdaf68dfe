"""The command line.

Exit status: 0 done; 1 a check failed; 2 unusable input: one line on stderr and no traceback.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import torch

from minise import __version__
from minise.bench.measure import WORKLOADS, measure, random_model
from minise.bench.plot import plot_growth
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.checkpoint import DTYPES, LanguageModel, load, usable_device
from minise.ensemble import (
    ENGINES,
    MAX_TOKENS,
    Plan,
    plan_groups,
    plan_standard,
    resolve,
    run,
)
from minise.errors import InputError
from minise.evaluation.command import run_eval, run_report
from minise.evaluation.experiments import EXPERIMENTS
from minise.evaluation.methods import METHODS
from minise.grouping import GROUPINGS
from minise.presets import PRESETS
from minise.prompt import Question
from minise.report import ask_report, ask_text, verify_report, verify_text
from minise.verify import verify

DEFAULT_MODEL = "weights/tiny-llama"
DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
QUESTION = Question(
    "What is the capital of Spain?",
    ["Paris", "Lisbon", "Rome", "Berlin", "Athens", "Madrid", "Tokyo", "London"],
    id="built-in",
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # any question on any terminal
    try:
        args = _parser().parse_args(arguments)
        args.arguments = sys.argv[1:] if arguments is None else arguments
        status: int = args.command(args)
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"minise: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError as error:
        first = str(error).splitlines()[0]
        print(
            f"minise: out of memory ({first}); use a smaller dtype or fewer trials", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has gone, as in `minise ask | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="minise", description="Self-Ensemble for many-choice questions.")
    parser.add_argument("--version", action="version", version=f"minise {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    ask = commands.add_parser(
        "ask",
        help="answer a question",
        description="Answer a question by Self-Ensemble; with no question, a built-in one.",
        epilog='example: minise ask --question "What is the capital of Kenya?" '
        "--choice Nairobi --choice Lagos --choice Accra --choice Cairo --choice Dakar",
    )
    _model_options(ask, dtype="float32")
    _question_options(ask)
    ask.add_argument("--question", metavar="TEXT", help="the question; choices by --choice")
    ask.add_argument("--choice", metavar="TEXT", action="append", help="a choice, once for each")
    ask.add_argument(
        "--method",
        choices=("self-ensemble", "standard"),
        default="self-ensemble",
        help="standard: one prompt with all choices (default: self-ensemble)",
    )
    ask.add_argument(
        "--engine",
        choices=ENGINES,
        default="tree",
        help="how the group prompts are run; the numbers are the same (default: tree)",
    )
    ask.add_argument(
        "--show-groups",
        action="store_true",
        help="print each choice's score and its standard error, and what each group's prompt said",
    )
    ask.set_defaults(command=_ask)

    check = commands.add_parser(
        "verify",
        help="compare the packed pass with separate runs, token by token",
        description="Compare every hidden state of every token of every group prompt between the "
        "packed pass and a separate run of that prompt. Exit status 1 if they differ by more than "
        "the tolerance.",
        epilog="example: minise verify --dtype float64 --trials 5",
    )
    _model_options(check, dtype="float64")
    _question_options(check)
    check.add_argument(
        "--tolerance",
        type=float,
        metavar="X",
        help="the largest absolute difference that passes (default: 1e-10 in float64, else 64 "
        "(float32) or 16 units of rounding at the size of the largest hidden state)",
    )
    check.set_defaults(command=_verify)

    bench = commands.add_parser(
        "bench",
        help="time the engines and installed peers side by side",
        description="Time the engines, and the reference library where it is installed, on the "
        "same prompts and weights in one run; by default on random weights of a small LLaMA shape.",
        epilog="example: minise bench --workload qasc --rounds 5",
    )
    bench.add_argument(
        "--workload", choices=tuple(WORKLOADS), default="qasc", help="which prompts (default: qasc)"
    )
    _weights_options(bench, dtype="float32")
    bench.add_argument("--model", metavar="PATH_OR_ID", help="a checkpoint's weights")
    bench.add_argument(
        "--shape",
        choices=tuple(PUBLISHED),
        metavar="ID",
        help=f"a published checkpoint's shape with random weights: {', '.join(PUBLISHED)}",
    )
    bench.add_argument(
        "--random-weights",
        action="store_true",
        help="draw weights on the device, load none (always so without --model)",
    )
    bench.add_argument(
        "--rounds", type=int, default=5, metavar="R", help="runs of each, in turn (default: 5)"
    )
    bench.add_argument("--seed", type=int, default=0, help="of prompts and groups (default: 0)")
    bench.add_argument("--no-peers", action="store_true", help="leave the reference library out")
    bench.add_argument(
        "--plot", type=Path, metavar="PNG", help="also draw the cost as trials and choices grow"
    )
    bench.set_defaults(command=_bench)
    _eval_parser(commands)
    return parser


def _eval_parser(commands: argparse._SubParsersAction[_Parser]) -> None:
    run = commands.add_parser(
        "eval",
        help="measure methods on data sets",
        description="Run tasks x methods on a model and measure them, or one of the paper's "
        "experiments by its name. Every answer is on disk as soon as it is there; --resume goes on "
        "with a run that was cut off. Needs the extra `eval`.",
        epilog="example: minise eval --task miniature --method standard,self-ensemble "
        "--questions 200 --output-path runs/try",
    )
    run.add_argument(
        "--task",
        metavar="NAME_OR_FILE[,...]",
        help="qasc, truthfulqa, mmlu_pro_biology, miniature, or a .jsonl, .json, .csv or .parquet "
        "file of questions (question, choices, answer: an index; optional: id)",
    )
    run.add_argument(
        "--method", metavar="NAME[,...]", help="; ".join(f"{k}: {v}" for k, v in METHODS.items())
    )
    run.add_argument(
        "--preset",
        choices=tuple(EXPERIMENTS),
        help="an experiment of the paper, in place of --method; its tasks unless --task is given",
    )
    run.add_argument(
        "--output-path", type=Path, required=True, metavar="DIR", help="where the run is kept"
    )
    run.add_argument("--resume", action="store_true", help="go on with the run in DIR")
    run.add_argument("--limit", type=int, metavar="N", help="the first N questions only")
    run.add_argument(
        "--questions", type=int, metavar="N", help="how many of the miniature (default: 1000)"
    )
    run.add_argument(
        "--num-choices",
        type=_integers,
        default=(),
        metavar="K[,K...]",
        help="the questions cut down to K choices, each within the larger ones",
    )
    run.add_argument("--choices", type=int, metavar="K", help="only questions of K choices")
    run.add_argument("--data", type=Path, metavar="FILE", help="a data set's file at hand")
    run.add_argument("--data-revision", metavar="REV", help="of the data set on the hub")
    run.add_argument(
        "--skip-bad-rows", action="store_true", help="list malformed rows and go on without them"
    )
    _model_options(run, dtype="float32")
    run.add_argument(
        "--seed",
        type=_integers,
        default=(),
        metavar="S[,S...]",
        help="of groups and of what a task draws; several are pooled, their spread reported",
    )
    run.add_argument(
        "--group-size", type=int, metavar="M", help="default: the paper's for the task"
    )
    run.add_argument("--trials", type=int, metavar="N", help="default: the paper's for the task")
    run.add_argument("--grouping", choices=GROUPINGS, help="default: the method preset's")
    run.add_argument("--engine", choices=ENGINES, help="default: tree")
    run.add_argument(
        "--method-preset", choices=PRESETS, default="paper", help="as in `minise ask --preset`"
    )
    _no_null_option(run)
    run.add_argument(
        "--folds", type=int, default=5, metavar="F", help="of the fitted methods (default: 5)"
    )
    run.add_argument("--keep-groups", action="store_true", help="keep what each prompt said, too")
    run.set_defaults(command=_eval)

    show = commands.add_parser(
        "report",
        help="redraw the tables and figures of runs",
        description="Print and draw again what finished runs say, without a model. Several folders "
        "of one experiment, say one for each model, make one table.",
        epilog="example: minise report runs/llama runs/qwen --output-path runs/both",
    )
    show.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of `minise eval`")
    show.add_argument("--output-path", type=Path, metavar="DIR", help="default: the first DIR")
    show.add_argument("--json", action="store_true", help="print the results instead")
    show.set_defaults(command=run_report)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers") from None


def _model_options(parser: argparse.ArgumentParser, dtype: str) -> None:
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="PATH_OR_ID",
        help=f"checkpoint folder or hub id (default: {DEFAULT_MODEL}, which ships)",
    )
    _weights_options(parser, dtype)


def _weights_options(parser: argparse.ArgumentParser, dtype: str) -> None:
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--dtype", choices=tuple(DTYPE_NAMES), default=dtype, help=f"default: {dtype}"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def _question_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        type=Path,
        metavar="Q.json",
        help='{"question": "...", "choices": ["...", ...]}; optional: "id", "answer" (an index)',
    )
    parser.add_argument(
        "--group-size", type=int, default=4, metavar="M", help="choices in a group (default: 4)"
    )
    parser.add_argument(
        "--trials", type=int, default=20, metavar="N", help="random partitions (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the groups (default: 0)")
    parser.add_argument(
        "--grouping",
        choices=GROUPINGS,
        help="random partitions; balanced ones, for more precision from as many; independent "
        "draws, as the released code; exact: every ordered group (default: the preset's)",
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=MAX_TOKENS,
        metavar="T",
        help=f"the most tokens that --grouping exact may take (default: {MAX_TOKENS:,})",
    )
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="paper",
        help="paper: as written; authors-code: as its released code computes (default: paper)",
    )
    _no_null_option(parser)


def _no_null_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-null-option",
        dest="null_option",
        action="store_const",
        const=False,
        help='leave "None of the above" out of the groups',
    )


def _load(args: argparse.Namespace) -> LanguageModel:
    return load(
        args.model, revision=args.revision, dtype=DTYPE_NAMES[args.dtype], device=args.device
    )


def _question(args: argparse.Namespace) -> Question:
    text, choices = getattr(args, "question", None), getattr(args, "choice", None)
    if args.file is not None:
        if text is not None or choices is not None:
            raise InputError("--file and --question or --choice exclude each other; give one")
        return Question.from_file(args.file)
    if text is None and choices is None:
        return QUESTION
    if text is None:
        raise InputError("--choice without a question; add --question TEXT")
    return Question(text, choices or [])


def _plan(lm: LanguageModel, question: Question, args: argparse.Namespace) -> Plan:
    preset = resolve(lm, args.preset, args.grouping, args.null_option)
    if preset.grouping == "exact":
        args.trials = 0  # nothing is sampled
    return plan_groups(
        lm, question, args.group_size, args.trials, args.seed, preset, args.max_tokens
    )


def _ask(args: argparse.Namespace) -> int:
    question = _question(args)
    lm = _load(args)
    if args.method == "standard":
        plan = plan_standard(lm, question, resolve(lm, args.preset))
        args.group_size, args.trials = len(question.choices), 1
    else:
        plan = _plan(lm, question, args)
    answer = run(lm, plan, args.engine)
    names = ("model", "method", "engine", "group_size", "trials", "seed")
    report = ask_report({name: getattr(args, name) for name in names}, plan, answer)
    if args.json:
        print(json.dumps(report))
    else:
        print(ask_text(report, args.show_groups, "█" if _can_print("█") else "#"))
    return 0


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
        return True
    except UnicodeEncodeError:
        return False


def _verify(args: argparse.Namespace) -> int:
    if args.tolerance is not None and not args.tolerance >= 0:
        raise InputError(f"--tolerance {args.tolerance} is below 0 or not a number")
    question = _question(args)
    lm = _load(args)
    report = verify(lm, _plan(lm, question, args), args.tolerance)
    if args.json:
        print(json.dumps(verify_report(args.model, args.dtype, report)))
    else:
        print(verify_text(args.model, args.dtype, report))
    return 0 if report.passed else 1


def _eval(args: argparse.Namespace) -> int:
    return run_eval(args, lambda: _load(args))


def _bench(args: argparse.Namespace) -> int:
    if args.rounds < 1:
        raise InputError(f"--rounds {args.rounds} is below 1; at least one is needed")
    if args.model is not None and (args.shape is not None or args.random_weights):
        raise InputError("--model has weights; give it, or --shape and --random-weights")
    if args.revision is not None and args.model is None:
        raise InputError("--revision is of a --model on the hub; name one, or leave it out")
    if args.plot is not None and not args.plot.absolute().parent.is_dir():
        raise InputError(f"{args.plot}: no such folder to write to")
    if args.model is not None:
        lm = _load(args)
    else:
        shape = BENCH_SHAPE if args.shape is None else PUBLISHED[args.shape]
        lm = random_model(shape, DTYPE_NAMES[args.dtype], usable_device(args.device))
    report = measure(lm, WORKLOADS[args.workload], args.rounds, args.seed, not args.no_peers)
    if args.json:
        print(
            json.dumps(
                {"workload": args.workload, "device": args.device, "dtype": args.dtype}
                | asdict(report)
            )
        )
    else:
        weights = args.model or f"random weights, {args.shape or 'the benchmark shape'}"
        print(f"{args.workload}: {weights}, {args.dtype}, {args.device}, {args.rounds} rounds")
        print(report.as_text())
    if args.plot is not None:
        plot_growth(lm, WORKLOADS[args.workload], args.seed, args.plot)
    return 0
