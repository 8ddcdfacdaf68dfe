"""The choice of dtype and device, and the refusal of a model that does not fit."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import minise
from minise import InputError
from minise.commands.cli import main
from minise.loading.config_json import config_from_dict
from minise.loading.placement import Placement, known_device, pass_bytes, place
from minise.loading.stored import Stored, described
from tests.loading.test_checkpoint import WEIGHTS, refusal
from tests.loading.test_quantize import store
from tests.support.commands import Q, run
from tests.support.shapes import PUBLISHED
from tests.support.tiny import FAMILIES, write_checkpoint

LLAMA_8B, GIB = "meta-llama/Meta-Llama-3-8B", 2**30
SMALL = "a tiny model"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to change."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend to be a machine: free memory in GiB, its GPU, whether CPU and card have bfloat16."""

    def be(free: float | None, gpu: str = "", cpu_bf16: bool = True, gpu_bf16: bool = True) -> None:
        size = None if free is None else int(free * GIB)
        monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: size)
        monkeypatch.setattr("minise.loading.placement.usable_device", torch.device)
        monkeypatch.setattr("minise.loading.placement.for_bfloat16", lambda: cpu_bf16)
        monkeypatch.setattr("minise.loading.placement._has_bfloat16", lambda device: gpu_bf16)
        for name, module in (("cuda", torch.cuda), ("mps", torch.backends.mps)):
            monkeypatch.setattr(module, "is_available", lambda name=name: name == gpu)

    return be


def of_shape(tmp_path: Path, shape: str, dtype: str | None = "bfloat16") -> Stored:
    """A checkpoint that has only a config.json."""
    raw = FAMILIES["llama"] if shape == SMALL else PUBLISHED[shape]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**raw, "torch_dtype": dtype}))
    return described(config_from_dict(raw), path)


STORED = "as it is stored"
LARGE = "float32 would take 29.9 GiB, and {} GiB are free"


@pytest.mark.parametrize(
    ("shape", "stored", "machines", "preferred", "expected", "why"),
    [
        # A CPU: float32 if its weights leave room.
        (SMALL, "bfloat16", {"free": 1}, "float32", "float32 cpu", ""),
        (SMALL, "bfloat16", {"free": None}, "float32", "float32 cpu", ""),
        (LLAMA_8B, "bfloat16", {"free": 51}, "float32", "float32 cpu", ""),
        (
            *(LLAMA_8B, "bfloat16", {"free": 49}, "float32", "bfloat16 cpu"),
            "as it is stored; " + LARGE.format("49.0"),
        ),
        (
            *(LLAMA_8B, "bfloat16", {"free": 22, "cpu_bf16": False}, "float32", "bfloat16 cpu"),
            "as it is stored; " + LARGE.format("22.0") + "; this CPU is slow in bfloat16",
        ),
        (
            *(LLAMA_8B, "float16", {"free": 22}, "float32", "bfloat16 cpu"),
            "which computes it faster than the stored float16; " + LARGE.format("22.0"),
        ),
        (
            *(LLAMA_8B, "float16", {"free": 22, "cpu_bf16": False}, "float32", "float16 cpu"),
            "as it is stored; " + LARGE.format("22.0") + "; this CPU is slow in float16",
        ),
        # The free memory is unknown.
        (
            *("Qwen/Qwen2.5-3B", "bfloat16", {"free": None}, "float32", "bfloat16 cpu"),
            "as it is stored; float32 would take 11.5 GiB, and 12.0 GiB are free",
        ),
        # verify prefers float64.
        (SMALL, "bfloat16", {"free": 1}, "float64", "float64 cpu", ""),
        (
            *(LLAMA_8B, "bfloat16", {"free": 60}, "float64", "float32 cpu"),
            "as float64 would take 59.8 GiB, and 60.0 GiB are free",
        ),
        (
            *(LLAMA_8B, "bfloat16", {"free": 22}, "float64", "bfloat16 cpu"),
            "as it is stored; float64 would take 59.8 GiB, and 22.0 GiB are free",
        ),
        # A GPU: as it is stored.
        (LLAMA_8B, "bfloat16", {"free": 80, "gpu": "cuda"}, "float32", "bfloat16 cuda", STORED),
        (LLAMA_8B, "float32", {"free": 80, "gpu": "cuda"}, "float32", "float32 cuda", STORED),
        (
            *(LLAMA_8B, "bfloat16", {"free": 16, "gpu": "cuda", "gpu_bf16": False}),
            *("float32", "float16 cuda", "which has no bfloat16"),
        ),
        (
            *(LLAMA_8B, "bfloat16", {"free": 80, "gpu": "cuda"}, "float64", "bfloat16 cuda"),
            "as it is stored; float64 would take 59.8 GiB, and 80.0 GiB are free",
        ),
        (
            *("meta-llama/Llama-3.2-1B", "bfloat16", {"free": 80, "gpu": "cuda"}),
            *("float64", "float64 cuda", "because it fits"),
        ),
        (LLAMA_8B, "bfloat16", {"free": 22, "gpu": "mps"}, "float64", "bfloat16 mps", STORED),
        (
            LLAMA_8B,
            "float64",
            {"free": 80, "gpu": "mps"},
            "float64",
            "float32 mps",
            "which has no float64",
        ),
        # A small model does not need a GPU.
        (SMALL, "bfloat16", {"free": 80, "gpu": "cuda"}, "float32", "float32 cpu", ""),
    ],
)
def test_auto_chooses_dtype_and_device_and_says_why(
    tmp_path: Path,
    machine: Any,
    shape: str,
    stored: str,
    machines: dict[str, Any],
    preferred: str,
    expected: str,
    why: str,
) -> None:
    machine(**machines)
    choice = place(of_shape(tmp_path, shape, stored), preferred=getattr(torch, preferred))
    assert f"{choice.dtype} {choice.device}" == f"torch.{expected}"
    assert choice.why == why


