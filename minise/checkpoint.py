"""Load a checkpoint: config, weights and tokenizer, from a folder or the hub. Safetensors only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from minise.config import Config
from minise.config_json import read_config
from minise.engines import LanguageModel
from minise.errors import InputError, one_line, quote
from minise.meter import free_bytes
from minise.model import Decoder
from minise.names import DTYPES as DTYPE_NAMES
from minise.quantize import BYTES, STATE, TABLES, matrix_of, pack, put, read_stored
from minise.source import finder, weight_files
from minise.tokenizer import Tokenizer

DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in DTYPE_NAMES)


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    quantize: str | None = None,
    double_quant: bool = False,
) -> LanguageModel:
    """Load a checkpoint from a folder, the shipped "weights/...", or a hub id "owner/name".

    The tensors are read from a memory map and converted one by one, so the peak memory is one copy
    of the weights plus one tensor. With `quantize`, "nf4" or "fp4", the linear layers inside the
    blocks are packed in 4 bits as they are read, with `double_quant` their scales in 8 bits; see
    quantize.py. A checkpoint that bitsandbytes stored in 4 bits is read as it is.

    Hub files come through huggingface-hub, with its cache, progress bars, offline mode
    (HF_HUB_OFFLINE=1) and token (HF_TOKEN, or `hf auth login`).

    Raises InputError, naming file and tensor, if a tensor is missing, unexpected, corrupt, of the
    wrong shape or not finite; if the config or `quantize` asks for something that minise does not
    implement; if the weights do not fit in memory; and if the hub does not serve a file.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype} is not one of {', '.join(map(str, DTYPES))}")
    if quantize not in (None, *TABLES):
        raise InputError(f"quantize {quote(quantize)} is not one of {', '.join(TABLES)}")
    if double_quant and quantize is None:
        raise InputError("double quantization of no format; quantize to nf4 or fp4 as well")
    device = usable_device(device)
    find = finder(str(source), revision)
    config_path = find("config.json")
    config = read_config(config_path)
    tokenizer = Tokenizer.from_file(find("tokenizer.json"))
    files = weight_files(find, config_path.parent)
    decoder = read_weights(config, files, dtype, device, quantize, double_quant)
    commit = config_path.parent.name if config_path.parent.parent.name == "snapshots" else None
    return LanguageModel(str(source), config, decoder, tokenizer, commit)


