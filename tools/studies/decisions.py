"""JevBench, another group's suite for decision models, on `minise decide`.

    python -m tools.studies.decisions requests REQUESTS    its requests (pip install jevbench)
    minise decide REQUESTS --model FOLDER --method presence -o ANSWERS
    python -m tools.studies.decisions report NAME DTYPE REQUESTS ANSWERS
    python -m tools.studies.decisions equal                the record of equal probabilities

`report` writes the record decided/NAME.jsonl.gz: a line of facts, and a line for each test, whether
its law was violated. And whether answers are right, on Banking77's messages, each a choice of 77
options, in decided/right-NAME.json:

    python -m tools.studies.decisions messages ROWS REQUESTS    the first 300
    python -m tools.studies.decisions right NAME DTYPE ROWS ANSWERS
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

PAGE = Path(__file__).parents[2] / "docs" / "decisions.md"
RECORDS = Path(__file__).parent / "decided"
SUITE = "jevbench-mini"
DIMENSIONS = ("REP", "BAT", "MEA", "LOG", "CHO")
MODELS = {"smollm2": "135M", "qwen05": "0.5B", "qwen15": "1.5B"}
METHODS = ("standard", "self-ensemble", "presence", "cyclic")
TOLERANCE = 0.05  # of JevBench, where a law has none of its own
RESAMPLES = 1000
MESSAGES = 300  # of Banking77
Z = 1.96  # standard errors in half an interval of 95%
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


def write_messages(rows: Path, path: Path) -> None:
    """The first messages of Banking77. A row's question ends with the message as a JSON string."""
    requests = []
    for row in map(json.loads, lines(rows)[:MESSAGES]):
        instructions, _, message = row["question"].partition(' "')
        options = dict.fromkeys(row["choices"], "")
        asked = {"type": "choice", "instructions": instructions, "criteria": options}
        requests.append({"state": json.loads(f'"{message}'), "questions": {"intent": asked}})
    path.write_text("".join(json.dumps(request) + "\n" for request in requests), "utf-8")


def write_right(name: str, dtype: str, rows: Path, answers: Path) -> None:
    """Of every message that was answered whether rightly."""
    right = []
    tokens = []
    on_labels = []
    given = [json.loads(line) for line in lines(answers)]
    asked = [json.loads(line) for line in lines(rows)[: len(given)]]
    for row, answer in zip(asked, given, strict=True):
        intent = answer["answers"]["intent"]
        right.append(intent["choice"] == row["choices"][row["answer"]])
        on_labels.append(intent["on_labels"])
        tokens.append(answer["tokens"])
    means = {"tokens": round(mean(tokens), 1), "on_labels": round(mean(on_labels), 4)}
    record = {"dtype": dtype, **means, "right": right}
    (RECORDS / f"right-{name}.json").write_text(json.dumps(record) + "\n", "utf-8")
    print(name, len(right), f"{100 * mean(right):.1f}%")


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


