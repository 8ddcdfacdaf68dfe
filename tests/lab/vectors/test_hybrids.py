"""The rows through recurrent layers: their bytes, whom they are held to, and what is said."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "vectors"
V2, ADAPTERS = VECTORS / "v2", VECTORS / "adapters"
sys.path[:0] = [str(VECTORS), str(ADAPTERS)]

import hybrids  # noqa: E402
import make_hybrids  # noqa: E402
from packed_vectors.check import check, read  # noqa: E402
from packed_vectors.comparing import TOLERANCE, compare, explain  # noqa: E402

ROWS = sorted(path for path in V2.glob("*/*.safetensors") if path.stem != "model")
MODELS = sorted(make_hybrids.MODELS)


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
    assert len(ROWS) == 12


def test_the_program_writes_these_numbers_again(tmp_path: Path) -> None:
    make_hybrids.main(tmp_path)
    for path in ROWS:
        (tensors, about), (known, facts) = read(tmp_path / path.relative_to(V2)), read(path)
        assert about == facts
        for name, x in known.items():
            assert np.abs(tensors[name].astype(float) - x).max() < 1e-5 * (1 + np.abs(x).max())


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_minise_passes_on_qwen3_5_by_the_mask_alone(dtype: str) -> None:
    found = said("minise_row.py", dtype, "qwen3_5")
    assert len(found) == 6
    assert set(found.values()) == {""}


@pytest.mark.parametrize("path", ROWS, ids=[f"{path.parent.name}/{path.stem}" for path in ROWS])
def test_every_mistake_is_named_and_far_above_the_tolerance(path: Path) -> None:
    """In float64; the smallest is above what bfloat16 is allowed."""
    file, about = read(path)
    facts = json.loads(about["facts"])
    weights = read(path.parent / "model.safetensors")[0]
    config = make_hybrids.MODELS[path.parent.name]
    d = {name[4:]: x for name, x in file.items() if name.startswith("row.")}
    for name, (_, ways) in make_hybrids.mistakes(d).items():
        if name not in facts["words"]:
            continue
        logits = hybrids.logits(weights, config, d["tokens"], ways)
        compared = compare("logits", logits, file)
        assert explain(compared, TOLERANCE["float64"], facts["words"])[1] == [name]
        assert compared.far.max() > TOLERANCE["bfloat16"], name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_transformers_passes_with_each_prompt_alone(dtype: str) -> None:
    pytest.importorskip("transformers")
    found = said("transformers_hybrids.py", dtype)
    assert len(found) == 12
    assert set(found.values()) == {""}


@pytest.mark.slow
def test_transformers_with_a_mask_goes_on_from_the_row_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HOW", "mask")
    found = said("transformers_hybrids.py", "float32")
    assert len(found) == 12
    assert all("state and taps: all goes on from the row before" in text for text in found.values())
