"""Weights that are read directly from the mapped file: the same numbers, without a copy in
memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import minise
from minise import InputError, LanguageModel, Question, SelfEnsemble, branch_logits
from minise.checking.verify import verify
from minise.loading.quantize import format_of
from minise.names import LAYOUTS
from minise.rounds import ask
from tests.loading.test_bad_models import METHODS
from tests.loading.test_checkpoint import (
    DTYPES,
    EMBEDDING,
    NORM,
    OUTPUT,
    WEIGHTS,
    edit,
    set_one,
    shard,
)
from tests.loading.test_quantize import store
from tests.support.tiny import FAMILIES, write_checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that loads a checkpoint in the way of a large one."""

    def load(folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> LanguageModel:
        with monkeypatch.context() as patched:
            patched.setattr("minise.loading.checkpoint.MAPPED", 0)
            return minise.load(folder, dtype=dtype, device="cpu", **options)

    return load


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to change."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


def starts(lm: LanguageModel) -> set[int]:
    """The addresses of the weights, modulo the 64 bytes to which new memory is aligned."""
    return {parameter.data_ptr() % 64 for parameter in lm.decoder.parameters()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mapped_and_copied_weights_give_equal_bits(
    tmp_path: Path, mapped: Any, question: Question, family: str, dtype: torch.dtype
) -> None:
    """For every place of the weights in memory: the head of each file is longer by some bytes."""
    copied = minise.load(write_checkpoint(tmp_path, FAMILIES[family], dtype=dtype), dtype=dtype)
    plan = SelfEnsemble(2, 3).plan(copied, question)
    expected = branch_logits(copied, plan.prefix, plan.branches)
    assert starts(copied) == {0}
    state, offsets = load_file(tmp_path / WEIGHTS), set[int]()
    for more in range(0, 64, 8):
        save_file(state, tmp_path / WEIGHTS, {"padding": "x" * more})
        lm = mapped(tmp_path, dtype)
        offsets |= starts(lm)
        for engine in LAYOUTS:
            assert torch.equal(branch_logits(lm, plan.prefix, plan.branches, engine), expected)
    assert offsets - {0}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of maps")
def test_only_what_is_stored_in_another_dtype_is_copied(folder: Path, mapped: Any) -> None:
    edit(folder, lambda state: state.update({NORM: state[NORM].bfloat16()}))
    shard(folder)
    lm, whole = mapped(folder), minise.load(folder, dtype=torch.float32)
    maps = Path("/proc/self/maps").read_text().splitlines()
    of_files = [line.split()[0].split("-") for line in maps if str(folder) in line]
    places = [range(int(first, 16), int(last, 16)) for first, last in of_files]
    assert len(places) == 2  # one for each file, whatever the number of tensors
    for name, parameter in lm.decoder.named_parameters():
        assert torch.equal(parameter, whole.decoder.get_parameter(name))
        assert not parameter.requires_grad
        assert any(parameter.data_ptr() in place for place in places) == (name != NORM)


def test_a_small_model_does_not_need_its_file_after_loading(folder: Path) -> None:
    lm = minise.load(folder)
    before = lm.decoder.model.norm.weight.clone()
    with (folder / WEIGHTS).open("r+b") as file:  # the same file, not a new one of its name
        file.write(b"\1" * (folder / WEIGHTS).stat().st_size)
    assert torch.equal(lm.decoder.model.norm.weight, before)


def test_replacing_a_mapped_file_does_not_change_the_model(folder: Path, mapped: Any) -> None:
    lm, expected = mapped(folder), load_file(folder / WEIGHTS)
    write_checkpoint(folder / "other", FAMILIES["llama"], seed=1)
    os.replace(folder / "other" / WEIGHTS, folder / WEIGHTS)
    assert not torch.equal(load_file(folder / WEIGHTS)[EMBEDDING], expected[EMBEDDING])
    assert torch.equal(lm.decoder.model.embed_tokens.weight, expected[EMBEDDING])


def test_writing_to_mapped_weights_does_not_reach_the_file(folder: Path, mapped: Any) -> None:
    lm, before = mapped(folder), (folder / WEIGHTS).read_bytes()
    for parameter in lm.decoder.parameters():
        parameter.zero_()
    assert not lm.decoder.model.norm.weight.any()
    assert (folder / WEIGHTS).read_bytes() == before
    assert mapped(folder).decoder.model.norm.weight.any()


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", [NORM, OUTPUT, "model.layers.0.mlp.gate_proj.weight"])
def test_mapped_weights_that_are_not_finite_are_refused_at_the_first_answer(
    folder: Path, mapped: Any, question: Question, name: str, value: float, method: Any
) -> None:
    edit(folder, lambda state: state[name].fill_(value))
    lm = mapped(folder)
    with pytest.raises(InputError, match=r"numbers overflow torch\.float32; its weights are"):
        ask(lm, method, question)


def test_copied_and_packed_weights_of_any_size_are_checked(folder: Path, mapped: Any) -> None:
    edit(folder, set_one(torch.nan))
    with pytest.raises(InputError, match="NaN or infinite"):
        mapped(folder, torch.bfloat16)
    up = "model.layers.1.mlp.up_proj.weight"
    for value in (torch.nan, torch.inf):
        edit(folder, lambda state, value=value: state[up].view(-1)[100:101].fill_(value))
        for quantize in ("nf4", "nf4-double"):
            with pytest.raises(InputError, match=f"{up} has scales that are not finite"):
                mapped(folder, quantize=quantize)


@pytest.mark.parametrize("format", ["nf4", "nf4-double"])
def test_4_bit_weights_are_mapped_too(
    folder: Path, mapped: Any, question: Question, format: str
) -> None:
    store(folder, format)
    lm, copied = mapped(folder), minise.load(folder)
    assert format_of(lm.decoder) == format_of(copied.decoder)
    plan = SelfEnsemble(2, 2).plan(lm, question)
    logits, expected = (branch_logits(x, plan.prefix, plan.branches) for x in (lm, copied))
    assert torch.equal(logits, expected)
    assert verify(lm, plan).passed


@pytest.mark.parametrize("cut", [1, 1000])
def test_an_incomplete_file_is_refused_before_it_is_used(
    folder: Path, mapped: Any, cut: int
) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-cut])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        mapped(folder)


