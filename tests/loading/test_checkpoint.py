"""A folder is loaded as a model, bit for bit, or refused in one line that says what to fix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import minise
from minise import InputError, Question
from tests.support.shapes import PUBLISHED
from tests.support.tiny import FAMILIES, write_checkpoint

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM, OUTPUT, EMBEDDING = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


def edit(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Rewrite the weights after `change`."""
    state = load_file(folder / WEIGHTS)
    change(state)
    save_file({name: tensor.clone() for name, tensor in state.items()}, folder / WEIGHTS)


def configure(folder: Path, **facts: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **facts}))


def shard(folder: Path) -> list[Path]:
    """Split the weights over two files and an index."""
    state = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    where: dict[str, str] = {}
    for number, names in enumerate((sorted(state)[::2], sorted(state)[1::2]), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file({key: state[key] for key in names}, folder / name)
        where |= dict.fromkeys(names, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return [folder / name for name in sorted(set(where.values()))]


def refusal(source: str | Path, **options: Any) -> str:
    """The one line of the refusal."""
    with pytest.raises(InputError) as caught:
        minise.load(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_are_loaded_exactly_in_each_dtype(llama_folder: Path, dtype: torch.dtype) -> None:
    lm = minise.load(llama_folder, dtype=dtype, device="cpu")
    written = load_file(llama_folder / WEIGHTS)
    loaded = lm.decoder.state_dict()
    assert loaded.keys() == written.keys()
    for name, tensor in loaded.items():
        assert (tensor.dtype, tensor.device.type) == (dtype, "cpu")
        assert torch.equal(tensor, written[name].to(dtype))
    assert not any(parameter.requires_grad for parameter in lm.decoder.parameters())
    assert not lm.decoder.training
    assert (lm.name, lm.revision) == (str(llama_folder), None)


@pytest.mark.parametrize("stored", DTYPES, ids=str)
def test_every_stored_dtype_can_be_loaded(tmp_path: Path, stored: torch.dtype) -> None:
    write_checkpoint(tmp_path, FAMILIES["qwen2"], dtype=stored)
    lm = minise.load(tmp_path, dtype=torch.float64)
    for name, tensor in load_file(tmp_path / WEIGHTS).items():
        assert torch.equal(lm.decoder.get_parameter(name), tensor.double())


def test_shards_hold_the_same_model_as_one_file(folder: Path) -> None:
    whole = minise.load(folder).decoder.state_dict()
    first, _ = shard(folder)
    shutil.copy(first, folder / "left-over.safetensors")  # not in the index: not read
    parts = minise.load(folder).decoder.state_dict()
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_a_tied_output_may_be_stored_if_it_is_the_embedding(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FAMILIES["qwen2"])
    assert OUTPUT not in load_file(tmp_path / WEIGHTS)
    absent = minise.load(tmp_path).decoder.state_dict()
    edit(tmp_path, lambda state: state.update({OUTPUT: state[EMBEDDING]}))
    present = minise.load(tmp_path).decoder.state_dict()
    assert present.keys() == absent.keys()
    assert all(torch.equal(present[name], absent[name]) for name in absent)

    edit(tmp_path, lambda state: state[OUTPUT][3].add_(1))
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: {OUTPUT} differs from {EMBEDDING}")
    assert "tie_word_embeddings; set it to false" in message


def test_an_untied_output_that_is_absent_says_how_to_fix_it(folder: Path) -> None:
    edit(folder, lambda state: state.pop(OUTPUT))
    message = refusal(folder)
    assert message.startswith(f"{folder}: tensor {OUTPUT} is missing")
    assert "set tie_word_embeddings to true" in message
    configure(folder, tie_word_embeddings=True)
    assert minise.load(folder).decoder.lm_head is None


def test_stored_tables_of_rotary_frequencies_are_ignored(folder: Path) -> None:
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.full((4,), torch.nan)}
    edit(folder, lambda state: state.update(table))
    minise.load(folder)


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], Any]:
    return lambda state: state.update({name: tensor})


