"""Write a page that explains how one question is answered: groups, mask, equality, attention.

It is one HTML file that needs no network. With no question, a built-in one is explained. With
--live it is a page of seven scenes: a small model itself runs in the reader's browser; of any other
one the answers to the question are recorded.

example: minise explain --trials 5 --output page.html --figure mask.svg
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from minise.commands.options import (
    ModelOptions,
    Option,
    QuestionOptions,
    load_model,
    read_question,
)
from minise.errors import InputError, printable
from minise.files import write_file
from minise.question import Question

LIVE = (
    "write the live page instead, with questions, masks and positions to change: a llama, mistral "
    "or qwen2 model of at most 10 million numbers runs in the browser; of any other the answers to "
    "the one question are recorded"
)


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions, ModelOptions):
    no_null_option: Annotated[bool, Option('leave "None of the above" out of the groups')] = False
    output: Annotated[Path, Option("the page to write", "FILE", short="-o")] = Path("page.html")
    figure: Annotated[
        Path | None, Option("also draw the first trial's mask, as SVG", "FILE.svg")
    ] = None
    live: Annotated[bool, Option(LIVE)] = False


def run(options: Options) -> int:
    question = read_question(options)
    for path in (options.output, options.figure):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"{path}: no such folder to write to; create it")
    if options.figure is not None and options.figure.suffix.lower() != ".svg":
        raise InputError(f"{options.figure}: the figure is SVG; end its name in .svg")
    html, told = live(options, question) if options.live else explained(options, question)
    write_file(options.output, html)
    written = f"written: {options.output} ({len(html.encode()) / 1e6:.2f} MB)"
    print(printable("\n".join([written, *told])))
    return 0


def explained(options: Options, question: Question) -> tuple[str, list[str]]:
    """The page that explains the question, and what is told of it. Writes the figure, too."""
    import numpy as np

    from minise.explaining.page import explain

    page = explain(
        load_model(options),
        question,
        options.group_size,
        options.trials,
        options.seed,
        null_option=not options.no_null_option,
    )
    if options.figure is not None:
        write_file(options.figure, page.figure)
    figure = [f"written: {options.figure}"] if options.figure else []
    data, engines = page.data, ("dense", "tree")
    equal = "equal bit for bit"
    if not all(data["bitwise"][name] for name in engines):
        # The largest difference of a hidden state from the separate run's, by its size.
        most = max(float(np.nanmax(data["equality"][name])) for name in engines)
        equal = f"hidden states differ by at most {most:.1e} of their size"
    tokens = len(data["packed"]["texts"])
    told = f"{tokens:,} packed tokens, packed and separate {equal}"
    return page.html, [*figure, told, *data["left_out"]]


def live(options: Options, question: Question) -> tuple[str, list[str]]:
    """The page of scenes, with the model or with recorded answers, and what is told of it."""
    from minise.live.page import live_page, why_not_live
    from minise.live.recording import recorded_page

    refuse({"--figure": options.figure})
    lm = load_model(options)
    if why := why_not_live(lm):
        refuse({"--no-null-option": options.no_null_option})
        settings = options.group_size, options.trials, options.seed
        html = recorded_page(lm, question, *settings, why)
    else:  # questions are typed in the page
        typed = {"--question": options.question, "--choice": options.choice}
        refuse({**typed, "--file": options.file})
        html = live_page(lm)
    return html, ["with recorded answers"] * bool(why)


def refuse(options: Mapping[str, object]) -> None:
    """Raise InputError for the first option that is used."""
    for option, value in options.items():
        if value:
            raise InputError(f"{option} is not for the live page; leave it out, or --live")
