"""--dry-run: what would be run, said without loading a weight or writing a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minise.loading.config_json import config_from_dict
from minise.loading.placement import pass_bytes
from minise.names import LAYOUTS
from tests.loading.test_placement import LLAMA_8B, of_shape
from tests.support.commands import assert_one_line, run
from tests.support.tiny import FAMILIES, make_tokenizer

ASK = """\
weights/tiny-llama: float32 on cpu
memory: weights 6.8 MiB, free 4.0 GiB
largest pass: 1,252 tokens, about 20.2 MiB more

                                   questions   prompts    passes  separate     dense      tree
question  self-ensemble  tree              1        40         1     2,060     1,709     1,252
question  standard       tree              1         1         1        74        74        74

separate, dense, tree: the tokens that each engine runs. Nothing was run or written.
"""
EVAL = """\
weights/tiny-llama: float32 on cpu
memory: weights 1.6 MiB in 4 bits (nf4-double), free 4.0 GiB
largest pass: 245 tokens, about 4.3 MiB more

                                    questions   prompts    passes  separate     dense      tree
miniature  standard       tree              4         4         4       280       280       280
miniature  self-ensemble  tree              4        24         4     1,209       994       884

separate, dense, tree: the tokens that each engine runs. Nothing was run or written.
"""


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GiB are free, and no weight may be read."""
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: 2**32)
    monkeypatch.setattr("minise.loading.checkpoint.read_weights", None)


def test_ask_counts_prompts_and_tokens_without_running(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "ask", "--dry-run") == (0, ASK, "")
    status, out, err = run(capsys, "ask", "--dry-run", "--json", "--engine", "separate")
    report = json.loads(out)
    assert (status, err) == (0, "")
    first, second = report.pop("tasks")["question"].values()
    assert report.pop("pass_bytes") < report["weights_bytes"]
    assert report == {
        "model": "weights/tiny-llama",
        "dtype": "float32",
        "device": "cpu",
        "why": "",
        "quantize": None,
        "weights_bytes": 7084800,
        "free_bytes": 2**32,
        "planned": False,
    }
    assert first == {
        "engine": "separate",
        "questions": 1,
        "prompts": 40,
        "passes": 40,
        "tokens": {"separate": 2060, "dense": 1709, "tree": 1252},
        "largest_pass": 54,
        "written": 0,
    }
    assert second["tokens"] == dict.fromkeys(LAYOUTS, 74)


def test_ask_leaves_out_the_methods_that_a_run_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = [part for i in range(30) for part in ("--choice", f"choice {i}")]
    status, out, err = run(capsys, "ask", "--dry-run", "--question", "Which?", *many)
    assert status == 0
    assert "standard" not in out
    assert err.startswith("minise: standard is left out: 30 choices")


def test_a_question_that_a_run_refuses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    many = [part for i in range(30) for part in ("--choice", f"choice {i}")]
    ask = ("ask", "--dry-run", "--question")
    parts = ["30 choices in one prompt"]
    assert_one_line(*run(capsys, *ask, "Which?", *many, "--method", "standard"), parts)
    two = ("--choice", "yes", "--choice", "no")
    parts = ["positions for 512"]
    assert_one_line(*run(capsys, *ask, "word " * 600, *two), parts)


def evaluated(tmp_path: Path, *more: object) -> tuple[object, ...]:
    command = (
        "eval",
        "--task",
        "miniature",
        "--questions",
        4,
        "--trials",
        3,
        "-o",
        tmp_path / "run",
    )
    return (*command, "--method", "self-ensemble,vector-scaling", *more, "--dry-run")


