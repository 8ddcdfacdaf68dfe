"""Our decoder against logits of the reference library, frozen by `python -m tools.make_goldens`."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.reference.support.tiny import load_folder

GOLDENS = Path(__file__).parents[1] / "support" / "goldens"
CASES = sorted(path.name for path in GOLDENS.iterdir())


@pytest.mark.parametrize(
    ("run", "dtype", "tolerance"),
    [
        ("causal", torch.float64, 1e-9),
        ("packed", torch.float64, 1e-9),
        ("packed", torch.float32, 1e-4),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_reference_librarys_on_frozen_checkpoints(
    tmp_path: Path, case: str, run: str, dtype: torch.dtype, tolerance: float
) -> None:
    folder = GOLDENS / case
    golden = load_file(folder / "golden.safetensors")
    decoder = load_folder(folder, tmp_path, dtype).decoder
    with torch.no_grad():
        hidden = decoder(golden[f"{run}.tokens"], golden[f"{run}.positions"], golden[f"{run}.mask"])
        logits = decoder.logits(hidden)
    expected = golden[f"{run}.logits"]
    assert logits.dtype == dtype
    assert logits.shape == expected.shape
    assert expected.abs().max() > 5
    assert (logits - expected).abs().max() <= tolerance