def set_one(value: float, dtype: torch.dtype = torch.float32) -> Callable[[dict[str, Tensor]], Any]:
    """One value of the last norm, somewhere in the middle."""
    return put(NORM, torch.ones(32, dtype=dtype).index_fill(0, torch.tensor([17]), value))


Q_BIAS = "model.layers.1.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("change", "where", "parts"),
    [
        (put(Q_BIAS, torch.ones(32)), WEIGHTS, ("unexpected", Q_BIAS, "llama model of 3 layers")),
        (put("model.layers.3.x", torch.ones(1)), WEIGHTS, ("unexpected", "model.layers.3.x")),
        (lambda state: state.pop(NORM), "", (f"tensor {NORM} is missing;", "fetch")),
        (lambda state: state.clear(), "", ("is missing (and 29 more);", "fetch")),
        (put(NORM, torch.ones(31)), WEIGHTS, (f"tensor {NORM} has shape (31,)", "it (32,)")),
        (put(NORM, torch.ones(32, 1)), WEIGHTS, (f"tensor {NORM} has shape (32, 1)", "it (32,)")),
        (put(NORM, torch.ones(32).int()), WEIGHTS, (NORM, "torch.int32", "no quantized")),
        (put(NORM, torch.ones(32).bool()), WEIGHTS, (NORM, "torch.bool", "no quantized")),
        (
            put(NORM, torch.ones(32).to(torch.float8_e4m3fn)),
            WEIGHTS,
            (NORM, "torch.float8_e4m3fn", "no quantized"),
        ),
        (set_one(torch.nan), WEIGHTS, (f"tensor {NORM} has values that are NaN or infinite",)),
        (set_one(torch.inf), WEIGHTS, (f"tensor {NORM} has values that are NaN or infinite",)),
        (set_one(-torch.inf), WEIGHTS, (f"tensor {NORM} has values that are NaN or infinite",)),
        (set_one(1e300, torch.float64), WEIGHTS, (NORM, "infinite")),  # beyond float32
    ],
)
def test_an_unusable_tensor_is_named(
    folder: Path,
    change: Callable[[dict[str, Tensor]], Any],
    where: str,
    parts: tuple[str, ...],
) -> None:
    edit(folder, change)
    message = refusal(folder)
    assert message.startswith(f"{folder / where}: ")
    for part in parts:
        assert part in message


def test_weights_beyond_float16_are_refused_in_float16_only(folder: Path) -> None:
    edit(folder, set_one(-1e5))
    message = refusal(folder, dtype=torch.float16)
    assert message.startswith(f"{folder / WEIGHTS}: tensor {NORM} overflows float16")
    assert "use bfloat16 or float32" in message
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        minise.load(folder, dtype=dtype)
    edit(folder, set_one(torch.inf))
    assert "NaN or infinite" in refusal(folder, dtype=torch.float16)


def unknown_dtype(content: bytes) -> bytes:
    """The name has the same length, so that the rest of the file stays valid."""
    return content.replace(b'"dtype":"F32"', b'"dtype":"Q32"', 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content[:100],
        lambda content: content + b"\0",
        lambda content: b"",
        lambda content: b"version https://git-lfs.github.com/spec/v1\n",
        lambda content: bytes(range(256)) * 16,
        unknown_dtype,
    ],
    ids=["last byte", "half", "head", "longer", "empty", "lfs pointer", "garbage", "dtype"],
)
@pytest.mark.parametrize("sharded", [False, True])
def test_an_incomplete_file_is_named(
    folder: Path, damage: Callable[[bytes], bytes], sharded: bool
) -> None:
    path = shard(folder)[1] if sharded else folder / WEIGHTS
    path.write_bytes(damage(path.read_bytes()))
    message = refusal(folder)
    assert message.startswith(f"{path}: not a whole safetensors file (")
    assert message.endswith("fetch it again")


def test_a_missing_shard_is_named(folder: Path) -> None:
    first, second = shard(folder)
    second.unlink()
    message = refusal(folder)
    assert message.startswith(f"{folder}: 1 of 2 shards are missing: {second.name}; copy them")
    assert message.endswith("(hf download OWNER/NAME --local-dir FOLDER)")
    first.unlink()
    assert f": 2 of 2 shards are missing: {first.name}, {second.name}; " in refusal(folder)


