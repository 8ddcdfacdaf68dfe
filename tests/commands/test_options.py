"""Options that several commands share: their groups in the help, dtypes and threads."""

from __future__ import annotations

import argparse
import re

import pytest
import torch

from minise.commands import options
from minise.loading.names import SHORT_DTYPES
from tests.support.commands import Q, run


def test_options_are_listed_in_groups(capsys) -> None:
    for command, titles in {
        "ask": ["options", "question", "method", "model", "output"],
        "verify": ["options", "model", "output", "question", "method"],
        "eval": ["options", "question", "method", "model", "output"],
    }.items():
        with pytest.raises(SystemExit):
            run(capsys, command, "--help")
        assert re.findall(r"^(\w+):$", capsys.readouterr().out, re.M) == titles


@pytest.mark.parametrize(("short", "long"), SHORT_DTYPES.items())
def test_dtypes_have_short_names(capsys, llama_folder, short: str, long: str) -> None:
    command = ("ask", "--model", llama_folder, *Q, "--trials", 1, "--json", "--dtype")
    assert run(capsys, *command, short) == run(capsys, *command, long)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that torch would use. Nothing is set."""
    numbers: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return numbers


def test_a_small_model_runs_on_one_thread(capsys, monkeypatch, llama_folder, threads) -> None:
    """Several threads would wait for each other. Torch decides for a large model, and for any model
    if the environment sets the number of threads."""
    command = ("ask", "--model", llama_folder, *Q, "--trials", 1)
    run(capsys, *command)
    assert threads == [1]
    run(capsys, *command, "--threads", 3)
    assert threads == [1, 3]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    run(capsys, *command)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("minise.commands.model.SMALL", 10)
    run(capsys, *command)
    assert threads == [1, 3]


@pytest.mark.usefixtures("undrawn")
def test_verify_and_eval_accept_threads_too(capsys, tmp_path, llama_folder, threads) -> None:
    model = ("--model", llama_folder, "--threads", 5)
    assert run(capsys, "verify", *model, "--trials", 1)[0] == 0
    task = ("--task", "miniature", "--questions", 2, "--method", "standard")
    assert run(capsys, "eval", *task, *model, "--output-path", tmp_path)[0] == 0
    assert threads == [5, 5]


def test_columns_can_be_named_in_one_option_or_in_several() -> None:
    parser = argparse.ArgumentParser()
    options.add_columns(parser)
    both = {"answer": "Right Answer", "id": "Nr."}
    once = parser.parse_args(["--columns", "answer=Right Answer,id=Nr."])
    twice = parser.parse_args(["--columns", "answer=Right Answer", "--columns", "id=Nr."])
    assert once.columns == twice.columns == both
    quoted = parser.parse_args(["--columns", "answer='Right Answer',id=\"Nr.\""])
    assert quoted.columns == both
    assert parser.parse_args([]).columns == {}
