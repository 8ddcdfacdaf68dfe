"""The rows through recurrent layers: their bytes, whom they are held to, and what is said."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
V2, ADAPTERS = VECTORS / "v2", VECTORS / "adapters"
sys.path[:0] = [str(VECTORS), str(ADAPTERS)]

import make_hybrids  # noqa: E402
import planted  # noqa: E402
from packed_vectors.check import check, read  # noqa: E402
from packed_vectors.comparing import TOLERANCE  # noqa: E402

ROWS = sorted(path for path in V2.glob("*/*.safetensors") if path.stem != "model")


def said(adapter: str, dtype: str, model: str = "") -> dict[str, str]:
    found = {}
    for one in check(ADAPTERS / adapter, dtype, V2 / model):
        if one.kind == "logits" and one.far is not None:
            found[one.row] = one.said
    return found


def test_every_file_has_its_checksum() -> None:
    lines = (V2 / "SHA256SUMS").read_text().splitlines()
    sums = dict(reversed(line.split("  ")) for line in lines)
    assert set(sums) == {path.relative_to(V2).as_posix() for path in V2.glob("*/*.safetensors")}
    for name, digest in sums.items():
        assert hashlib.sha256((V2 / name).read_bytes()).hexdigest() == digest
    assert len(ROWS) == 14


def test_the_program_writes_these_numbers_again(tmp_path: Path) -> None:
    make_hybrids.main(tmp_path)
    for path in ROWS:
        (tensors, about), (known, facts) = read(tmp_path / path.relative_to(V2)), read(path)
        assert about == facts
        for name, x in known.items():
            assert tensors[name].shape == x.shape
            assert np.abs(tensors[name].astype(float) - x).max() < 1e-5 * (1 + np.abs(x).max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("adapter", ["minise_row.py", "minise_cached.py"])
def test_minise_passes_on_qwen3_5_by_the_mask_alone(adapter: str, dtype: str) -> None:
    """In one pass, and in two, of which the second goes on from kept states."""
    found = said(adapter, dtype, "qwen3_5")
    assert len(found) == 7
    assert set(found.values()) == {""}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_mistake_is_named_and_far_above_the_tolerance(dtype: str) -> None:
    """Each result of an operation is rounded to the dtype. The smallest is far above what even
    bfloat16 is allowed."""
    found = list(planted.of_hybrids(dtype))
    right = [one for one in found if not one.name]
    assert len(right) == len(ROWS)
    assert max(one.far["logits"] for one in right) < TOLERANCE[dtype]
    wrong = [one for one in found if one.name]
    assert len(wrong) > 200
    assert [one for one in wrong if not one.named] == []
    assert min(one.far["logits"] for one in wrong) > 1.5 * TOLERANCE["bfloat16"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_transformers_passes_with_each_prompt_alone(dtype: str) -> None:
    pytest.importorskip("transformers")
    found = said("transformers_hybrids.py", dtype)
    assert len(found) == 14
    assert set(found.values()) == {""}


@pytest.mark.slow
def test_transformers_with_a_mask_goes_on_from_the_row_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HOW", "mask")
    found = said("transformers_hybrids.py", "float32")
    assert len(found) == 14
    for row, text in found.items():
        words = "nothing is rolled back" if "cached" in row else "all goes on from the row before"
        assert f"state and taps: {words}" in text, row


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "rows", "words"),
    [
        ("axes", 7, "positions are right, borders are not read (three axes of positions for four)"),
        ("cached", 2, "the state alone: nothing is rolled back"),
    ],
)
def test_what_transformers_does_otherwise_is_named(
    how: str, rows: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three axes of positions, where the fourth says the borders; Cache.crop."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("HOW", how)
    found = said("transformers_hybrids.py", "float32")
    assert len(found) == rows
    assert all(text.startswith(words) for text in found.values())