def test_a_folder_of_pickled_weights_gives_a_command_that_converts_them(folder: Path) -> None:
    expected = minise.load(folder).decoder.state_dict()
    state = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    for number, names in enumerate((sorted(state)[::2], sorted(state)[1::2]), 1):
        part = {name: state[name] for name in names}
        torch.save(part, folder / f"pytorch_model-{number:05}-of-00002.bin")
    message = refusal(folder)
    start = f"{folder}: pytorch_model*.bin, no safetensors; convert it there, if you trust it: "
    assert message.startswith(start)
    assert len(message) <= 380  # what `errors.say` prints of it
    subprocess.run(["sh", "-c", message.removeprefix(start)], cwd=folder, check=True)
    converted = minise.load(folder).decoder.state_dict()
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], expected[name]) for name in expected)


def test_a_tensor_in_two_shards_is_named(folder: Path) -> None:
    first, second = shard(folder)
    save_file({**load_file(second), **load_file(first)}, second)
    message = refusal(folder)
    assert message.startswith(f"{second}: tensor {OUTPUT} is also in another file")


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"not JSON",
        b"\xff",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {}}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": ["model.safetensors"]}}',
        b'{"weight_map": {"a": "pytorch_model.bin"}}',
        b'{"weight_map": {"a": "../llama/model.safetensors"}}',
        b'{"weight_map": {"a": "/etc/model.safetensors"}}',
        b'{"weight_map": {"a": "..\\\\model.safetensors"}}',
    ],
)
def test_an_index_that_does_not_list_the_shards_beside_it_is_refused(
    folder: Path, index: bytes
) -> None:
    (folder / INDEX).write_bytes(index)
    message = refusal(folder)
    assert message.startswith(f"{folder / INDEX}: not an index of shards (")
    assert message.endswith("fetch it again")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / "model.bin").write_bytes(b"pickled")  # no help: pickle is never read
    message = refusal(folder)
    assert message.startswith(f"{folder / name}: no such file")
    assert "safetensors" in message


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model":\n', "\0", '{"model": {"a": 1}}'])
def test_a_corrupt_tokenizer_is_named(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    message = refusal(folder)
    assert message.startswith(f"{folder / 'tokenizer.json'}: not a tokenizer (")


INSTEAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder": (Path.mkdir, "is not a file; minise reads"),
    "a pipe": (os.mkfifo, "is not a file; minise reads"),
    "a link to nothing": (
        lambda path: path.symlink_to("gone"),
        "links to a file that is not there",
    ),
    "a link to itself": (lambda path: path.symlink_to(path.name), "cannot be read (Too many"),
}


@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS, INDEX])
def test_a_folder_pipe_or_broken_link_in_place_of_a_file_is_named(
    folder: Path, name: str, instead: str
) -> None:
    make, reason = INSTEAD[instead]
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    assert refusal(folder).startswith(f"{folder / name}: {reason}")


