"""The tables of docs/costs.md that show what tools/bench.py recorded in docs/costs/beside.jsonl.

Lines on the same model, dtype and work add up. A way is divided by `tree` in the same round of the
same run, as a machine is not as fast in each run; a row shows medians over the rounds of all. The
file holds lines of one engine on one kind of machine: where the engine changes, it begins anew.
`python -m tools.real tables` writes the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

Line = dict[str, Any]  # what tools/bench.py recorded of one kind of work


def by_tree(cpu: Sequence[float], tree: Sequence[float]) -> list[float]:
    """The seconds of a way in each round by those of `tree` in the same round."""
    return [seconds / of_tree for seconds, of_tree in zip(cpu, tree, strict=True)]


def lines() -> list[Line]:
    """A line for each model, dtype and work, in the order of the tables: the first on it in the
    file, with the rounds of all. A way gets `by tree`: its CPU seconds by those of `tree`."""
    joined: dict[tuple[str, str, str], Line] = {}
    machines = set()
    for text in BESIDE.read_text("utf-8").splitlines():
        line = json.loads(text)
        machines.add(line["machine"])
        tree = line["ways"]["tree"]["cpu"]
        for way in line["ways"].values():
            way["by tree"] = by_tree(way["cpu"], tree)
        first = joined.setdefault((line["model"], line["dtype"], line["work"]), line)
        if first is not line:
            for name, way in line["ways"].items():
                all_rounds = first["ways"].setdefault(name, {"cpu": [], "by tree": []})
                all_rounds["cpu"] += way["cpu"]
                all_rounds["by tree"] += way["by tree"]
    assert len(machines) == 1, f"{BESIDE} holds lines of several machines"
    found = []
    for model in MODELS:
        for dtype in DTYPES:
            for work in WORK:
                if (model, dtype, work) in joined:
                    found.append(joined.pop((model, dtype, work)))
    assert not joined, f"no table shows {list(joined)}"
    return found


def named(line: Line) -> list[str]:
    return [MODELS[line["model"]], line["dtype"], WORK[line["work"]]]


def as_beside(spec: Mapping[str, Any]) -> str:
    """A row for each line: the seconds of `tree`, of the other ways by those of `tree`, and how
    many rounds each way ran at least: a line may hold a part of the ways. In italics: one round."""
    rows = []
    for line in lines():
        ways = line["ways"]
        tree = ways["tree"]["cpu"]
        row = [*named(line), shown(f"{median(tree):.1f}", len(tree))]
        for start in COLUMNS.values():
            of_column = []
            for name, way in ways.items():
                if name.startswith(start):
                    of_column.append((median(way["by tree"]), len(way["cpu"])))
            if of_column:
                ratio, rounds = min(of_column)
                row.append(shown(f"{ratio:.2f}", rounds))
            else:
                row.append("-")
        fewest = min(len(way["cpu"]) for way in ways.values())
        rows.append([*row, shown(str(fewest), fewest)])
    titles = ["model", "dtype", "question", "`tree`, s", *COLUMNS, "rounds, at least"]
    return markdown.table(titles, rows)


def shown(number: str, rounds: int) -> str:
    """In italics if it rests on a single round."""
    return f"*{number}*" if rounds == 1 else number


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