def test_eval_counts_questions_and_tokens_without_running(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    status, out, err = run(capsys, *evaluated(tmp_path, "--quantize", "nf4-double"))
    assert status == 0
    assert list(tmp_path.iterdir()) == []
    assert out == EVAL
    assert "vector-scaling" in err  # too few questions for it


@pytest.mark.usefixtures("undrawn")
def test_eval_counts_the_same_tokens_as_a_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    names = "self-ensemble,without-mask,cyclic,standard"
    methods = ("--method", names, "--seed", "0,1")
    status, out, _ = run(capsys, *evaluated(tmp_path, *methods, "--json"))
    counted = json.loads(out)["tasks"]["miniature"]
    monkeypatch.undo()
    assert run(capsys, *evaluated(tmp_path, *methods)[:-1])[0] == status == 0
    for name, row in counted.items():
        lines = (tmp_path / "run" / f"samples-miniature-{name}.jsonl").read_text().splitlines()
        samples = [json.loads(line) for line in lines]
        assert row["questions"] == row["passes"] == len(samples) == 8
        assert row["tokens"]["tree"] == sum(sample["tokens"] for sample in samples)
        assert row["largest_pass"] == max(sample["tokens"] for sample in samples)


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """An 8B model of which only config.json and tokenizer.json are there."""
    of_shape(tmp_path, LLAMA_8B)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_model_that_does_not_fit_is_refused_as_in_a_run(capsys, planned: Path) -> None:
    parts = [f"{planned}: its weights take 5.6 GiB in bfloat16, and 4.0 GiB are free", "smaller"]
    command = ("ask", "--model", planned, "--dry-run", "--quantize", "nf4")
    assert_one_line(*run(capsys, *command), parts)


def test_a_model_without_weights_can_be_planned(capsys, planned: Path, monkeypatch) -> None:
    monkeypatch.setattr("minise.loading.placement.for_bfloat16", lambda: True)
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: 16 * 2**30)
    status, out, err = run(capsys, "ask", "--model", planned, "--dry-run")
    assert (status, err) == (0, "")
    first, second = out.splitlines()[:2]
    why = "as it is stored; float32 would take 29.9 GiB, and 16.0 GiB are free"
    assert first == f"{planned}: bfloat16 on cpu, {why}"
    assert second == "memory: weights 15.0 GiB, free 16.0 GiB"


def test_a_plan_for_another_machine_needs_no_card(capsys, planned: Path, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    command = ("ask", "--model", planned, "--dry-run", "--device", "cuda:1", "--memory")
    status, out, err = run(capsys, *command, "24GB")
    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == [
        f"{planned}: bfloat16 on cuda:1, as it is stored",
        "memory: weights 15.0 GiB, free 22.4 GiB (24.0 GB, as --memory says)",
    ]
    parts = ["take 15.0 GiB in bfloat16, and 7.5 GiB are free on cuda:1; --quantize nf4 takes 5.6"]
    assert_one_line(*run(capsys, *command, "8GB"), parts)
    assert json.loads(run(capsys, *command, "0.024TiB", "--json")[1])["planned"] is True


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--memory", "24GB"], "--memory is for a plan; give it with --dry-run"),
        (["--dry-run", "--memory", "24"], "--memory: 24: give a size, as 24GB or 80GiB"),
        (["--dry-run", "--memory", "-1GB"], "--memory"),
        (["--dry-run", "--memory", "8GB", "--device", "cudda"], 'device "cudda" is unknown'),
    ],
)
def test_a_plan_that_makes_no_sense_is_one_line(capsys, options: list[str], part: str) -> None:
    assert_one_line(*run(capsys, "ask", *options), [part])


def test_a_long_pass_takes_more_memory() -> None:
    """More of it by tokens; a mask by their square; an unpacked matrix whatever they are."""
    config = config_from_dict(FAMILIES["llama"])
    plain = [pass_bytes(config, torch.float32, T, "tree", False) for T in (100, 200, 4000)]
    assert plain == sorted(plain)
    assert pass_bytes(config, torch.bfloat16, 200, "tree", False) == plain[1] // 2
    assert pass_bytes(config, torch.float32, 200, "dense", False) == plain[1] + 200**2
    assert pass_bytes(config, torch.float32, 200, "tree", True) == plain[1] + 4 * 32 * 48
