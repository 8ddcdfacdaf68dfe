"""What options are made of: how a field is described, and those that several commands have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from minise.by_name import from_lab
from minise.errors import InputError
from minise.grouping import check_sizes
from minise.question import Question

if TYPE_CHECKING:
    from minise.prompts import LanguageModel

# Asked if no question is given. Chosen by a rule: the first of the miniature's evaluation questions
# (8 choices, seed 0) that tiny-llama answers wrongly by standard inference and rightly by
# Self-Ensemble, with the default options. A test finds it again.
QUESTION = Question(
    "What is the capital of Canada?",
    ["New Delhi", "Riyadh", "Ottawa", "Kingston", "Baghdad", "Athens", "Tokyo", "Nairobi"],
    id="miniature-0-3",
    answer=2,
)
Dtype = Literal["auto", "float64", "float32", "bfloat16", "float16"]
ONE_THREAD_BELOW = 20_000_000  # parameters: in a small model threads would wait for each other


@dataclass(frozen=True)
class Option:
    """What a field of a command's `Options` is on the command line. A field

        group_size: Annotated[int, Option("choices in a group", "M", min=1)] = 4

    is the option --group-size M. A field without a default must be given (kw_only=True allows it
    after the fields of a base class). A bool is a flag, False by default; a Literal is one of its
    values; a tuple is an option that may be given several times; int, float, str and Path are
    themselves, each also with "| None".
    """

    help: str
    metavar: str | None = None  # how the help calls the value
    short: str | None = None  # a second name: "-o"
    min: int | None = None  # of an int
    positional: bool = False  # no --name before the value; the command's docstring explains it


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model a command loads, and how. The Options of such a command inherit from it."""

    model: Annotated[
        str, Option("folder, hub id, FILE.py:NAME, server:URL, transformers:ID", "PATH_OR_ID")
    ] = "weights/tiny-llama"
    tokenizer: Annotated[str | None, Option("of a server's model", "PATH_OR_ID")] = None
    revision: Annotated[str | None, Option("branch, tag or commit of a hub id", "NAME")] = None
    dtype: Annotated[Dtype, Option("auto: as stored; on a CPU float32, bfloat16 where faster")] = (
        "auto"
    )
    device: Annotated[str, Option("auto: a GPU if there is one", "cpu|cuda[:N]")] = "auto"
    threads: Annotated[int | None, Option("of the CPU; 1 for a small model", "N", min=1)] = None
    quantize: Annotated[Literal["nf4"] | None, Option("pack the linear layers in 4 bits")] = None
    equal_bits: Annotated[bool, Option("tree, packed, separate give equal bits; slower")] = False


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(ModelOptions):
    """One question and its groups. The Options of a command that asks one inherit from it."""

    question: Annotated[str | None, Option("the question; choices by --choice")] = None
    choice: Annotated[tuple[str, ...], Option("a choice; give one --choice for each")] = ()
    file: Annotated[Path | None, Option("one question and its answer, as for eval --task")] = None
    group_size: Annotated[int | None, Option("choices in a group; else 4", "M", min=1)] = None
    trials: Annotated[int | None, Option("splits into groups; else 20", "N", min=1)] = None
    seed: Annotated[int, Option("of the groups", "S")] = 0

    def sizes(self) -> dict[str, Any]:
        """Those that are given. For others the defaults of what takes them hold."""
        sizes = {"group_size": self.group_size, "trials": self.trials}
        return {name: value for name, value in sizes.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class GroupOptions(ModelOptions):
    """How the groups of any method are drawn, written and run."""

    grouping: Annotated[str | None, Option("random, independent, exact, FILE.py:NAME", "NAME")] = (
        None
    )
    template: Annotated[
        str | None, Option("default, mmlu, paren, authors, chat[:NAME]", "NAME|FILE.json")
    ] = None
    no_null_option: Annotated[bool, Option('no "None of the above" in groups')] = False
    engine: Annotated[
        str | None,
        Option(
            "default: tree; packed, separate, without-mask, without-positions", "NAME|FILE.py:NAME"
        ),
    ] = None

    def settings(self) -> dict[str, Any]:
        """Those that are given, for all methods that have them."""
        given: dict[str, Any] = {}
        if self.no_null_option:
            given["null_option"] = False
        if self.grouping is not None:
            given["grouping"] = self.grouping
        if self.template is not None:
            given["template"] = self.template
        return given


def read_question(options: QuestionOptions) -> Question:
    """The question of --file, or of --question and --choice, or the built-in one. Its groups are
    checked before a model is loaded."""
    question = QUESTION
    if options.file is not None:
        if options.question is not None or options.choice:
            raise InputError("--file and --question or --choice exclude each other; give one")
        if not os.path.isfile(options.file):  # Path.is_file raises for impossible names
            raise InputError(f"{options.file}: no such file")
        [task] = from_lab("--file")([str(options.file)])
        question, *others = task.questions
        if others:
            several = f"holds {len(others) + 1} questions; give a file of one, or use minise eval"
            raise InputError(f"{options.file}: {several}")
    elif options.question is not None:
        question = Question(options.question, list(options.choice))
    elif options.choice:
        raise InputError("--choice without a question; add --question TEXT")
    check_sizes(len(question.choices), options.group_size or 4, options.trials or 20)
    return question


def load_model(options: ModelOptions) -> LanguageModel:
    """The model, and torch's number of threads: equal bits are measured for that number."""
    import torch

    from minise.lm import LocalModel
    from minise.loading.checkpoint import load

    engine = options.engine if isinstance(options, GroupOptions) else None
    lm = load(
        options.model,
        revision=options.revision,
        dtype=options.dtype,
        device=options.device,
        quantize=options.quantize,
        engine=engine or "tree",
        equal_bits=options.equal_bits,
        tokenizer=options.tokenizer,
    )
    if options.threads is not None:
        torch.set_num_threads(min(options.threads, os.cpu_count() or 1))
    elif isinstance(lm, LocalModel) and "OMP_NUM_THREADS" not in os.environ:
        parameters = getattr(lm.decoder, "parameters", list)  # one of the user's own may have none
        size = sum(parameter.numel() for parameter in parameters())
        if size < ONE_THREAD_BELOW:
            torch.set_num_threads(1)
    return lm
