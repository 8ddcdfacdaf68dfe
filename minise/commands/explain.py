"""Write a page that explains how one question is answered: groups, mask, equality, attention.

It is one HTML file that needs no network. With no question, a built-in one is explained. With
--live it is a page of seven scenes: a small model itself runs in the reader's browser; of any other
one the answers to the question are recorded.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from minise.commands import options
from minise.commands.options import ModelRequest, QuestionRequest

EXAMPLE = "minise explain --trials 5 --output page.html --figure mask.svg"


@dataclass(frozen=True)
class ExplainRequest:
    """What to explain, and where the page goes. detail: of the attention; None: what fits. live:
    write the live page, which asks questions of its own."""

    model: ModelRequest
    question: QuestionRequest
    output: Path
    figure: Path | None
    detail: str | None
    json: bool
    live: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_question_text(parser)
    options.add_question(parser)
    options.add_model(parser)
    add = options.group(parser, "output").add_argument
    where = "the page to write (default: page.html)"
    add("-o", "--output", type=Path, default=Path("page.html"), metavar="FILE", help=where)
    picture = "also draw the first trial's packed sequence and mask, as SVG"
    add("--figure", type=Path, metavar="FILE.svg", help=picture)
    heads = (
        "full: every head's attention; low: their mean (default: full where it stays below 5 MB)"
    )
    add("--detail", choices=("low", "full"), help=heads)
    live = (
        "write the live page instead, with questions, masks and positions to change: a llama, "
        "mistral or qwen2 model of at most 10 million numbers runs in the browser; of any other "
        "the answers to the one question are recorded"
    )
    add("--live", action="store_true", help=live)


def request(args: argparse.Namespace) -> ExplainRequest:
    model = options.filled(ModelRequest, args)
    question = options.question_request(args)
    return options.filled(ExplainRequest, args, model=model, question=question)
