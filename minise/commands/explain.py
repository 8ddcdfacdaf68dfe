"""Write a page that explains Self-Ensemble on one question, in scenes, for a browser.

It is one HTML file that needs no network. A llama, mistral or qwen2 model of at most 10 million
numbers runs in the page itself; of any other one the answers to the question are recorded. With no
question, a built-in one is asked.

example: minise explain --trials 5 --output page.html --figure mask.svg
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from minise.commands.options import Option, QuestionOptions, load_model, read_question
from minise.errors import InputError, printable
from minise.files import write_file


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions):
    output: Annotated[Path, Option("the page to write", "FILE", short="-o")] = Path("page.html")
    figure: Annotated[
        Path | None, Option("also draw the first trial's mask, as SVG", "FILE.svg")
    ] = None


def run(options: Options) -> int:
    question = read_question(options)
    for path in (options.output, options.figure):
        if path is not None and not path.absolute().parent.is_dir():
            raise InputError(f"{path}: no such folder to write to; create it")
    if options.figure is not None and options.figure.suffix.lower() != ".svg":
        raise InputError(f"{options.figure}: the figure is SVG; end its name in .svg")
    from minise.page.explain import explain

    settings = options.group_size, options.trials, options.seed
    page = explain(load_model(options), question, *settings, tell=_tell)
    write_file(options.output, page.html)
    how = f"recorded answers, because {page.recorded}" if page.recorded else "the model runs in it"
    print(printable(f"written: {options.output} ({len(page.html.encode()) / 1e6:.2f} MB), {how}"))
    if options.figure is not None:
        write_file(options.figure, page.figure)
        print(printable(f"written: {options.figure}"))
    return 0


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
