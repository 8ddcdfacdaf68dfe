"""The examples of docs/bridges.md run as they are written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the library, extra [transformers], is missing")

from minise import Question
from minise.bridges.harness import main
from minise.config import FAMILIES
from tests.support.bridges import make_lm, scores
from tests.support.commands import run

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "bridges.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- run: (\S+) -->\n```\w+\n(.*?)```", TEXT, re.DOTALL))


def test_every_example_of_the_page_has_a_test() -> None:
    assert list(EXAMPLES) == ["olmo2", "adapter", "birds.yaml", "birds.jsonl", "harness"]
    for name in ("olmo2", "adapter"):
        lines = [line for line in EXAMPLES[name].splitlines() if line and "import" not in line]
        assert len(lines) <= 10


def test_the_table_of_checkpoints_lists_minises_families_and_the_librarys_run(
    question: Question,
) -> None:
    rows = re.findall(r"^\|.*\| `(\w+)` \| (minise|library) \|", TEXT, re.MULTILINE)
    assert [name for name, by in rows if by == "minise"] == list(FAMILIES)
    others = [name for name, by in rows if by == "library"]
    assert len(others) == 5
    for name in others:
        lm = make_lm(name)
        expected = scores(lm, question, "separate")
        assert (scores(lm, question, "tree") - expected).abs().max() <= 1e-4
        assert expected.std() > 1e-3


def test_the_example_of_a_random_model_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(EXAMPLES["olmo2"], {})
    assert "tensor(" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # peft asks the library for it
def test_the_example_of_an_adapter_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft", reason="adapters, extra [parity], are missing")
    monkeypatch.chdir(ROOT)
    exec(EXAMPLES["adapter"], {})
    assert "tensor(" in capsys.readouterr().out


def test_the_example_of_a_harness_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets", reason="the harness, extra [lm-eval], is missing")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for name in ("birds.yaml", "birds.jsonl"):
        (tmp_path / name).write_text(EXAMPLES[name])
    program, *arguments = shlex.split(EXAMPLES["harness"])
    assert program == "minise"
    status, _, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    assert "python -m minise.bridges.harness DIR" in TEXT
    assert main(["runs/birds"]) == 0
    (folder,) = tmp_path.glob("runs/birds/lm-eval/*standard")
    (path,) = folder.iterdir()
    assert json.loads(path.read_text())["n-samples"]["birds"]["effective"] == 1
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
