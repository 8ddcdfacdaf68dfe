"""The trainings beside the shipped ones: tools/train_controls.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import train_controls
from tools.train_controls import KINDS, METHODS, SEEDS, accuracies, commands, main


def script(command: list[str]) -> str:
    return command[3] if command[2] == "minise" else command[2]


def test_shipped_models_are_evaluated_and_only_the_others_are_trained(tmp_path: Path) -> None:
    pairs = [(kind, seed) for kind in KINDS for seed in range(SEEDS[kind])]
    needed = {pair: commands(tmp_path, *pair) for pair in pairs}
    shipped = {("llama", 0), ("mistral", 0), ("qwen2", 0)}
    assert len(needed) == 26
    for which, todo in needed.items():
        expected = ["eval"] if which in shipped else ["tools.train_miniature", "eval"]
        assert [script(command) for command in todo] == expected


def test_finished_work_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failure leaves the others alone, and the same command tries it again."""
    run: list[list[str]] = []

    def done(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        run.append(command)
        if script(command) == "eval":
            folder = Path(command[command.index("-o") + 1])
            fails = folder.name == "qwen2-1" and [] not in run
            if not fails:
                write_results(folder, 0.25 * (1 + int(folder.name[-1])))
            return subprocess.CompletedProcess(command, int(fails))
        (model := Path(command[3])).mkdir(parents=True)
        (model / "model.safetensors").touch()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(train_controls.subprocess, "run", done)
    monkeypatch.setattr(sys, "argv", ["train_controls.py", str(tmp_path), "--jobs", "2"])
    main()
    printed = capsys.readouterr().out
    assert len(run) == 23 + 26
    assert "qwen2-1: failed" in printed
    assert "| qwen2 | 8 | 50.0 ± 35.4 (25.0, 75.0)" in printed
    run.clear()
    run.extend([[]] * 40)
    main()
    assert [script(command) for command in run[40:]] == ["eval"]
    assert "| qwen2 | 8 | 50.0 ± 25.0 (25.0, 50.0, 75.0)" in capsys.readouterr().out


def test_the_table_has_all_finished_runs(tmp_path: Path) -> None:
    assert len(accuracies(tmp_path).splitlines()) == 2
    write_results(tmp_path / "llama-evenly-0", 0.5)
    *_, last = accuracies(tmp_path).splitlines()
    assert last == "| llama-evenly | 8 |" + " 50.0 (50.0) |" * len(METHODS)


def write_results(folder: Path, accuracy: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cells = {name: {"accuracy": accuracy} for name in METHODS}
    results = {"results": {"miniature-k4": cells, "miniature-k8": cells}}
    (folder / "results.json").write_text(json.dumps(results))
