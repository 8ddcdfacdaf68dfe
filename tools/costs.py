"""The tables of docs/costs.md that show what tools/bench.py recorded in docs/costs/beside.jsonl.

A later line on the same model, dtype and work replaces an earlier one. `python -m tools.real
tables` writes the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tools import markdown

BESIDE = Path(__file__).parents[1] / "docs" / "costs" / "beside.jsonl"
# The folders of the models and the names of the work, in the order of the tables.
MODELS = {"src-smollm2": "135M", "src-qwen05": "0.5B", "src-qwen15": "1.5B"}
DTYPES = ("bfloat16", "float32")
WORK = {
    "qasc": "QASC",
    "truthfulqa": "TruthfulQA",
    "biology": "Biology",
    "500": "500",
    "1400": "1,400",
    "2800": "2,800",
    "8000": "8,000",
}
# The columns, and how the names of their ways begin. Of several ways the fastest is shown.
COLUMNS = {
    "floor": "floor",
    "packed": "packed",
    "equal bits": "tree, equal bits",
    "transformers": "transformers, kept question",
    "FlexAttention": "transformers, FlexAttention",
    "llama.cpp": "llama.cpp",
    "vLLM": "vLLM",
}

# The commits in which an MLP took all tokens at once: their rows are marked.
WHOLE_MLP = ("dbb73c0", "e1a9de9", "45aa503", "39595d5", "1c40537")

Line = dict[str, Any]  # what tools/bench.py recorded of one kind of work


def lines() -> list[Line]:
    """The last line of each model, dtype and work, in the order of the tables."""
    last: dict[tuple[str, str, str], Line] = {}
    for text in BESIDE.read_text("utf-8").splitlines():
        line = json.loads(text)
        last[line["model"], line["dtype"], line["work"]] = line
    found = []
    for model in MODELS:
        for dtype in DTYPES:
            for work in WORK:
                if (model, dtype, work) in last:
                    found.append(last.pop((model, dtype, work)))
    assert not last, f"no table shows {list(last)}"
    return found


def named(line: Line) -> list[str]:
    mark = " †" if line["commit"] in WHOLE_MLP else ""
    return [MODELS[line["model"]], line["dtype"], WORK[line["work"]] + mark]


def as_beside(spec: Mapping[str, Any]) -> str:
    """A row for each line: the seconds of `tree`, and of the other ways by those of `tree`."""
    rows = []
    for line in lines():
        seconds = {name: median(way["cpu"]) for name, way in line["ways"].items()}
        tree = seconds["tree"]
        row = [*named(line), f"{tree:.1f}"]
        for start in COLUMNS.values():
            of_column = [cpu for name, cpu in seconds.items() if name.startswith(start)]
            row.append(f"{min(of_column) / tree:.2f}" if of_column else "-")
        rounds = len(line["ways"]["tree"]["cpu"])
        rows.append([*row, str(rounds)])
    titles = ["model", "dtype", "question", "`tree`, s", *COLUMNS, "rounds"]
    return markdown.table(titles, rows)


def as_stages(spec: Mapping[str, Any]) -> str:
    """A row for each line on the work that the spec names: percents of the time of `tree`."""
    rows = []
    titles: list[str] = []
    for line in lines():
        if line["work"] in spec["work"]:
            titles = ["model", "dtype", "question", *line["stages"]]
            percents = [f"{100 * share:.0f}" for share in line["stages"].values()]
            rows.append([*named(line), *percents])
    return markdown.table(titles, rows)