MEASURE = """
import sys, torch, minise

def kilobytes(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

small, large, dtype, quantize, least = sys.argv[1:]
minise.load(small)  # the cost of the import and of a first load is not measured
before = kilobytes("VmRSS:")
open("/proc/self/clear_refs", "w").write("5")  # resets the peak
minise.loading.checkpoint.MAPPED = int(least)
lm = minise.load(large, dtype=getattr(torch, dtype), device="cpu", quantize=quantize or None)
print(1024 * (kilobytes("VmHWM:") - before))
"""


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's account of peak memory"
)
def test_loading_needs_no_more_memory_than_stated(llama_folder: Path, tmp_path: Path) -> None:
    """Expected: one copy of the weights and one tensor; nothing for mapped weights; the packed
    weights and one tensor for packed ones. The unit is a copy of the float32 weights."""
    sizes = {"vocab_size": 65536, "hidden_size": 256, "intermediate_size": 32768}
    write_checkpoint(tmp_path, {**FAMILIES["llama"], **sizes, "num_hidden_layers": 1})
    whole = (tmp_path / WEIGHTS).stat().st_size

    def peak(dtype: str, least: int, quantize: str = "") -> float:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, llama_folder, tmp_path, dtype, quantize, str(least)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout) / whole

    never = 2**60
    # The first load measures these shapes for this machine. What that leaves in memory varies, up
    # to a quarter of the weights.
    for dtype in ("bfloat16", "float32"):
        peak(dtype, never)
    peaks = {
        "float32, copied": peak("float32", never),
        "bfloat16, copied": peak("bfloat16", never),
        "float32, mapped": peak("float32", 0),
        "packed": peak("float32", 0, "nf4"),
    }
    (tmp_path / WEIGHTS).unlink()  # 235 MB, which pytest would keep
    print("peak growth in copies of the weights:", peaks)
    # The largest tensor is 0.29 of the file, and the matrices of the layer are 0.43. Another 0.1 is
    # for what else a process does.
    assert peaks["float32, copied"] < 1.4
    assert peaks["bfloat16, copied"] < 0.85
    assert peaks["float32, mapped"] < 0.1
    assert peaks["packed"] < 0.43 * 0.14 + 0.29 + 0.1
