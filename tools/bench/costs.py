"""The tables of docs/costs.md, from the records in docs/costs/.

beside.jsonl and xeon.jsonl are what ways.py recorded on two kinds of CPU. Lines on the same model,
dtype and work add up. A way is divided by `tree` in the same round of the same run, as a machine is
not as fast in each run; the table of the first shows what follows from the medians over the rounds
of all, without lines in which a way ran once. A file holds lines of one engine on one kind of
machine: where the engine changes, it begins anew.

parts.jsonl is what parts.py recorded, a row for each line. A line whose "source" is "printed" was
written down from the page of its commit, when its program kept no record: a number that the page
did not have is not there.

`python -m tools.studies` writes the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tools import markdown

BESIDE = Path(__file__).parents[2] / "docs" / "costs" / "beside.jsonl"
PARTS = BESIDE.with_name("parts.jsonl")
# The ends of the models' folders and the names of the work, in the order of the tables.
MODELS = {"smollm2": "135M", "qwen05": "0.5B", "qwen15": "1.5B"}
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
# The rows, and how the names of their ways begin. Of several ways the fastest is shown.
ROWS = {
    "floor": "floor",
    "packed": "packed",
    "equal bits": "tree, equal bits",
    "transformers": "transformers, kept question",
    "transformers, the rest of the tree": "transformers, the rest of the token tree",
    "FlexAttention": "transformers, FlexAttention",
    "llama.cpp": "llama.cpp",
    "vLLM": "vLLM",
}

Line = dict[str, Any]  # of a record: what tools/bench/ways.py saw of one kind of work


def by_tree(cpu: Sequence[float], tree: Sequence[float]) -> list[float]:
    """The seconds of a way in each round by those of `tree` in the same round."""
    return [seconds / of_tree for seconds, of_tree in zip(cpu, tree, strict=True)]


def read(path: Path) -> list[Line]:
    """The lines of a record. A model is named by the end of its folder: src-qwen05 is qwen05."""
    found = []
    for text in path.read_text("utf-8").splitlines():
        line = json.loads(text)
        if "model" in line:
            line["model"] = line["model"].rpartition("-")[2]
        found.append(line)
    return found


def lines(path: Path) -> list[Line]:
    """A line for each model, dtype and work, in the order of the tables: the first on it in the
    file, with the rounds of all. A way gets `by tree`: its CPU seconds by those of `tree`."""
    joined: dict[tuple[str, str, str], Line] = {}
    machines = set()
    for line in read(path):
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
    assert len(machines) == 1, f"{path} holds lines of several machines"
    found = []
    for model in MODELS:
        for dtype in DTYPES:
            for work in WORK:
                if (model, dtype, work) in joined:
                    found.append(joined.pop((model, dtype, work)))
    assert not joined, f"no table shows {list(joined)}"
    return found


def as_parts(spec: Mapping[str, Any]) -> str:
    """A row for each line of parts.jsonl: seconds, and gigabytes. In italics: one round."""
    rows = []
    for line in read(PARTS):
        rounds = line["rounds"]
        loaded = [written(line["load"], 1), written(line["peak_gb"], 1)]
        answered = shown(written(line["question"]["all"], 1), rounds)
        loaded_nf4 = written(line.get("load_nf4"), 1)
        of_nf4 = shown(written(line.get("weights", {}).get("nf4"), 1), rounds)
        row = [*on(line), *loaded, answered, loaded_nf4, of_nf4, shown(str(rounds), rounds)]
        rows.append([*row, line["commit"], line["source"]])
    titles = ["load, s", "peak, GB", "an answer, s", "nf4: load, s", "a pass, s", "rounds"]
    return markdown.table(["model", "dtype", "CPU", *titles, "commit", "source"], rows)


def written(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"


def on(line: Line) -> list[str]:
    return [MODELS[line["model"]], line["dtype"], cpu_of(line)]


def cpu_of(line: Line) -> str:
    if not line["machine"]:
        return "not named"
    return line["machine"].replace("(R)", "").partition(" (")[0].removesuffix(" Processor")


def as_beside(spec: Mapping[str, Any]) -> str:
    """A row for each kind of way: its seconds by those of `tree`, over the lines in which every way
    ran twice or more. Of each line counts the median of its rounds."""
    ratios: dict[str, list[float]] = {title: [] for title in ROWS}
    for line in lines(BESIDE):
        ways = line["ways"]
        if min(len(way["cpu"]) for way in ways.values()) == 1:
            continue
        for title, start in ROWS.items():
            fastest = fastest_of(ways, start)
            if fastest is not None:
                ratios[title].append(fastest)
    rows = []
    for title, seen in ratios.items():
        if seen:
            values = [min(seen), median(seen), max(seen)]
            rows.append([title, *(f"{value:.2f}" for value in values), str(len(seen))])
    return markdown.table(["by `tree`", "least", "median", "most", "questions"], rows)


def fastest_of(ways: Mapping[str, Line], start: str) -> float | None:
    """By `tree`, of the ways whose names begin so; None where there is none."""
    of_kind = []
    for name, way in ways.items():
        if name.startswith(start):
            of_kind.append(median(way["by tree"]))
    return min(of_kind, default=None)


def as_questions(spec: Mapping[str, Any]) -> str:
    """A row for each line of xeon.jsonl: the seconds of `tree`, and each kind of way by them."""
    recorded = lines(BESIDE.with_name("xeon.jsonl"))
    kinds = []
    for title, start in ROWS.items():
        if any(fastest_of(line["ways"], start) is not None for line in recorded):
            kinds.append(title)
    rows = []
    for line in recorded:
        rounds = len(line["ways"]["tree"]["cpu"])
        seconds = f"{median(line['ways']['tree']['cpu']):.1f}"
        row = [MODELS[line["model"]], line["dtype"], WORK[line["work"]], seconds]
        for title in kinds:
            row.append(written(fastest_of(line["ways"], ROWS[title]), 2))
        rows.append([*row, shown(str(rounds), rounds)])
    titles = ["model", "dtype", "question", "`tree`, s", *kinds, "rounds"]
    return markdown.table(titles, rows)


def shown(number: str, rounds: int) -> str:
    """In italics if it is a number that rests on a single round."""
    return f"*{number}*" if rounds == 1 and number != "-" else number
