"""Answer a question by Self-Ensemble and, beside it, by standard inference.

With no question, a built-in one is asked.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from minise.commands import options
from minise.commands.options import ModelRequest, QuestionRequest
from minise.errors import shorten
from minise.methods.registry import METHODS
from minise.names import ENGINES

EXAMPLE = 'minise ask --question "Which is a bird?" --choice wren --choice trout --choice oak'
# The methods by the names that a person reads.
TITLES = {
    "standard": "Standard inference",
    "self-ensemble": "Self-Ensemble",
    "cot": "Chain of thought",
    "reasoning": "Reasoning",
}
GROUPED = ("self-ensemble",)  # others: one prompt, all choices


@dataclass(frozen=True)
class AskRequest:
    """What to ask, by which method (None: Self-Ensemble beside standard), and what to print."""

    model: ModelRequest
    question: QuestionRequest
    method: str | None
    engine: str
    json: bool
    show_groups: bool
    show_prompts: bool
    show_reasoning: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_question_text(parser)
    options.add_question(parser)
    add = options.group(parser, "method").add_argument
    about = "; ".join(f"{name}: {METHODS[name][1]}" for name in TITLES)
    about += "; settings in parentheses, as for minise eval, which has more (minise tasks)"
    both = "default: standard and self-ensemble, side by side"
    add("--method", type=_method, metavar="NAME", help=f"{about} ({both})")
    engines = "how the group prompts are run; all give the same numbers, plain within rounding"
    add("--engine", choices=ENGINES, default="tree", help=f"{engines} (default: tree)")
    options.add_model(parser)
    add = options.group(parser, "output").add_argument
    scores = "print each choice's score, and the probabilities of each group"
    add("--show-groups", action="store_true", help=scores)
    add("--show-prompts", action="store_true", help="print the text of each prompt")
    text = "print what the model writes, while it writes (cot, reasoning)"
    add("--show-reasoning", action="store_true", help=text)


def request(args: argparse.Namespace) -> AskRequest:
    model = options.filled(ModelRequest, args)
    question = options.question_request(args)
    return options.filled(AskRequest, args, model=model, question=question)


def _method(text: str) -> str:
    if (name := text.partition("(")[0].strip()) not in TITLES:
        why = "is for minise eval" if name in METHODS or ":" in name else "is unknown"
        raise argparse.ArgumentTypeError(
            f"{shorten(name, 80)} {why}; use one of {', '.join(TITLES)}"
        )
    return text
