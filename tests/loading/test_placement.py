"""Where a model runs and in which dtype, if nobody says; and what is said of one too large."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import minise
from minise import InputError
from minise.bench.shapes import PUBLISHED
from minise.commands.cli import main
from minise.loading.config_json import config_from_dict
from minise.loading.placement import Placement, place
from minise.loading.stored import Stored, described, read_heads
from minise.memory import left_by_limit
from tests.loading.test_checkpoint import WEIGHTS, refusal
from tests.loading.test_quantize import store
from tests.support.commands import Q, assert_one_line, run
from tests.support.tiny import FAMILIES, write_checkpoint

LLAMA_8B, GIB = "meta-llama/Meta-Llama-3-8B", 2**30
SMALL = "a tiny model"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to change."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stand for a machine: free memory in GiB, its GPU, and whether CPU and card know bfloat16."""

    def be(free: float | None, gpu: str = "", cpu_bf16: bool = True, gpu_bf16: bool = True) -> None:
        known = None if free is None else int(free * GIB)
        monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: known)
        monkeypatch.setattr("minise.loading.placement.usable_device", torch.device)
        monkeypatch.setattr("minise.loading.placement.fast_bfloat16", lambda: cpu_bf16)
        monkeypatch.setattr("minise.loading.placement._has_bfloat16", lambda device: gpu_bf16)
        for name, module in (("cuda", torch.cuda), ("mps", torch.backends.mps)):
            monkeypatch.setattr(module, "is_available", lambda name=name: name == gpu)

    return be


def of_shape(tmp_path: Path, shape: str, dtype: str | None = "bfloat16") -> Stored:
    """A checkpoint of which only the config.json is there."""
    raw = FAMILIES["llama"] if shape == SMALL else PUBLISHED[shape]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**raw, "torch_dtype": dtype}))
    return described(config_from_dict(raw), path)


STORED = "as it is stored"
LARGE = "float32 would take 29.9 GiB, and {} GiB are free"


@pytest.mark.parametrize(
    ("shape", "stored", "machines", "preferred", "expected", "why"),
    [
        # A CPU: float32 while its weights leave room.
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
        # Nobody knows how much is free.
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
        # Which a small model has no use for.
        (SMALL, "bfloat16", {"free": 80, "gpu": "cuda"}, "float32", "float32 cpu", ""),
    ],
)
def test_what_is_chosen_and_why(
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
    found = place(of_shape(tmp_path, shape, stored), preferred=getattr(torch, preferred))
    assert f"{found.dtype} {found.device}" == f"torch.{expected}"
    assert found.why == why


def test_what_is_given_is_taken(tmp_path: Path, machine: Any) -> None:
    stored = of_shape(tmp_path, LLAMA_8B)
    machine(80, gpu="cuda")
    assert place(stored, torch.float32, "cpu").why == ""
    assert place(stored, torch.float32, torch.device("cpu")).dtype == torch.float32
    assert str(place(stored, torch.float16).device) == "cuda"
    assert place(stored, device="cuda:1").why == "as it is stored"


def test_four_bits_change_no_dtype(tmp_path: Path, machine: Any) -> None:
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
def test_what_does_not_fit_says_what_would(
    tmp_path: Path, machine: Any, free: int, options: dict[str, Any], remedy: str
) -> None:
    stored = of_shape(tmp_path, LLAMA_8B)
    machine(free)
    with pytest.raises(InputError) as refused:
        place(stored, **options)
    assert str(refused.value).startswith(f"{tmp_path}: its weights take {remedy}")


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float16, 2)])
def test_what_does_not_fit_is_refused_before_it_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, size: int
) -> None:
    needed = size * sum(tensor.numel() for tensor in load_file(folder / WEIGHTS).values())
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: needed)
    minise.load(folder, dtype=dtype)
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: None)  # nobody knows
    minise.load(folder, dtype=dtype)
    monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: needed - 1)
    monkeypatch.setattr("minise.loading.checkpoint._read", None)
    message = refusal(folder, dtype=dtype)
    assert message.startswith(f"{folder}: its weights take {needed / 2**20:.1f} MiB in ")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_what_is_stored_is_read_from_the_files_heads(tmp_path: Path, dtype: str) -> None:
    """Whatever config.json says."""
    raw = {**FAMILIES["llama"], "torch_dtype": "float16"}
    write_checkpoint(tmp_path, raw, dtype=getattr(torch, dtype))
    stored = read_heads(config_from_dict(raw), [tmp_path / WEIGHTS])
    assert stored.dtype == getattr(torch, dtype)
    written = load_file(tmp_path / WEIGHTS)
    assert stored.bytes(stored.dtype) == sum(tensor.nbytes for tensor in written.values())
    assert stored.values == sum(tensor.numel() for tensor in written.values())


