"""Our decoder against the reference library, with every token, position and mask entry the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import transformers
from transformers.models.llama import modeling_llama

from minise import Decoder
from minise.loading.checkpoint import read_weights
from minise.loading.config_json import config_from_dict, read_config
from minise.loading.stored import read_headers
from minise.model import RMSNorm
from tests.support.reference import (
    CASES,
    LLAMA3,
    float64_islands,
    inverse_frequencies,
    packed_layout,
    reference_logits,
    reference_model,
    reference_run,
    runs,
    windowed_mask,
    windows,
    write_checkpoint,
)

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


def our_decoder(folder: Path, dtype: torch.dtype) -> Decoder:
    stored = read_headers(read_config(folder / "config.json"), [folder / "model.safetensors"])
    return read_weights(stored, dtype, torch.device("cpu"))


@torch.no_grad()
def our_logits(
    folder: Path, tokens: Tensor, positions: Tensor, mask: Tensor, dtype: torch.dtype
) -> Tensor:
    decoder = our_decoder(folder, dtype)
    return decoder.logits(decoder(tokens, positions, mask))


def library_mask(run: str, mask: Tensor) -> Tensor | None:
    """A plain prompt is left to the library's own masking; a packed one it cannot know."""
    return None if run == "causal" else mask


def library_windows(folder: Path) -> list[int | None]:
    return windows(reference_model(folder, torch.float64).config)


@pytest.mark.parametrize("run", RUNS)
def test_float32_logits_equal_those_of_the_untouched_library(folder: Path, run: str) -> None:
    tokens, positions, mask = runs()[run]
    expected = reference_logits(folder, tokens, positions, library_mask(run, mask), torch.float32)
    ours = our_logits(folder, tokens, positions, mask, torch.float32)
    assert ours.dtype == expected.dtype == torch.float32
    assert ours.shape == expected.shape == (len(tokens), 96)
    assert (ours - expected).abs().max() <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("run", RUNS)
def test_float64_logits_equal_those_of_the_library_computing_in_float64(
    folder: Path, run: str
) -> None:
    tokens, positions, mask = runs()[run]
    with float64_islands():
        expected = reference_logits(
            folder, tokens, positions, library_mask(run, mask), torch.float64
        )
    ours = our_logits(folder, tokens, positions, mask, torch.float64)
    assert ours.dtype == expected.dtype == torch.float64
    assert (ours - expected).abs().max() <= TOLERANCE[torch.float64]


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


def test_every_layer_has_the_window_the_library_gives_it(name: str, folder: Path) -> None:
    ours = read_config(folder / "config.json").sliding_windows
    assert list(ours) == library_windows(folder)
    expected = {
        "mistral-window": (5, 5, 5),
        "qwen2-tied-mixed-windows": (None, 5, 5),
        "qwen3-tied-mixed-windows": (None, 5, 5),
    }
    assert ours == expected.get(name, (None, None, None))


@pytest.mark.parametrize("run", RUNS)
def test_the_runs_are_such_that_a_wrong_window_would_show(folder: Path, run: str) -> None:
    _, positions, mask = runs()[run]
    index = torch.arange(len(mask))
    for window in library_windows(folder):
        kept = windowed_mask(positions, mask, window)
        if window is None:
            assert torch.equal(kept, mask)
            continue
        assert (mask & ~kept).sum() > 0.2 * mask.sum()
        differs_by_index = not torch.equal(kept, windowed_mask(index, mask, window))
        assert differs_by_index == (run == "packed")


@pytest.mark.parametrize("run", RUNS)
def test_the_checkpoints_are_such_that_a_wrong_mask_would_show(folder: Path, run: str) -> None:
    """Logits of several units, and attention on few tokens: else the comparisons prove little."""
    tokens, positions, mask = runs()[run]
    with float64_islands():
        reference = reference_run(folder, tokens, positions, library_mask(run, mask), torch.float64)
    assert reference.logits.std() > 1
    assert reference.logits.abs().max() > 5
    for weights, window in zip(reference.attentions, library_windows(folder), strict=True):
        allowed = windowed_mask(positions, mask, window)
        assert torch.equal((weights > 0).any(0), allowed)
        uniform = 1 / allowed.sum(-1)
        assert weights.amax(-1).mean() > 2 * uniform.mean()


def test_the_llama3_case_has_pairs_kept_on_the_ramp_and_slowed() -> None:
    config = transformers.AutoConfig.for_model(**CASES["llama-tied-llama3"])
    plain = {**CASES["llama-tied-llama3"], "rope_parameters": {"rope_theta": LLAMA3["rope_theta"]}}
    unscaled = inverse_frequencies(transformers.AutoConfig.for_model(**plain))
    slowed = (unscaled / inverse_frequencies(config)).tolist()
    assert slowed[0] == 1
    assert 1 < slowed[1] < LLAMA3["factor"]
    assert slowed[2:] == pytest.approx([LLAMA3["factor"]] * 2)


def test_float64_frequencies_agree_with_the_librarys_own_float32_ones(folder: Path) -> None:
    """The one formula of `float64_islands` that is written anew, held against the original."""
    model = reference_model(folder, torch.float32)
    original = model.model.rotary_emb.inv_freq.double()
    torch.testing.assert_close(inverse_frequencies(model.config), original, rtol=1e-6, atol=0)


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


@pytest.mark.parametrize("kind_key", ["rope_type", "type"])
def test_old_and_new_spelling_of_config_json_give_equal_configs(
    folder: Path, tmp_path: Path, kind_key: str
) -> None:
    """New: `rope_parameters`, `layer_types`. Old: `rope_theta` beside `rope_scaling`, which is null
    without scaling, and no `layer_types`."""
    new: dict[str, Any] = json.loads((folder / "config.json").read_text())
    assert new["rope_parameters"]["rope_theta"] > 1
    assert not {"rope_theta", "rope_scaling"} & set(new)
    old = {key: value for key, value in new.items() if key != "layer_types"}
    scaling = old.pop("rope_parameters")
    kind = scaling.pop("rope_type")
    old["rope_theta"] = scaling.pop("rope_theta")
    old["rope_scaling"] = None if kind == "default" else {kind_key: kind, **scaling}
    (tmp_path / "config.json").write_text(json.dumps(old))
    ours = read_config(folder / "config.json")
    assert read_config(tmp_path / "config.json") == ours
    assert (ours.rope_scaling.rope_type, ours.rope_theta) == (kind, old["rope_theta"])


def test_the_frozen_logits_are_those_of_the_installed_library(name: str) -> None:
    """Ties the goldens to CASES and to this library version; if not, run tools.make_goldens."""
    frozen = Path(__file__).parents[2] / "support" / "goldens" / name
    golden = load_file(frozen / "golden.safetensors")
    expected = config_from_dict(transformers.AutoConfig.for_model(**CASES[name]).to_dict())
    assert read_config(frozen / "config.json") == expected
    for run in RUNS:
        tokens, positions, mask = (golden[f"{run}.{part}"] for part in INPUTS)
        with float64_islands():
            logits = reference_logits(
                frozen, tokens, positions, library_mask(run, mask), torch.float64
            )
        assert (logits - golden[f"{run}.logits"]).abs().max() <= TOLERANCE[torch.float64]
