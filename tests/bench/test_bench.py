"""`minise bench`: what it prints, and which arguments it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minise.commands.cli import main
from minise.names import ENGINES


def test_json_has_the_keys_of_the_contract(capsys, llama_folder: Path) -> None:
    status = main(["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert status == 0
    keys = {"workload", "device", "dtype", "machine", "floor_seconds", "rows", "left_out"}
    keys |= {"floor_gflops", "fastest_gflops"}
    assert set(report) == keys
    assert (report["workload"], report["left_out"]) == ("qasc", {})
    facts = {"cpu", "instructions", "torch", "environment", "threads"}
    assert set(report["machine"]) == facts
    for row in report["rows"]:
        assert set(row) == {"name", "seconds", "tokens", "peak_bytes", "max_difference"}


def test_text_is_a_table_with_the_floor(capsys, llama_folder: Path) -> None:
    assert main(["bench", "--model", str(llama_folder), "--rounds", "1", "--no-peers"]) == 0
    out = capsys.readouterr().out
    for name in (*ENGINES, "floor: linear layers on the tree"):
        assert f"\n{name} " in out
    assert f", torch {torch.__version__}, " in out.splitlines()[1]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--rounds", "0"], ["--rounds 0"]),
        (["--shape", "gpt-2"], ["--shape", "gpt-2"]),
        (["--workload", "huge"], ["--workload", "huge"]),
        (["--model", "x/y", "--random-weights"], ["--model", "--random-weights"]),
        (["--revision", "main"], ["--revision", "--model"]),
        (["--plot", "no/such/folder/x.png"], ["no/such/folder/x.png", "no such folder"]),
        (["--plot", "."], [".: a folder", "name a file"]),
        (["--plot", "x.txt"], ["x.txt", "end it in .png or .pdf or .svg"]),
        (["--tokens-per-pass", "0"], ["--tokens-per-pass 0"]),
        (["--tokens-per-pass", "9", "--workload", "generate"], ["--tokens-per-pass", "generate"]),
        (["--free-rows", "--workload", "generate"], ["--free-rows", "generate"]),
    ],
)
def test_unusable_arguments_are_one_line(capsys, arguments, parts) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err
