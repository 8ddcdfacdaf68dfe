"""Our decoder against the reference library, with every token, position and mask entry the same."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import transformers
from transformers.models.llama import modeling_llama

from minise import Config, load
from minise.model import RMSNorm
from tests.reference.support.reference import (
    CASES,
    float64_islands,
    packed_layout,
    reference_logits,
    runs,
    write_checkpoint,
)
from tests.reference.support.tiny import load_folder, read_config

RUNS = ["causal", "packed"]
INPUTS = ["tokens", "positions", "mask"]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("parity")
    return {name: write_checkpoint(case, root / name) for name, case in CASES.items()}


@pytest.fixture(params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(name: str, folders: dict[str, Path]) -> Path:
    return folders[name]


def config_of(folder: Path) -> Config:
    return read_config(json.loads((folder / "config.json").read_text()))


@torch.no_grad()
def our_logits(
    folder: Path, tokens: Tensor, positions: Tensor, mask: Tensor, dtype: torch.dtype
) -> Tensor:
    decoder = load(str(folder), dtype=dtype).decoder
    return decoder.logits(decoder(tokens, positions, mask))


def library_mask(run: str, mask: Tensor) -> Tensor | None:
    """A plain prompt is left to the library's own masking; a packed one it cannot know."""
    return None if run == "causal" else mask


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("run", RUNS)
def test_logits_equal_those_of_the_library(folder: Path, run: str, dtype: torch.dtype) -> None:
    """In float32 the library is untouched. In float64 it computes in float64 throughout."""
    tokens, positions, mask = runs()[run]
    with float64_islands() if dtype == torch.float64 else nullcontext():
        expected = reference_logits(folder, tokens, positions, library_mask(run, mask), dtype)
    ours = our_logits(folder, tokens, positions, mask, dtype)
    assert ours.dtype == expected.dtype == dtype
    assert ours.shape == expected.shape == (len(tokens), 96)
    assert (ours - expected).abs().max() <= TOLERANCE[dtype]


def test_each_packed_branch_equals_the_library_on_that_prompt_alone(folder: Path) -> None:
    """The library's own masking and windows on plain prompts, against one packed pass of ours."""
    layout = packed_layout()
    ours = our_logits(folder, layout.tokens, layout.positions, layout.mask, torch.float64)
    for branch in range(len(layout.ends)):
        rows = layout.paths()[branch]
        with float64_islands():
            expected = reference_logits(
                folder, layout.tokens[rows], torch.arange(len(rows)), None, torch.float64
            )
        assert (ours[rows] - expected).abs().max() <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.1), (torch.float16, 0.02)], ids=str
)
def test_half_precision_runs_whole_and_stays_near_float64(
    folder: Path, run: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Far from position 0, where a rotary table rounded to bfloat16 would be off by whole turns."""
    tokens, positions, mask = runs()[run]
    positions = positions + 1000
    with float64_islands():
        expected = reference_logits(folder, tokens, positions, mask, torch.float64)
    ours = our_logits(folder, tokens, positions, mask, dtype)
    assert ours.dtype == dtype
    assert ours.isfinite().all()
    assert (ours.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_norm_rounds_where_the_library_rounds(dtype: torch.dtype) -> None:
    """Bit for bit: float32 until the mean square is divided out, then the weight in half precision.
    The order moves single bits, too little for the comparison of whole models to see."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(50, 32, generator=generator).to(dtype)
    weight = (1 + 0.5 * torch.randn(32, generator=generator)).to(dtype)
    ours, librarys = RMSNorm(32, 1e-5).to(dtype), modeling_llama.LlamaRMSNorm(32, 1e-5).to(dtype)
    ours.weight.data = librarys.weight.data = weight
    assert torch.equal(ours(x), librarys(x))


def test_the_frozen_logits_are_those_of_the_installed_library(name: str, tmp_path: Path) -> None:
    """Ties the goldens to CASES and to this library version; if not, run tools.make_goldens."""
    frozen = Path(__file__).parents[2] / "support" / "goldens" / name
    golden = load_file(frozen / "golden.safetensors")
    expected = read_config(transformers.AutoConfig.for_model(**CASES[name]).to_dict())
    assert config_of(frozen) == expected
    copy = load_folder(frozen, tmp_path, torch.float64).name
    for run in RUNS:
        tokens, positions, mask = (golden[f"{run}.{part}"] for part in INPUTS)
        with float64_islands():
            logits = reference_logits(
                Path(copy), tokens, positions, library_mask(run, mask), torch.float64
            )
        assert (logits - golden[f"{run}.logits"]).abs().max() <= TOLERANCE[torch.float64]