def test_an_explicit_dtype_and_device_are_used(tmp_path: Path, machine: Any) -> None:
    stored = of_shape(tmp_path, LLAMA_8B)
    machine(80, gpu="cuda")
    assert place(stored, torch.float32, "cpu").why == ""
    assert place(stored, torch.float32, torch.device("cpu")).dtype == torch.float32
    assert str(place(stored, torch.float16).device) == "cuda"
    assert place(stored, device="cuda:1").why == "as it is stored"


def test_4_bits_do_not_change_the_dtype(tmp_path: Path, machine: Any) -> None:
    """So that a packed model and the same one in full precision differ in nothing else."""
    stored = of_shape(tmp_path, LLAMA_8B)
    for free in (22, 60):
        machine(free)
        assert place(stored, quantize="nf4").dtype == place(stored).dtype
    machine(22)
    packed: Placement = place(stored, quantize="nf4")
    assert packed.bytes / 1e9 == pytest.approx(0.5625 * 6.98 + 2 * 1.05, abs=0.01)


@pytest.mark.parametrize(
    ("free", "options", "remedy"),
    [
        (
            *(22, {"dtype": torch.float32}),
            "29.9 GiB in float32, and 22.0 GiB are free on cpu; "
            "--dtype bfloat16 takes 15.0 GiB or --quantize nf4 takes 7.6 GiB",
        ),
        (
            *(9, {}),
            "15.0 GiB in bfloat16, and 9.0 GiB are free on cpu; --quantize nf4 takes 5.6 GiB",
        ),
        (
            *(6, {"dtype": torch.float32}),
            "29.9 GiB in float32, and 6.0 GiB are free on cpu; "
            "--dtype bfloat16 --quantize nf4 takes 5.6 GiB",
        ),
        (
            *(6, {"dtype": torch.float32, "quantize": "fp4"}),
            "7.6 GiB in float32, and 6.0 GiB are free on cpu; --dtype bfloat16 takes 5.6 GiB",
        ),
        (5, {}, "15.0 GiB in bfloat16, and 5.0 GiB are free on cpu; use a smaller model"),
        (5, {"quantize": "nf4"}, "5.6 GiB in bfloat16, and 5.0 GiB are free on cpu; use a smaller"),
    ],
)
def test_the_refusal_of_large_weights_states_what_would_fit(
    tmp_path: Path, machine: Any, free: int, options: dict[str, Any], remedy: str
) -> None:
    stored = of_shape(tmp_path, LLAMA_8B)
    machine(free)
    with pytest.raises(InputError) as refused:
        place(stored, **options)
    assert str(refused.value).startswith(f"{tmp_path}: its weights take {remedy}")


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float16, 2)])
def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, size: int
) -> None:
    needed = size * sum(tensor.numel() for tensor in load_file(folder / WEIGHTS).values())
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: needed)
    minise.load(folder, dtype=dtype)
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: None)  # unknown
    minise.load(folder, dtype=dtype)
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: needed - 1)
    monkeypatch.setattr("minise.loading.checkpoint._Reader", None)
    message = refusal(folder, dtype=dtype)
    assert message.startswith(f"{folder}: its weights take {needed / 2**20:.1f} MiB in ")


