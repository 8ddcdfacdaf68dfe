"""JevBench, another group's suite for decision models, on `minise decide`.

    python -m tools.decisions requests REQUESTS                  its requests (pip install jevbench)
    minise decide REQUESTS --model FOLDER --method presence -o ANSWERS
    python -m tools.decisions report NAME REQUESTS ANSWERS       writes docs/decisions/NAME.jsonl.gz
    python -m tools.decisions equal                              the same of equal probabilities
    python -m tools.decisions tables                             writes those of docs/decisions.md

A record has a line of facts, and a line for each test: whether its law was violated.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from tools.markdown import table

PAGE = Path(__file__).parents[1] / "docs" / "decisions.md"
RECORDS = PAGE.with_suffix("")
SUITE = "jevbench-mini"
DIMENSIONS = ("REP", "BAT", "MEA", "LOG", "CHO")
MODELS = {"qwen05": "0.5B", "qwen15": "1.5B"}
METHODS = ("standard", "self-ensemble", "presence", "cyclic")
TOLERANCE = 0.05  # of JevBench, where a law has none of its own
RESAMPLES = 1000
Ask = Callable[[Any, dict[str, Any]], dict[str, Any]]


def write_requests(path: Path) -> None:
    """Every request of the suite once, those on one state in a row. Those that test whether other
    questions matter come last, in a drawn order: so no pass has one of them and what it is
    compared with."""
    import jevbench

    sent: dict[str, dict[str, Any]] = {}
    toy = jevbench.fake("coherent")

    def ask(state: Any, questions: dict[str, Any]) -> dict[str, Any]:
        sent.setdefault(key_of(state, questions), {"state": state, "questions": questions})
        return toy.ask(state, questions)

    others = [name for name in DIMENSIONS if name != "BAT"]
    jevbench.evaluate(ask, SUITE, dimensions=others, cache=":memory:", bootstrap=0)
    by_state: dict[str, list[str]] = {}
    for key, request in sent.items():
        by_state.setdefault(request["state"], []).append(key)
    first = [key for keys in by_state.values() for key in keys]
    jevbench.evaluate(ask, SUITE, dimensions=["BAT"], cache=":memory:", bootstrap=0)
    last = sorted(sent.keys() - first, key=lambda key: hashlib.sha256(key.encode()).digest())
    path.write_text("".join(f"{key}\n" for key in [*first, *last]), "utf-8")
    print(f"{path}: {len(first)} requests, and {len(last)} of the dimension BAT after them")


def key_of(state: Any, questions: dict[str, Any]) -> str:
    """The request as a line, without "criteria": null, as JevBench sends it to servers."""
    sent = {}
    for id, asked in questions.items():
        sent[id] = {name: value for name, value in asked.items() if value is not None}
    return json.dumps({"state": state, "questions": sent})


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()


def equal(state: Any, questions: dict[str, Any]) -> dict[str, Any]:
    """Every option is as probable as any other: JevBench's own measure of doing nothing."""
    answers = {}
    for id, asked in questions.items():
        shares = {str(option): 1.0 for option in option_ids(asked)}
        answers[id] = {"type": asked["type"], "noul": 0.5, "probabilities": shares}
    return answers


def option_ids(asked: dict[str, Any]) -> Sequence[object]:
    criteria = asked.get("criteria") or ()
    return list(criteria) if isinstance(criteria, dict) else range(len(criteria))


def from_equal(answer: dict[str, Any]) -> float:
    """Half the sum of the distances of the probabilities from equal ones, as a share of what it is
    for a certain answer: 0 is indifferent, 1 is certain."""
    if answer["type"] == "noul":
        return abs(2.0 * float(answer["noul"]) - 1.0)
    shares = np.array(list(answer["probabilities"].values()))
    shares = shares / shares.sum()
    even = 1 / len(shares)
    return float(np.abs(shares - even).sum() / (2 - 2 * even))


def write_record(name: str, ask: Ask, facts: dict[str, Any]) -> None:
    """Let JevBench judge the answers, and keep what it says of each test."""
    import jevbench

    distances: list[float] = []

    def watched(state: Any, questions: dict[str, Any]) -> dict[str, Any]:
        answers = ask(state, questions)
        distances.extend(map(from_equal, answers.values()))
        return answers

    report = jevbench.evaluate(watched, SUITE, cache=":memory:", bootstrap=0)
    assert not report.result["errors"], report.result["errors"][:3]
    tests: dict[tuple[str, str, str], bool] = {}
    for outcome in report.result["outcomes"]:
        allowed = TOLERANCE if outcome["tolerance_kind"] == "noise" else outcome["tolerance"]
        _, _, rest = outcome["trial_id"].partition(outcome["case_id"])
        test = (outcome["relation"], outcome["case_id"], rest.split(":")[1])
        tests[test] = tests.get(test, False) or not outcome["deviation"] <= allowed
    dimension = {one["name"]: one["dimension"] for one in jevbench.list_relations()}
    version = report.result["jevbench_version"]
    distance = round(mean(distances), 4)
    rows = [{**facts, "from_equal": distance, "suite": SUITE, "jevbench": version}]
    for (relation, case, _), is_violated in sorted(tests.items()):
        rows.append(
            {"dimension": dimension[relation], "relation": relation, "case": case}
            | {"violated": is_violated}
        )
    packed = "".join(json.dumps(row) + "\n" for row in rows)
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.jsonl.gz").write_bytes(gzip.compress(packed.encode(), mtime=0))
    counted = scores(rows[1:])
    theirs = {"overall": report.scores["overall"], **report.scores["pillars"]}
    assert {name: round(value, 9) for name, value in counted.items()} == {
        name: round(value, 9) for name, value in theirs.items()
    }
    print(name, {key: round(100 * value, 1) for key, value in counted.items()})


