"""Join the shards of runs; print and draw their tables and pictures again.

Several folders, of one experiment with several models, make one report, with paired differences
from the first. The report is written to --output, or to the first DIR.

example: minise report runs/llama runs/qwen -o runs/both
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from minise.commands.options import Option
from minise.lab.files import make_folder, write_file
from minise.loading.plugin import load_extra


@dataclass(frozen=True)
class Options:
    folders: Annotated[tuple[Path, ...], Option("", "DIR...", positional=True)]
    output: Annotated[Path | None, Option("of the report", "DIR", short="-o")] = None
    method: Annotated[
        tuple[str, ...], Option("a fitted method of your own, whose file is run", "FILE.py:NAME")
    ] = ()
    format: Annotated[
        Literal["markdown", "latex"], Option("of the tables; latex: for a paper, in report.tex")
    ] = "markdown"


def run(options: Options) -> int:
    load_extra("pandas")
    from minise.lab.evaluation import figures, tables
    from minise.lab.evaluation.results import between, read_run

    runs = [read_run(folder, options.method) for folder in options.folders]
    found = between(tables.labels(runs), runs)
    folder = options.output or options.folders[0]
    make_folder(folder)
    width = shutil.get_terminal_size((100, 24)).columns
    if options.format == "latex":
        text = tables.latex(runs, found)
        write_file(folder / "report.tex", text)
        print(text)
    else:
        print(tables.report(runs, found, width))
    page = tables.report(runs, found)
    for path in figures.draw(runs, folder):
        page += f"\n![{path.stem}]({path.name})\n"
    write_file(folder / "report.md", page)
    also = "report.tex, " if options.format == "latex" else ""
    print(f"written in {folder}: report.md, {also}its pictures, results.json and samples-*.jsonl")
    return 0