def write_report(name: str, dtype: str, requests: Path, answers: Path) -> None:
    """The record of the answers that `minise decide` wrote, computed in this dtype."""
    given = [json.loads(line) for line in lines(answers)]
    by_key = dict(zip(lines(requests), given, strict=True))
    tokens = mean(answer["tokens"] for answer in given)

    def ask(state: Any, questions: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = by_key[key_of(state, questions)]["answers"]
        assert found.keys() == questions.keys(), "these are answers to other requests"
        return found

    facts = {"dtype": dtype, "requests": len(given), "tokens": round(tokens, 1)}
    write_record(name, ask, facts)


def scores(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """As JevBench counts: a law's score is the share of its tests that hold it, a dimension's the
    mean over its laws, and overall the mean over the dimensions. Shares."""
    [found] = scores_of_draws(rows, np.ones((1, len(cases_of(rows)))))
    return found


def with_intervals(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """The scores, and their intervals of 95% by resampling cases."""
    C = len(cases_of(rows))
    generator = np.random.default_rng(0)
    counts = [np.bincount(generator.integers(0, C, C), minlength=C) for _ in range(RESAMPLES)]
    drawn = scores_of_draws(rows, np.stack(counts))
    found = {}
    for name, value in scores(rows).items():
        low, high = np.quantile([one[name] for one in drawn], [0.025, 0.975])
        found[name] = (value, float(low), float(high))
    return found


def cases_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["case"] for row in rows))


def scores_of_draws(
    rows: Sequence[dict[str, Any]], counts_DC: np.ndarray
) -> list[dict[str, float]]:
    """The scores where each case counts so often: in D draws, of C cases. L laws."""
    cases = {case: number for number, case in enumerate(cases_of(rows))}
    laws = list(dict.fromkeys((row["dimension"], row["relation"]) for row in rows))
    tests_CL = np.zeros((len(cases), len(laws)))
    held_CL = np.zeros((len(cases), len(laws)))
    for row in rows:
        cell = cases[row["case"]], laws.index((row["dimension"], row["relation"]))
        tests_CL[cell] += 1
        held_CL[cell] += not row["violated"]
    with np.errstate(invalid="ignore"):  # a draw may have no test of a law: nan
        shares_DL = (counts_DC @ held_CL) / (counts_DC @ tests_CL)
    of_dimension = {}
    for name in DIMENSIONS:
        columns = [number for number, (dimension, _) in enumerate(laws) if dimension == name]
        of_dimension[name] = np.nanmean(shares_DL[:, columns], axis=1)
    overall = np.mean(list(of_dimension.values()), axis=0)
    found = []
    for number, value in enumerate(overall):
        each = {name: float(shares[number]) for name, shares in of_dimension.items()}
        found.append({"overall": float(value), **each})
    return found


def read_record(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    facts, *rows = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    return facts, rows


def tables() -> dict[str, str]:
    """The tables of the page by their names."""
    times = {}
    for model in MODELS:
        path = RECORDS / f"time-{model}.json"
        if path.exists():
            times[model] = json.loads(path.read_text("utf-8"))
    made = {"jevbench": table_of_laws(times), "times": table_of_times(times)}
    return {**made, "right": table_of_right()}


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
    """CPU seconds of a request with many questions, by every way that was timed."""
    rows = []
    ways: list[str] = []
    for model, taken in times.items():
        asked = taken["standard"]  # the others were timed by one way alone
        ways = list(asked["seconds"])
        cells = [f"{seconds:.1f}" for seconds in asked["seconds"].values()]
        rows.append([f"{MODELS[model]}, `standard`", str(asked["prompts"]), *cells])
    heads = [way.replace("transformers, kept question, ", "kept, ") for way in ways]
    heads = [head.removesuffix(" at once") for head in heads]
    return table(["", "prompts", *heads], rows)


def table_of_right() -> str:
    """Banking77, with intervals of 95% (Wilson 1927)."""
    rows = []
    for model in MODELS:
        for method in METHODS:
            path = RECORDS / f"right-{model}-{method}.json"
            if path.exists():
                record = json.loads(path.read_text("utf-8"))
                n = len(record["right"])
                share = mean(record["right"])
                middle = share + Z**2 / (2 * n)
                half = Z * (share * (1 - share) / n + Z**2 / (4 * n**2)) ** 0.5
                low, high = ((middle + part) / (1 + Z**2 / n) for part in (-half, half))
                cells = [f"{MODELS[model]}, `{method}`", str(n)]
                cells.append(f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
                cells.append(f"{record['tokens']:,.0f}")
                # The first record does not have it.
                cells.append(f"{100 * record['on_labels']:.0f}" if "on_labels" in record else "-")
                rows.append(cells)
    return table(["answers", "messages", "right", "tokens", "on labels, %"], rows)


def texts() -> dict[Path, str]:
    """The page with its tables."""
    made = tables()

    def filled(found: re.Match[str]) -> str:
        return f"{found[1]}\n{made[found[2]]}\n{found[3]}"

    form = r"(<!-- table (\S+) -->).*?(<!-- end -->)"
    return {PAGE: re.sub(form, filled, PAGE.read_text("utf-8"), flags=re.DOTALL)}


def main(command: str, *words: str) -> None:
    if command == "requests":
        write_requests(Path(words[0]))
    elif command == "report":
        write_report(words[0], words[1], Path(words[2]), Path(words[3]))
    elif command == "equal":
        write_record("equal", equal, {})
    elif command == "messages":
        write_messages(Path(words[0]), Path(words[1]))
    elif command == "right":
        write_right(words[0], words[1], Path(words[2]), Path(words[3]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
