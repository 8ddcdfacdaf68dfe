"""Load a checkpoint: config, weights and tokenizer, from a folder or the hub. Safetensors only."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from minise.engines import LanguageModel
from minise.errors import InputError, quote
from minise.exact.layers import probe, refine
from minise.loading.config_json import read_config
from minise.loading.placement import Placement, place, usable_device
from minise.loading.quantize import check_format, matrix_of, pack, put, read_stored
from minise.loading.source import finder, on_disk, weight_files
from minise.loading.stored import DTYPES, Stored, described, opened, read_heads
from minise.model import Decoder
from minise.names import AUTO
from minise.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minise.loading.tensor_parallel import Share

MAPPED = 2**30  # bytes of weights from which they are used where they lie, in the file


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: torch.dtype | str = AUTO,
    device: str | torch.device = AUTO,
    quantize: str | None = None,
    double_quant: bool = False,
) -> LanguageModel:
    """Load a checkpoint from a folder, the shipped "weights/...", or a hub id "owner/name".

    `dtype` and `device` "auto" are chosen by what the weights take and what is free: float32 on a
    CPU where that fits well, otherwise as `placement.place` says. With `quantize`, "nf4" or "fp4",
    the linear layers inside the blocks are packed in 4 bits as they are read, with `double_quant`
    their scales in 8 bits; see quantize.py. A checkpoint that bitsandbytes stored in 4 bits is read
    as it is.

    Weights of 1 GiB and more that run on a CPU in their stored dtype are not copied: they are pages
    of the file, read when they are first used. Do not write into such a file while it is in use: if
    it is cut, the process dies of SIGBUS. (A new file in its place does no harm. What is written
    to the weights does not reach the file.) All others are copied one by one, so the peak memory is
    one copy and one tensor.

    Weights that are NaN or infinite are refused where they are copied or packed. Elsewhere that
    would read the whole file first; there a NaN or infinite logit is refused.

    Hub files come through huggingface-hub, with its cache, progress bars, offline mode
    (HF_HUB_OFFLINE=1) and token (HF_TOKEN, or `hf auth login`).

    Raises InputError, naming file and tensor, if a tensor is missing, unexpected, corrupt, of the
    wrong shape or not finite; if the config or `quantize` asks for something that minise does not
    implement; if the weights do not fit in memory; and if the hub does not serve a file.
    """
    if dtype not in (AUTO, *DTYPES):
        raise InputError(f"dtype {dtype} is not one of auto, {', '.join(map(str, DTYPES))}")
    lm, stored, placed = prepare(source, revision, dtype, device, quantize, double_quant)
    decoder = read_weights(stored, placed.dtype, placed.device, quantize, double_quant)
    return replace(lm, decoder=decoder)


def prepare(
    source: str | Path,
    revision: str | None,
    dtype: torch.dtype | str,
    device: str | torch.device,
    quantize: str | None,
    double_quant: bool,
    preferred: torch.dtype = torch.float32,
    fetch: bool = True,
    share: Share | None = None,
) -> tuple[LanguageModel, Stored, Placement]:
    """What `find` finds, and where and in which dtype its weights go, before any of them is read.
    `share`: the part of them that this process has. Raises as `load` and `placement.place` do."""
    check_format(quantize, double_quant)
    if device != AUTO:
        usable_device(device)  # before anything is fetched
    lm, stored = find(source, revision, fetch)
    if share is not None:
        stored = stored.split(share, quantize)
    return lm, stored, place(stored, dtype, device, quantize, preferred)


def find(
    source: str | Path, revision: str | None = None, fetch: bool = True
) -> tuple[LanguageModel, Stored]:
    """A checkpoint without its weights, which can plan prompts and run none; and what its files
    hold. Without `fetch`, config.json says that of weights that are not on this machine."""
    locate = finder(str(source), revision)
    path = locate("config.json")
    config = read_config(path)
    tokenizer = Tokenizer.from_file(locate("tokenizer.json"))
    commit = path.parent.name if path.parent.parent.name == "snapshots" else None
    files = weight_files(locate, path.parent) if fetch else on_disk(str(source), commit, path)
    stored = read_heads(config, files) if files else described(config, path)
    return LanguageModel(str(source), config, stored.decoder, tokenizer, commit), stored


def read_weights(
    source: Stored,
    dtype: torch.dtype,
    device: torch.device,
    quantize: str | None = None,
    double_quant: bool = False,
) -> Decoder:
    """The decoder with its tensors. Each must occur once and have the expected shape."""
    config, decoder, folder = source.decoder.config, source.decoder, source.folder
    packed = source.in_4_bits(quantize)
    mapped = device.type == "cpu" and source.bytes(dtype, packed) >= MAPPED
    if device.type == "cpu":
        probe(decoder, dtype)
    state: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {matrix: {} for matrix in source.packed}
    tied: Tensor | None = None
    seen: set[str] = set()
    with ExitStack() as stack:
        bar = tqdm(source.tensors, desc="weights", unit="tensor", disable=None, delay=1)
        stack.callback(bar.close)
        # One map of each file for all that stays in it.
        files = {path for path, _ in source.tensors} if mapped else ()
        maps = {path: stack.enter_context(opened(path)) for path in files}
        for path, name in bar:
            if name in seen:
                raise InputError(f"{path}: tensor {name} is also in another file of the checkpoint")
            seen.add(name)
            matrix, part = matrix_of(name)
            kept = maps.get(path)
            if name.endswith(".rotary_emb.inv_freq"):
                continue  # some old checkpoints store this table; the config determines it
            if name == "lm_head.weight" and config.tie_word_embeddings:
                shape = source.shapes["model.embed_tokens.weight"]
                tied = _read(path, name, shape, dtype, device, kept)
            elif matrix in parts:
                with opened(path) as file:
                    tensor = (kept or file).get_tensor(name)
                parts[matrix][part] = tensor.to(device=device, copy=kept is None)
            elif name not in source.shapes:
                raise InputError(
                    f"{path}: unexpected tensor {quote(name)}; config.json describes no such part "
                    f"of a {config.model_type} model of {config.num_hidden_layers} layers"
                )
            elif name in packed:
                weight = _read(path, name, source.shapes[name], None, device)
                put(decoder, name, pack(weight, str(quantize), double_quant), dtype, path)
            else:
                state[name] = _read(
                    path, name, source.shapes[name], dtype, device, kept, source.share
                )
    if missing := sorted(set(source.shapes) - seen):
        remedy = ", or set tie_word_embeddings to true if its output is the embedding"
        raise InputError(
            f"{folder}: tensor {missing[0]} is missing"
            + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else "")
            + "; fetch the checkpoint again"
            + (remedy if missing == ["lm_head.weight"] else "")
        )
    if tied is not None and not torch.equal(tied, state["model.embed_tokens.weight"]):
        raise InputError(
            f"{folder}: lm_head.weight differs from model.embed_tokens.weight, but "
            "config.json says tie_word_embeddings; set it to false if they should differ"
        )
    for name, tensors in parts.items():
        rows, columns = source.shapes[name]
        whole = read_stored(tensors, (rows, columns), f"{folder}: tensor {name}")
        put(decoder, name, whole, dtype, folder)
    decoder.load_state_dict(state, strict=True, assign=True)
    return refine(decoder.requires_grad_(False).eval())


def _read(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype | None,
    device: torch.device,
    kept: Any = None,
    share: Share | None = None,
) -> Tensor:
    """A tensor, or this process' share of it, in `dtype`, copied, or where it lies in the file that
    stays open as `kept`. Without a dtype as it is stored; whoever packs it sees whether its values
    are finite."""
    # Each tensor by a map of its own: the pages that are read go with it.
    with opened(path) as file:
        stored = file.get_slice(name)
        if tuple(stored.get_shape()) != shape:
            raise InputError(
                f"{path}: tensor {name} has shape {tuple(stored.get_shape())}, "
                f"config.json makes it {shape}; one of the two belongs to another model"
            )
        tensor: Tensor = file.get_tensor(name) if share is None else share.read(name, stored)
        if tensor.dtype not in DTYPES:
            raise InputError(f"{path}: tensor {name} is {tensor.dtype}; no quantized weights")
        if dtype is None:
            return tensor.to(device)
        if kept is not None and tensor.dtype == dtype and tuple(tensor.shape) == shape:
            return kept.get_tensor(name)
        placed = tensor.to(device=device, dtype=dtype, copy=True)
    if not _finite(placed):
        if dtype == torch.float16 and _finite(tensor):
            raise InputError(f"{path}: tensor {name} overflows float16; use bfloat16 or float32")
        raise InputError(f"{path}: tensor {name} has values that are NaN or infinite")
    return placed


def _finite(tensor: Tensor) -> bool:
    # The extremes are NaN if any value is. isfinite(tensor) would need two more copies.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())