@pytest.mark.parametrize(
    "device",
    [
        pytest.param(
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is usable here"),
        ),
        "cuda:99",
        "nonsense",
        "",
        "vulkan",
        "meta",
    ],
)
def test_an_unusable_device_is_named(folder: Path, device: str) -> None:
    message = refusal(folder, device=device)
    assert message.startswith(f'device "{device}" cannot be used here (')
    assert "; try cpu" in message
    plan = f"--dry-run --device {device} --memory 24GB"
    assert message.endswith(plan) == device.startswith("cuda")
    assert len(message) < 300


class TestCommands:
    def test_the_default_choice_prints_nothing_on_stderr(self, capsys, llama_folder: Path) -> None:
        command = ("ask", "--model", llama_folder, *Q, "--trials", 1, "--json")
        status, out, err = run(capsys, *command)
        report = json.loads(out)
        assert (status, err) == (0, "")
        assert (report["dtype"], report["device"]) == ("float32", "cpu")
        explicit = run(capsys, *command, "--dtype", "float32", "--device", "cpu")
        assert explicit == (status, out, err)  # bit for bit

    @pytest.mark.parametrize("command", ["ask", "verify"])
    def test_any_other_choice_prints_one_line_on_stderr(
        self, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        write_checkpoint(tmp_path, FAMILIES["llama"], dtype=torch.bfloat16)
        monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: 150_000)
        status, out, err = run(capsys, command, "--model", tmp_path, "--trials", 1, "--json")
        preferred = "float64" if command == "verify" else "float32"
        line = f"minise: {tmp_path}: bfloat16 on cpu, as it is stored; {preferred} would take "
        assert status == 0
        assert json.loads(out)["dtype"] == "bfloat16"
        assert err.startswith(line)
        assert err.count("\n") == 1

    @pytest.mark.usefixtures("undrawn")
    def test_a_run_records_what_auto_chose_and_is_resumed_only_with_it(
        self, capsys, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("scipy", "sklearn", "matplotlib"):
            pytest.importorskip(module)
        write_checkpoint(tmp_path / "model", FAMILIES["llama"], dtype=torch.bfloat16)
        command = ["eval", "--model", tmp_path / "model", "--task", "miniature", "--limit", 3]
        command += ["--method", "standard", "-o", tmp_path / "run"]
        assert run(capsys, *command)[0] == 0
        config = json.loads((tmp_path / "run" / "results.json").read_text())["config"]
        assert (config["dtype"], config["device"]) == ("float32", "cpu")
        assert run(capsys, *command, "--resume", "--dtype", "fp32", "--device", "cpu")[0] == 0
        tight = 1.2 * 2 * (tmp_path / "model" / WEIGHTS).stat().st_size  # in float32
        monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: tight)
        status, _, err = run(capsys, *command, "--resume")
        assert status == 2
        assert "another run" in err
        assert "dtype" in err
        assert main([str(part) for part in [*command, "--resume", "--dtype", "float32"]]) == 0

    def test_json_names_the_4_bit_format(self, capsys, llama_folder: Path, folder: Path) -> None:
        command = ("ask", *Q, "--trials", 1, "--json")
        packed = ("--quantize", "nf4-double")
        for model, more, expected in (
            (llama_folder, (), None),
            (llama_folder, packed, "nf4-double"),
            (store(folder, "fp4"), (), "fp4"),
        ):
            report = json.loads(run(capsys, *command, "--model", model, *more)[1])
            assert report["quantize"] == report["standard"]["quantize"] == expected


def test_the_bytes_of_a_pass_are_those_of_its_rows_masks_and_scores() -> None:
    """10 tokens, by hand: 8 rows of 32, 2 of each of 8 heads of 8 (queries, keys, values), and 4
    wide rows of 48. At most 2,048 tokens are in the MLP at once."""
    config = config_from_dict(FAMILIES["llama"])
    rows = 10 * (8 * 32 + 2 * 8 * 8) + 10 * 4 * 48
    size = partial(pass_bytes, config)
    assert size(torch.float32, 10, "tree", False) == size(torch.float32, 10, "separate", False)
    assert size(torch.float32, 10, "tree", False) == 4 * rows
    assert size(torch.float32, 10, "tree", True) == 4 * (rows + 32 * 48)
    assert size(torch.bfloat16, 10, "dense", False) == 2 * rows + 100
    assert size(torch.bfloat16, 10, "plain", False) == 2 * rows + 100 + 2 * 4 * 4 * 100
    assert size(torch.float64, 10, "plain", False) == 8 * rows + 100 + 2 * 4 * 8 * 100
    many = size(torch.float32, 3000, "tree", False)
    assert many == 4 * (3000 * (8 * 32 + 2 * 8 * 8) + 2048 * 4 * 48)


def test_a_device_need_not_be_here_but_must_have_a_name() -> None:
    assert known_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match='device "gpu" is unknown'):
        known_device("gpu")
