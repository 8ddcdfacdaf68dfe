"""A test of the tests: each fault of support/faults.py, planted, makes the named test fail."""

import multiprocessing
from pathlib import Path

import pytest

from tests.reference.support.faults import FAULTS, run_planted

# Processes forked from one that has imported the large libraries, but not the package.
STARTED = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
PROCESSES = multiprocessing.get_context(STARTED)
PROCESSES.set_forkserver_preload(["torch", "pytest", "tokenizers", "safetensors.torch"])

GOLDENS = "tests/reference/claims/test_goldens.py"
EQUIVALENCE = "tests/reference/claims/test_equivalence.py"
MODEL = "tests/reference/core/test_model.py"
LAYOUT = "tests/reference/core/test_layout.py"
ROPE = "tests/reference/core/test_rope.py"
ATTENTION = "tests/reference/core/test_attention.py"
ENGINES = "tests/reference/core/test_engines.py"

# A file, and a part of the test's name where only one of its tests should see the fault.
CAUGHT_BY = {
    "swapped norms": (GOLDENS, ""),
    "dropped key bias": (GOLDENS, "qwen2"),
    "dropped value bias": (GOLDENS, "qwen2"),
    "key heads tiled instead of repeated": (GOLDENS, ""),
    "value heads tiled instead of repeated": (MODEL, "share_key_value_heads_in_blocks"),
    "inverted mask": (GOLDENS, ""),
    "wrong epsilon": (MODEL, "rms_norm_is_its_formula"),
    "norms narrowed to float32": (MODEL, "float64_is_not_narrowed"),
    "windows by index": (MODEL, "by_position_not_by_index"),
    "a window of one more": (MODEL, "a_window_of_n_shows_n"),
    "interleaved rotary pairs": (ROPE, ""),
    "rotation the other way": (ROPE, ""),
    "angles in the model's dtype": (ROPE, ""),
    "positions not re-encoded": (EQUIVALENCE, ""),
    "no block mask": (EQUIVALENCE, ""),
    "the paper's misprinted index_j": (LAYOUT, ""),
    "a flat layout that merges": (LAYOUT, ""),
    "a chunk that forgets a key": (ATTENTION, "any_mask_gives_a_softmax"),
    "a chunk with the mask of other rows": (ATTENTION, "any_mask_gives_a_softmax"),
    "a chunk that reads from the first token on": (EQUIVALENCE, "of_every_token"),
    "the rows of the top layer in another order": (ENGINES, "those_of_separate_runs"),
    "equal bits that forget windows": (ATTENTION, "any_mask_gives_a_softmax"),
    "equal bits that read what comes after": (ATTENTION, "any_mask_gives_a_softmax"),
    "equal bits that forget far keys": (ATTENTION, "any_mask_gives_a_softmax"),
}


def test_every_fault_names_the_test_that_catches_it() -> None:
    assert set(CAUGHT_BY) == set(FAULTS)


# The quick suite plants some of each kind, .ci/run all.
QUICK = (
    "swapped norms",
    "windows by index",
    "rotation the other way",
    "no block mask",
    "positions not re-encoded",
    "the paper's misprinted index_j",
    "a chunk that forgets a key",
    "equal bits that forget windows",
)


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    marks = [] if name in QUICK else [pytest.mark.slow]
    if name.startswith("equal bits"):
        marks.append(pytest.mark.lab)
    return marks


PLANTED = [pytest.param(name, marks=marks_of(name)) for name in CAUGHT_BY]


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_caught(name: str, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    process = PROCESSES.Process(target=run_planted, args=(name, *CAUGHT_BY[name], str(output)))
    process.start()
    process.join()
    shown = output.read_text()
    assert process.exitcode == 1, f"{CAUGHT_BY[name]} did not fail:\n{shown[-2000:]}"
    # It must be the promise that broke, not the import or a fixture.
    assert "\nE  " in shown
    assert not [
        word for word in ("ImportError", "AttributeError", "TypeError", "ERROR") if word in shown
    ]