def test_a_checkpoint_stored_in_4_bits_has_the_dtype_of_its_other_tensors(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["llama"], dtype=torch.bfloat16)
    plain = read_heads(config_from_dict(FAMILIES["llama"]), [folder / WEIGHTS])
    store(folder, "nf4", False)
    stored = read_heads(config_from_dict(FAMILIES["llama"]), [folder / WEIGHTS])
    assert stored.dtype == torch.bfloat16
    assert stored.packed == plain.in_4_bits("nf4")
    assert len(stored.packed) == 21
    told = described(config_from_dict(FAMILIES["llama"]), folder / "config.json")
    assert told.packed == stored.packed


@pytest.mark.parametrize("said", [None, "bloat16", 7, "float32"])
def test_a_config_that_names_no_dtype_means_float32(tmp_path: Path, said: Any) -> None:
    assert of_shape(tmp_path, SMALL, said).dtype == torch.float32


def test_the_memory_of_a_container_is_what_its_limit_leaves(tmp_path: Path) -> None:
    assert left_by_limit(tmp_path) == []
    for name, content in (
        ("max", "1000\n"),
        ("current", "700\n"),
        ("stat", "anon 5\ninactive_file 40\nactive_file 2\nfile 50\n"),
    ):
        (tmp_path / f"memory.{name}").write_text(content)
    assert left_by_limit(tmp_path) == [342]
    (tmp_path / "memory.max").write_text("max\n")
    assert left_by_limit(tmp_path) == []


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
def test_a_device_that_cannot_be_used_is_named(folder: Path, device: str) -> None:
    message = refusal(folder, device=device)
    assert message.startswith(f'device "{device}" cannot be used here (')
    assert message.endswith("try cpu")
    assert len(message) < 300


class TestCommands:
    def test_the_plain_case_is_not_spoken_of(self, capsys, llama_folder: Path) -> None:
        asked = ("ask", "--model", llama_folder, *Q, "--trials", 1, "--json")
        status, out, err = run(capsys, *asked)
        told = json.loads(out)
        assert (status, err) == (0, "")
        assert (told["dtype"], told["device"]) == ("float32", "cpu")
        given = run(capsys, *asked, "--dtype", "float32", "--device", "cpu")
        assert given == (status, out, err)  # bit for bit

    @pytest.mark.parametrize("command", ["ask", "verify"])
    def test_any_other_is_said_once(
        self, capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        write_checkpoint(tmp_path, FAMILIES["llama"], dtype=torch.bfloat16)
        monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: 150_000)
        status, out, err = run(capsys, command, "--model", tmp_path, "--trials", 1, "--json")
        wanted = "float64" if command == "verify" else "float32"
        said = f"minise: {tmp_path}: bfloat16 on cpu, as it is stored; {wanted} would take "
        assert status == 0
        assert json.loads(out)["dtype"] == "bfloat16"
        assert err.startswith(said)
        assert err.count("\n") == 1

    @pytest.mark.usefixtures("undrawn")
    def test_a_run_is_known_by_what_was_chosen(
        self, capsys, llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("scipy", "sklearn", "matplotlib"):
            pytest.importorskip(module)
        write_checkpoint(tmp_path / "model", FAMILIES["llama"], dtype=torch.bfloat16)
        asked = ["eval", "--model", tmp_path / "model", "--task", "miniature", "--limit", 3]
        asked += ["--method", "standard", "-o", tmp_path / "run"]
        assert run(capsys, *asked)[0] == 0
        config = json.loads((tmp_path / "run" / "results.json").read_text())["config"]
        assert (config["dtype"], config["device"]) == ("float32", "cpu")
        assert run(capsys, *asked, "--resume", "--dtype", "fp32", "--device", "cpu")[0] == 0
        tight = 1.2 * 2 * (tmp_path / "model" / WEIGHTS).stat().st_size  # in float32
        monkeypatch.setattr("minise.loading.placement.free_bytes", lambda device: tight)
        status, _, err = run(capsys, *asked, "--resume")
        assert status == 2
        assert "another run" in err
        assert "dtype" in err
        assert main([str(part) for part in [*asked, "--resume", "--dtype", "float32"]]) == 0

    def test_a_format_is_stated(self, capsys, llama_folder: Path, folder: Path) -> None:
        asked = (*Q, "--trials", 1, "--json")
        packed = ("--quantize", "nf4", "--double-quant")
        for model, more, expected in (
            (llama_folder, (), None),
            (llama_folder, packed, "nf4-double"),
            (store(folder, "fp4", False), (), "fp4"),
        ):
            told = json.loads(run(capsys, "ask", "--model", model, *asked, *more)[1])
            assert told["quantize"] == told["standard"]["quantize"] == expected

    def test_auto_is_no_dtype_of_bench(self, capsys) -> None:
        assert_one_line(*run(capsys, "bench", "--dtype", "auto"), ["--dtype", "auto"])
