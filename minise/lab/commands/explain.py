"""Write a page that explains Self-Ensemble on one question, in scenes, for a browser.

It is one HTML file that needs no network. A llama, mistral or qwen2 model of at most 10 million
numbers runs in the page itself; of any other one the answers to the question are recorded. With no
question, a built-in one is asked.

example: minise explain --trials 5 --output page.html
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from minise.commands.options import Option, QuestionOptions, load_model, read_question
from minise.commands.terminal import say
from minise.errors import InputError, printable
from minise.lab.files import write_file


@dataclass(frozen=True, kw_only=True)
class Options(QuestionOptions):
    output: Annotated[Path, Option("the page to write", "FILE", short="-o")] = Path("page.html")


def run(options: Options) -> int:
    question = read_question(options)
    if not options.output.absolute().parent.is_dir():
        raise InputError(f"{options.output}: no such folder to write to; create it")
    from minise.lab.page.explain import explain

    lm = load_model(options)
    page = explain(lm, question, **options.sizes(), seed=options.seed, tell=say)
    write_file(options.output, page.html)
    how = f"recorded answers, because {page.recorded}" if page.recorded else "the model runs in it"
    megabytes = len(page.html.encode()) / 1e6
    print(printable(f"written: {options.output} ({megabytes:.2f} MB), {how}"))
    return 0