def read_weights(
    config: Config,
    files: list[Path],
    dtype: torch.dtype,
    device: torch.device,
    quantize: str | None = None,
    double_quant: bool = False,
) -> Decoder:
    """A decoder with the tensors of `files`. Each must occur once and have the expected shape."""
    with torch.device("meta"):  # shapes only: no memory for initial values
        decoder = Decoder(config)
    expected = {name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}
    named = list(_tensor_names(files))
    stored: dict[str, dict[str, Tensor]] = {  # what is stored in 4 bits: several tensors each
        matrix: {}
        for matrix, part in (matrix_of(name) for _, name in named)
        if part.startswith(STATE) and matrix in expected
    }
    if stored and quantize:
        raise InputError(f"{files[0].parent}: is stored in 4 bits; leave quantize out")
    packed = {name for name in expected if name in stored or (quantize and matrix_of(name)[0])}
    size = sum(
        math.prod(shape) * (BYTES if name in packed else dtype.itemsize)
        for name, shape in expected.items()
    )
    free = free_bytes(device)
    if free is not None and size > free:
        raise InputError(
            f"{files[0].parent}: its weights take {size / 2**30:.1f} GiB in {dtype}, and "
            f"{free / 2**30:.1f} GiB are free on {device}; use a smaller dtype or a smaller model"
        )
    state: dict[str, Tensor] = {}
    tied: Tensor | None = None
    seen: set[str] = set()
    with tqdm(total=len(named), desc="weights", unit="tensor", disable=None, delay=1) as bar:
        for path, name in named:
            if name in seen:
                raise InputError(f"{path}: tensor {name} is also in another file of the checkpoint")
            seen.add(name)
            matrix, part = matrix_of(name)
            if name.endswith(".rotary_emb.inv_freq"):
                continue  # some old checkpoints store this table; the config determines it
            if name == "lm_head.weight" and config.tie_word_embeddings:
                tied = _read(path, name, expected["model.embed_tokens.weight"], dtype, device)
            elif matrix in stored:
                with _opened(path) as file:
                    stored[matrix][part] = file.get_tensor(name).to(device=device, copy=True)
            elif name not in expected:
                raise InputError(
                    f"{path}: unexpected tensor {quote(name)}; config.json describes no such part "
                    f"of a {config.model_type} model of {config.num_hidden_layers} layers"
                )
            elif name in packed and quantize:
                weight = _read(path, name, expected[name], None, device)  # in the stored dtype
                put(decoder, name, pack(weight, quantize, double_quant), dtype, path)
            else:
                state[name] = _read(path, name, expected[name], dtype, device)
            bar.update()
    if missing := sorted(set(expected) - seen):
        remedy = ", or set tie_word_embeddings to true if its output is the embedding"
        raise InputError(
            f"{files[0].parent}: tensor {missing[0]} is missing"
            + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")
            + "; fetch the checkpoint again"
            + (remedy if missing == ["lm_head.weight"] else "")
        )
    if tied is not None and not torch.equal(tied, state["model.embed_tokens.weight"]):
        raise InputError(
            f"{files[0].parent}: lm_head.weight differs from model.embed_tokens.weight, but "
            "config.json says tie_word_embeddings; set it to false if they should differ"
        )
    for name, tensors in stored.items():
        folder, (rows, columns) = files[0].parent, expected[name]
        whole = read_stored(tensors, (rows, columns), f"{folder}: tensor {name}")
        put(decoder, name, whole, dtype, folder)
    decoder.load_state_dict(state, strict=True, assign=True)
    return decoder.requires_grad_(False).eval()


def _tensor_names(files: list[Path]) -> Iterator[tuple[Path, str]]:
    for path in files:
        with _opened(path) as file:
            names = sorted(file.keys())
        for name in names:
            yield path, name


def _read(
    path: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype | None, device: torch.device
) -> Tensor:
    # Open the file again for each tensor. Closing it releases the mapped pages; otherwise the whole
    # file would stay in memory beside the converted copy.
    with _opened(path) as file:
        stored = file.get_slice(name)
        if tuple(stored.get_shape()) != shape:
            raise InputError(
                f"{path}: tensor {name} has shape {tuple(stored.get_shape())}, "
                f"config.json makes it {shape}; one of the two belongs to another model"
            )
        tensor = file.get_tensor(name)
        if tensor.dtype not in DTYPES:
            raise InputError(f"{path}: tensor {name} is {tensor.dtype}; no quantized weights")
        placed = tensor.to(device=device, dtype=dtype, copy=True)
    if not _finite(placed):
        if dtype == torch.float16 and _finite(tensor):
            raise InputError(f"{path}: tensor {name} overflows float16; use bfloat16 or float32")
        raise InputError(f"{path}: tensor {name} has values that are NaN or infinite")
    return placed


def _finite(tensor: Tensor) -> bool:
    # The extremes are NaN if any value is NaN. isfinite(tensor) would need two more copies.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:  # safe_open is untyped
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: not a whole safetensors file ({one_line(error)}); fetch it again"
        ) from None


def usable_device(device: str | torch.device) -> torch.device:
    """The device. Raises InputError if a tensor cannot be created on it and read back."""
    try:
        torch.zeros(1, device=device).item()  # item() fails on "meta", whose tensors hold no values
        return torch.device(device)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise InputError(
            f"device {quote(str(device))} cannot be used here ({one_line(error)}); try cpu"
        ) from None
