"""vectors/ as a package of its own: a wheel with the vectors inside, its command, the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
RIGHT = (VECTORS / "adapters" / "numpy_operators.py").read_text("utf-8")
PLUGIN = ("-m", "pytest", "-p", "packed_vectors.pytest_plugin", "--packed-vectors")


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Its status and what it prints, in a folder without tests."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(VECTORS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def write(folder: Path, old: str = "", new: str = "") -> str:
    """An adapter of one operator; old and new: a mistake that is planted in it."""
    text = RIGHT.replace(old, new) if old else RIGHT
    assert text != RIGHT or not old
    for operator in ("attention", "gated_delta_rule", "mamba2", "short_convolution"):
        text = text.replace(f"def {operator}(", f"def other_{operator}(")
    (folder / "mine.py").write_text(text)
    return "mine.py"


def test_the_plugin_has_a_test_for_each_row_and_must_and_names_them(tmp_path: Path) -> None:
    status, said = run(tmp_path, *PLUGIN, write(tmp_path), "-v")
    assert status == 0, said
    assert "operators/kda/tree[float32] PASSED" in said
    assert "operators/kda/tree[float32] MUST 6: a state goes on from the parent's" in said
    assert "FAILED" not in said


def test_a_planted_mistake_fails_its_row_and_its_must_alone(tmp_path: Path) -> None:
    old = "state = states[parent] if parent >= 0 else"
    new = "state = states[t - 1] if parent >= 0 else"
    status, said = run(tmp_path, *PLUGIN, write(tmp_path, old, new), "-v")
    assert status == 1
    tree = "operators/kda/tree[float32]"
    assert f"{tree} FAILED" in said
    assert f"{tree} MUST 6: a state goes on from the parent's, whichever row that is FAILED" in said
    fades = "a state fades by the decays on the path, each once, before a token writes"
    assert f"{tree} MUST 7: {fades} PASSED" in said
    assert "operators/kda/documents[float32] PASSED" in said  # there the parent is the row before
    assert "go on from the row before" in said


def test_an_adapter_that_is_missing_is_a_usage_error(tmp_path: Path) -> None:
    status, said = run(tmp_path, *PLUGIN, "nowhere.py")
    assert status == 4
    assert "nowhere.py: no such file; give an adapter" in said


def test_the_command_writes_what_a_machine_reads(tmp_path: Path) -> None:
    command = ("-m", "packed_vectors", write(tmp_path), "float16", "--json", "results.json")
    status, said = run(tmp_path, *command)
    assert status == 0, said
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["format"], found["dtype"], found["device"]) == ("1.0", "float16", "cpu")
    assert {"python", "packed_vectors", "numpy"} <= set(found["versions"])
    assert all(one["passed"] and one["far"] <= one["limit"] for one in found["results"])
    assert {one["row"] for one in found["results"]} >= {"operators/kda/continued"}
    assert {one["why"] for one in found["skipped"]} >= {"the adapter gives no grad_q"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("nowhere.py",), "nowhere.py: no such file"), (("mine.py", "int8"), "invalid choice")],
)
def test_unusable_arguments_are_one_line_and_status_2(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    write(tmp_path)
    status, said = run(tmp_path, "-m", "packed_vectors", *arguments)
    assert status == 2
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"out": np.stack(outs)', '"out": np.stack(outs)[:, :1]', "(72, 2, 8)"),
        ('"out": np.stack(outs)', '"out": np.stack(outs)[..., :1]', "out: its shape is"),
        ('"out": np.stack(outs)', '"output": np.stack(outs)', "output is no result; it has "),
    ],
)
def test_results_that_cannot_be_compared_are_one_line_and_status_2(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    status, said = run(tmp_path, "-m", "packed_vectors", write(tmp_path, old, new))
    assert status == 2
    assert words in said
    assert "Traceback" not in said


def test_a_mistake_that_changes_nothing_in_a_result_is_not_its_name(tmp_path: Path) -> None:
    """Some numbers of a mistake are kept. A token whose other numbers alone are wrong has those of
    each mistake that leaves this result as it is."""
    old, new = '"out": np.stack(outs)', '"out": np.stack(outs) + (np.arange(v.shape[-1]) > 40)'
    status, said = run(tmp_path, "-m", "packed_vectors", write(tmp_path, old, new), "float32")
    assert status == 1
    wrong = [line for line in said.splitlines() if line.startswith("FAIL")]
    assert wrong
    for line in wrong:
        assert " out " in line
        assert "no known mistake" in line
        assert ";" not in line


def test_a_result_that_is_not_finite_is_called_so(tmp_path: Path) -> None:
    old, new = "u = v[t]", "u = v[t] * (np.nan if parent < 0 else 1)"
    status, said = run(tmp_path, "-m", "packed_vectors", write(tmp_path, old, new), "float32")
    assert status == 1
    assert "not finite (72 of 72, first 0)" in said


@pytest.mark.slow
def test_a_wheel_holds_the_vectors_and_runs_without_torch(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path)]
    done = subprocess.run([*build, str(VECTORS)], capture_output=True, text=True)
    if done.returncode and "hatchling" in done.stderr:
        pytest.skip("the program that builds wheels could not be fetched")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("packed_vectors-1.0.0-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    for part in ("v1", "v2"):
        for path in (VECTORS / part).rglob("*.safetensors"):
            assert f"packed_vectors/{path.relative_to(VECTORS).as_posix()}" in held
    assert {"packed_vectors/musts.json", "packed_vectors/facts.schema.json"} <= held
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = subprocess.run(
        [sys.executable, "-m", "packed_vectors", write(tmp_path), "float32"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" not run\n")