def write_report(name: str, requests: Path, answers: Path) -> None:
    """The record of the answers that `minise decide` wrote."""
    given = [json.loads(line) for line in lines(answers)]
    by_key = dict(zip(lines(requests), given, strict=True))
    tokens = mean(answer["tokens"] for answer in given)

    def ask(state: Any, questions: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = by_key[key_of(state, questions)]["answers"]
        return found

    write_record(name, ask, {"requests": len(given), "tokens": round(tokens, 1)})


def scores(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """As JevBench counts: a law's score is the share of its tests that hold it, a dimension's the
    mean over its laws, and overall the mean over the dimensions. Shares."""
    of_law: dict[tuple[str, str], list[bool]] = {}
    for row in rows:
        of_law.setdefault((row["dimension"], row["relation"]), []).append(not row["violated"])
    found = {}
    for name in DIMENSIONS:
        laws = []
        for (dimension, _), held in of_law.items():
            if dimension == name:
                laws.append(sum(held) / len(held))
        found[name] = mean(laws)
    return {"overall": mean(found.values()), **found}


def with_intervals(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """The scores, and their intervals of 95% by resampling cases."""
    by_case: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault(row["case"], []).append(row)
    cases = list(by_case.values())
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        chosen = generator.integers(0, len(cases), len(cases))
        drawn.append(scores([row for number in chosen for row in cases[number]]))
    found = {}
    for name, value in scores(rows).items():
        low, high = np.quantile([one[name] for one in drawn], [0.025, 0.975])
        found[name] = (value, float(low), float(high))
    return found


def read_record(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    facts, *rows = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    return facts, rows


def tables() -> dict[str, str]:
    """The tables of the page by their names."""
    times = {}
    for path in RECORDS.glob("time-*.json"):
        times[path.stem.removeprefix("time-")] = json.loads(path.read_text("utf-8"))
    return {"jevbench": table_of_laws(times), "times": table_of_times(times)}


def table_of_laws(times: dict[str, Any]) -> str:
    heads = ["answers", "overall", *DIMENSIONS, "from equal", "tokens", "CPU s"]
    rows = []
    for name in ("equal", *(f"{model}-{method}" for model in MODELS for method in METHODS)):
        path = RECORDS / f"{name}.jsonl.gz"
        if not path.exists():
            continue
        facts, tests = read_record(path)
        model, _, method = name.partition("-")
        cells = [f"{MODELS[model]}, `{method}`" if method else "`equal`"]
        for value, low, high in with_intervals(tests).values():
            cells.append(f"{100 * value:.1f} [{100 * low:.0f}, {100 * high:.0f}]")
        cells.append(f"{100 * facts['from_equal']:.0f}")
        seconds = times.get(model, {}).get(method, {}).get("suite")
        cells.append(f"{facts['tokens']:,.0f}" if method else "-")
        cells.append(f"{seconds:.1f}" if seconds else "-")
        rows.append(cells)
    return table(heads, rows)


def table_of_times(times: dict[str, Any]) -> str:
    """CPU seconds of a request with many questions."""
    ways: list[str] = []
    rows = []
    for model, taken in times.items():
        for method in METHODS:
            seconds = taken[method]["seconds"]
            ways = ways or list(seconds)
            if set(seconds) == set(ways):
                cells = [f"{seconds[way]:.1f}" for way in ways]
                prompts = str(taken[method]["prompts"])
                rows.append([f"{MODELS[model]}, `{method}`", prompts, *cells])
    return table(["", "prompts", *ways], rows)


def page() -> str:
    """The page with its tables made anew."""
    made = tables()

    def filled(found: re.Match[str]) -> str:
        return f"{found[1]}\n{made[found[2]]}\n{found[3]}"

    form = r"(<!-- table (\S+) -->).*?(<!-- end -->)"
    return re.sub(form, filled, PAGE.read_text("utf-8"), flags=re.DOTALL)


def main(command: str, *words: str) -> None:
    if command == "requests":
        write_requests(Path(words[0]))
    elif command == "report":
        write_report(words[0], Path(words[1]), Path(words[2]))
    elif command == "equal":
        write_record("equal", equal, {})
    elif command == "tables":
        PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
