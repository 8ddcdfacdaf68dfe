"""What tools/bench/ways.py records is what docs/costs.md shows."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tools.bench import costs
from tools.bench import ways as bench


def line(work: str, cpu: dict[str, list[float]], machine: str = "mine") -> dict[str, Any]:
    return {
        "model": "src-smollm2",
        "dtype": "float32",
        "work": work,
        "machine": machine,
        "ways": {name: {"cpu": seconds} for name, seconds in cpu.items()},
    }


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(costs, "BESIDE", tmp_path / "beside.jsonl")
    return tmp_path / "beside.jsonl"


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def test_a_row_has_the_medians_over_all_rounds_by_tree_in_the_same_round(beside: Path) -> None:
    """And a line in which a way ran once does not count."""
    recorded = [
        line("1400", {"tree": [9.0], "packed": [6.0]}),
        line("qasc", {"tree": [1.0], "packed": [20.0]}),
        line("500", {"tree": [1.0, 1.0], "packed": [2.0, 2.0]}),
        line("1400", {"tree": [3.0, 2.0], "packed": [9.0, 1.0]}),
        line("1400", {"tree": [3.0], "llama.cpp": [6.0]}),  # another part of the ways
        line("1400", {"tree": [3.0], "llama.cpp": [9.0]}),
    ]
    beside.write_text("".join(json.dumps(one) + "\n" for one in recorded))
    assert cells(costs.as_beside({})) == [
        ["packed", "0.67", "1.33", "2.00", "2"],
        ["llama.cpp", "2.50", "2.50", "2.50", "1"],
    ]


def test_of_several_ways_of_a_library_the_fastest_is_shown(beside: Path) -> None:
    ways = {"tree": [2.0, 2.0]}
    ways["transformers, kept question, 1 at once"] = [9.0, 9.0]
    ways["transformers, kept question, 8 at once"] = [3.0, 3.0]
    beside.write_text(json.dumps(line("qasc", ways)) + "\n")
    assert cells(costs.as_beside({})) == [["transformers", "1.50", "1.50", "1.50", "1"]]


def test_a_question_of_the_other_kind_of_cpu_has_a_row_with_its_rounds(beside: Path) -> None:
    """In italics where it is one."""
    kept = "transformers, kept question, 8 at once"
    recorded = [
        line("2800", {"tree": [4.0], kept: [6.0]}),
        line("qasc", {"tree": [1.0, 3.0], "transformers, the rest of the token tree": [2.0, 3.0]}),
    ]
    text = "".join(json.dumps(one) + "\n" for one in recorded)
    beside.with_name("xeon.jsonl").write_text(text)
    assert cells(costs.as_questions({})) == [
        ["135M", "float32", "QASC", "2.0", "-", "1.50", "2"],
        ["135M", "float32", "2,800", "4.0", "1.50", "-", "*1*"],
    ]


def test_lines_of_two_machines_are_refused(beside: Path) -> None:
    recorded = [line("qasc", {"tree": [2.0]}), line("1400", {"tree": [2.0]}, machine="another")]
    beside.write_text("".join(json.dumps(one) + "\n" for one in recorded))
    with pytest.raises(AssertionError, match="several machines"):
        costs.as_beside({})


def test_what_a_page_only_printed_is_shown_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it did not print is left open."""
    line = {"model": "src-qwen05", "dtype": "bfloat16", "machine": "A CPU (family 1)"}
    line |= {"commit": "abc", "source": "printed", "load": 0.5, "peak_gb": 1.44}
    printed = {**line, "rounds": 3, "question": {"all": 3.1}}
    monkeypatch.setattr(costs, "PARTS", tmp_path / "parts.jsonl")
    costs.PARTS.write_text(json.dumps(printed) + "\n")
    row = "| 0.5B | bfloat16 | A CPU | 0.5 | 1.4 | 3.1 | - | - | 3 | abc | printed |"
    assert costs.as_parts({}).splitlines()[2:] == [row]


def test_bench_records_every_round_of_every_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lines.jsonl"
    monkeypatch.setattr(bench, "peers", lambda *_: {})
    words = ["bench", "--work", "truthfulqa,30", "--rounds", "2", "--record", str(file)]
    monkeypatch.setattr(sys, "argv", words)
    bench.main()
    recorded = [json.loads(text) for text in file.read_text().splitlines()]
    assert [one["work"] for one in recorded] == ["truthfulqa", "30"]
    for one in recorded:
        assert {"tree", "packed", "tree, equal bits", bench.FLOOR} <= one["ways"].keys()
        assert all(len(way["cpu"]) == len(way["wall"]) == 2 for way in one["ways"].values())
        assert sum(one["stages"].values()) == pytest.approx(1)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_long_pass_is_run_twice_for_a_single_round_where_the_first_run_is_slower(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "LONG", 0.0)
    runs = {"tree": 0, "packed": 0, "of FlexAttention": 0}

    def way(name: str) -> Tensor:
        runs[name] += 1
        return torch.full((1, 2), float(runs[name]))

    timings = bench.timed({name: partial(way, name) for name in runs}, rounds)
    if rounds == 1:
        assert runs == {"tree": 2, "packed": 1, "of FlexAttention": 2}
    else:
        assert runs == dict.fromkeys(runs, 3)
    assert all(len(timing.cpu) == rounds for timing in timings.values())
    assert all(timing.distance == 0 for timing in timings.values())
