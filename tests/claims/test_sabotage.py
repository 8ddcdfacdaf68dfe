"""A test of the tests: each fault of support/faults.py, planted, makes the named tests fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.faults import FAULTS, run_planted
from tests.support.processes import PROCESSES

ROOT = Path(__file__).parents[2]
GOLDENS = "tests/claims/test_goldens.py"
EQUIVALENCE = "tests/claims/test_equivalence.py"
MODEL = "tests/core/test_model.py"

CAUGHT_BY = {
    "swapped norms": (GOLDENS,),
    "dropped key bias": (GOLDENS,),
    "dropped value bias": (GOLDENS,),
    "key heads tiled instead of repeated": (GOLDENS,),
    "value heads tiled instead of repeated": (
        GOLDENS,
        f"{MODEL}::test_query_heads_share_key_value_heads_in_blocks",
    ),
    "inverted mask": (GOLDENS,),
    "wrong epsilon": (f"{MODEL}::test_rms_norm_is_its_formula", GOLDENS),
    "norms narrowed to float32": (GOLDENS, f"{MODEL}::test_float64_is_not_narrowed_anywhere"),
    "windows by index": (
        f"{MODEL}::test_a_window_is_measured_by_position_not_by_index",
        EQUIVALENCE,
    ),
    "a window of one more": (
        f"{MODEL}::test_a_window_of_n_shows_n_positions_including_the_tokens_own_position",
        GOLDENS,
    ),
    "interleaved rotary pairs": (GOLDENS, "tests/core/test_rope.py"),
    "rotation the other way": ("tests/core/test_rope.py",),
    "angles in the model's dtype": ("tests/core/test_rope.py",),
    "positions not re-encoded": ("tests/core/test_layout.py", EQUIVALENCE),
    "no block mask": ("tests/core/test_layout.py", EQUIVALENCE),
    "the paper's misprinted index_j": ("tests/core/test_layout.py", EQUIVALENCE),
    "a flat layout that merges": ("tests/core/test_layout.py",),
    "a tree that forgets windows": ("tests/core/test_tree.py",),
    "a tree that reads what comes after": ("tests/core/test_tree.py",),
    "query heads of other key/value heads": (GOLDENS,),
    "null option outside the softmax": ("tests/core/test_method.py",),
    "the mean (Eq. 2) read literally": ("tests/core/test_method.py",),
    "labels of another order": (
        "tests/core/test_method.py::test_standard_inference_is_one_prompt_with_all_choices"
        "_and_no_null_option",
        "tests/core/test_method.py",
    ),
}


def test_every_fault_names_the_tests_that_catch_it() -> None:
    assert set(CAUGHT_BY) == set(FAULTS)


@pytest.mark.parametrize("name", CAUGHT_BY)
def test_a_planted_fault_is_caught(name: str, tmp_path: Path) -> None:
    for number, test in enumerate(CAUGHT_BY[name]):
        output = tmp_path / f"{number}.txt"
        process = PROCESSES.Process(target=run_planted, args=(name, test, str(output)))
        process.start()
        process.join()
        shown = output.read_text()
        assert process.exitcode == 1, f"{test} did not fail:\n{shown[-2000:]}"
        # It must be the promise that broke, not the import or a fixture.
        assert "\nE  " in shown
        assert "ImportError" not in shown
        assert "AttributeError" not in shown
        assert "ERROR" not in shown


def test_without_a_fault_the_plugin_changes_nothing() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.support.faults",
            "tests/core/test_layout.py",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