@contextmanager
def without_root() -> Iterator[None]:
    """As another user than root, who may read every file."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of POSIX")
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", WEIGHTS, "the folder", "above"])
def test_a_file_without_permission_to_read_is_not_called_missing(
    llama_folder: Path, name: str
) -> None:
    with tempfile.TemporaryDirectory() as above:
        folder = shutil.copytree(llama_folder, Path(above) / "llama")
        for path in (Path(above), folder, *folder.iterdir()):
            path.chmod(0o755)
        closed = {"the folder": folder, "above": Path(above)}.get(name, folder / name)
        named = {"the folder": folder / "config.json", "above": folder}.get(name, folder / name)
        closed.chmod(0)
        with without_root():
            assert refusal(folder) == f"{named}: cannot be read (Permission denied)"
        closed.chmod(0o755)


def test_an_index_of_absurd_names_is_refused(folder: Path) -> None:
    for name in ("m" * 250, "m" * 100_000):
        (folder / INDEX).write_text(json.dumps({"weight_map": {"a": f"{name}.safetensors"}}))
        assert "weight_map names no shards beside it" in refusal(folder)
    shards = {str(i): f"model-{i}.safetensors" for i in range(20_000)}
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))
    assert f"{folder}: 20000 of 20000 shards are missing: model-0.safetensors, " in refusal(folder)
    assert " and 19997 more; " in refusal(folder)


def test_a_foreign_tensors_name_is_shortened_and_escaped(folder: Path) -> None:
    edit(folder, put("\x1b[2J\n" + "x" * 10_000, torch.ones(1)))
    assert 'unexpected tensor "\\u001b[2J\\nxxx' in refusal(folder)
    assert len(refusal(folder)) < len(str(folder)) + 250


def test_an_unsupported_dtype_is_refused(folder: Path) -> None:
    for dtype in (torch.int8, torch.float8_e4m3fn, torch.complex64):
        message = f"dtype {dtype} is not one of auto, torch.float64"
        assert refusal(folder, dtype=dtype).startswith(message)


def test_a_source_that_is_neither_folder_nor_hub_id_is_named(folder: Path) -> None:
    config = folder / "config.json"
    assert refusal(config) == f"{config}: is a file; give the folder that holds config.json"
    no_such = (str(folder / "nothing"), "one-word", "a/b/c", "~nobody-here/x", "x" * 5000, "a\0b")
    for source in no_such:
        shown = source if len(source) < 200 else source[:197] + "..."
        assert refusal(source) == f"{shown}: no such folder, and not a hub id (owner/name)"


def test_a_revision_of_a_folder_is_refused(folder: Path) -> None:
    message = refusal(folder, revision="main")
    assert message.startswith(f"{folder}: is a folder")
    assert "revision" in message


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_gets_the_same_values_and_refuses_the_same(folder: Path) -> None:
    on_cpu, on_cuda = (minise.load(folder, device=device).decoder for device in ("cpu", "cuda"))
    for name, tensor in on_cuda.state_dict().items():
        assert tensor.device.type == "cuda"
        assert torch.equal(tensor.cpu(), on_cpu.get_parameter(name))
    for value in (torch.nan, torch.inf, -torch.inf):
        edit(folder, set_one(value))
        assert "NaN or infinite" in refusal(folder, device="cuda")


def reduced(raw: dict[str, Any]) -> dict[str, Any]:
    """The same checkpoint with smaller sizes. What distinguishes it is kept, and also how many
    query heads share a key/value head."""
    share = raw["num_attention_heads"] // raw["num_key_value_heads"]
    small = {"hidden_size": 8 * share, "intermediate_size": 48, "vocab_size": 288}
    small |= {"num_hidden_layers": 2, "num_attention_heads": 2 * share, "num_key_value_heads": 2}
    return {**raw, **small, "head_dim": 8 if "head_dim" in raw else None}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_checkpoints_load_and_answer(
    name: str, tmp_path: Path, question: Question
) -> None:
    write_checkpoint(tmp_path, reduced(PUBLISHED[name]), dtype=torch.bfloat16)
    lm = minise.load(tmp_path)
    p = minise.standard(lm, question).probabilities
    assert torch.isfinite(p).all()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    assert p.max() - p.min() > 1e-3  # and it says something


@pytest.mark.parametrize("device", ["cpu:9999999999", "nonsense", "", "vulkan", "meta"])
def test_an_unusable_device_is_named(llama_folder: Path, device: str) -> None:
    with pytest.raises(InputError) as refused:
        minise.load(llama_folder, device=device)
    message = str(refused.value)
    assert message.startswith(f'device "{device}" cannot be used here (')
    assert message.endswith("; try cpu")
    assert len(message) < 300


def test_auto_is_float32_on_a_cpu_whatever_is_stored(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FAMILIES["llama"], dtype=torch.bfloat16)
    assert minise.load(tmp_path, device="cpu").decoder.dtype == torch.float32
    assert minise.load(tmp_path, device="cpu", dtype=torch.bfloat16).decoder.dtype == torch.bfloat16
