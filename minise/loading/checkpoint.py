"""Load a checkpoint: config, weights and tokenizer, from a folder or the hub. Safetensors only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from minise.engines import LanguageModel
from minise.errors import InputError, one_line, quote
from minise.exact.layers import probe, refine
from minise.loading.config_json import read_config
from minise.loading.names import AUTO
from minise.loading.quantize import check_format, matrix_of, pack, put, read_stored
from minise.loading.source import finder, weight_files
from minise.loading.stored import DTYPES, Stored, opened, read_headers
from minise.model import Decoder
from minise.tokenizer import Tokenizer

MAPPED = 2**30  # bytes; weights of this size and more are used where they lie, in the file
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: torch.dtype | str = AUTO,
    device: str | torch.device = AUTO,
    quantize: str | None = None,
) -> LanguageModel:
    """Load a checkpoint from a folder, the shipped "weights/...", or a hub id "owner/name".

    `device` "auto" is a GPU if there is one. `dtype` "auto" is float32 on a CPU, elsewhere as the
    weights are stored. With `quantize`, one of
    "nf4", "fp4" and "nf4-double" (whose scales are in 8 bits), the linear layers inside the blocks
    are packed in 4 bits as they are read; see quantize.py. A checkpoint that bitsandbytes stored in
    4 bits is read as it is.

    Weights of 1 GiB and more that run on a CPU in their stored dtype are not copied: they are pages
    of the file, read when they are first used. Do not write into such a file while it is in use: if
    it is cut, the process dies of SIGBUS. (To replace it by a new file does no harm. A change of
    the weights in memory does not reach the file.) All others are copied one by one, so the peak
    memory is one copy and one tensor.

    Weights that are NaN or infinite are refused when they are copied or packed. To check those that
    stay in the file would read all of it first; for them a NaN or infinite logit is refused.

    Hub files come through huggingface-hub, with its cache, progress bars, offline mode
    (HF_HUB_OFFLINE=1) and token (HF_TOKEN, or `hf auth login`).

    Raises InputError, naming file and tensor, if a tensor is missing, unexpected, corrupt, of the
    wrong shape or not finite; if the config or `quantize` asks for something that minise does not
    implement; and if the hub does not serve a file.
    """
    if dtype not in (AUTO, *DTYPES):
        raise InputError(f"dtype {dtype} is not one of auto, {', '.join(map(str, DTYPES))}")
    lm, stored, chosen, where = prepare(source, revision, dtype, device, quantize)
    return replace(lm, decoder=read_weights(stored, chosen, where, quantize))


def prepare(
    source: str | Path,
    revision: str | None,
    dtype: torch.dtype | str,
    device: str | torch.device,
    quantize: str | None,
    preferred: torch.dtype = torch.float32,
) -> tuple[LanguageModel, Stored, torch.dtype, torch.device]:
    """A checkpoint without its weights, which can plan prompts but not run them; what its files
    hold; and the dtype and device for them. `preferred`: the dtype for "auto" on a CPU. Raises as
    `load` does.
    """
    check_format(quantize)
    if device == AUTO:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    where = usable_device(device)  # before anything is fetched
    lm, locate, folder = _files(source, revision)
    stored = read_headers(lm.config, weight_files(locate, folder))
    chosen = dtype if isinstance(dtype, torch.dtype) else stored.dtype
    if dtype == AUTO and where.type == "cpu":
        chosen = preferred
    stored.in_4_bits(quantize)  # refuses before the weights are read
    return replace(lm, decoder=stored.decoder), stored, chosen, where


def without_weights(source: str | Path, revision: str | None = None) -> LanguageModel:
    """A checkpoint that can plan prompts but not run them, from its config and tokenizer alone."""
    return _files(source, revision)[0]


def _files(
    source: str | Path, revision: str | None
) -> tuple[LanguageModel, Callable[[str], Path], Path]:
    """The model without weights, how to find its files, and where its config.json lies."""
    locate = finder(str(source), revision)
    path = locate("config.json")
    config = read_config(path, str(source))
    tokenizer = Tokenizer.from_file(locate("tokenizer.json"))
    commit = path.parent.name if path.parent.parent.name == "snapshots" else None
    with torch.device("meta"):  # no memory for initial values
        decoder = Decoder(config)
    return LanguageModel(str(source), config, decoder, tokenizer, commit), locate, path.parent


def usable_device(device: str | torch.device) -> torch.device:
    """The device. Raises InputError if a tensor cannot be created on it and read back."""
    try:
        torch.zeros(1, device=device).item()  # item() fails on "meta", whose tensors hold no values
        return torch.device(device)
    except (RuntimeError, AssertionError, ImportError) as error:
        why = one_line(error)
        raise InputError(
            f"device {quote(str(device))} cannot be used here ({why}); try cpu"
        ) from None


def name_of(dtype: torch.dtype) -> str:
    """The name that --dtype takes: "float32"."""
    return str(dtype).removeprefix("torch.")


def read_weights(
    stored: Stored, dtype: torch.dtype, device: torch.device, quantize: str | None = None
) -> Decoder:
    """The decoder with its tensors. Each must occur once and have the expected shape."""
    to_pack = stored.in_4_bits(quantize)
    probe(stored.decoder, dtype, device)
    reader = _Reader(stored, dtype, device, quantize, to_pack)
    with ExitStack() as stack:
        if device.type == "cpu" and stored.bytes(dtype, to_pack) >= MAPPED:
            for path in {path for path, _ in stored.tensors}:
                reader.maps[path] = stack.enter_context(opened(path))
        bar = tqdm(stored.tensors, desc="weights", unit="tensor", disable=None, delay=1)
        stack.callback(bar.close)
        for path, name in bar:
            reader.read(path, name)
    return refine(reader.decoder().requires_grad_(False).eval())


@dataclass
class _Reader:
    """Reads the tensors of a checkpoint one by one, then puts them into its decoder."""

    stored: Stored
    dtype: torch.dtype
    device: torch.device
    quantize: str | None
    to_pack: frozenset[str]
    # Files that stay open: one map of each for all tensors that are used where they lie.
    maps: dict[Path, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)  # of the tensors read so far
    weights: dict[str, Tensor] = field(default_factory=dict)
    # Of the matrices that are stored in 4 bits.
    parts: defaultdict[str, dict[str, Tensor]] = field(default_factory=lambda: defaultdict(dict))
    tied_output: Tensor | None = None  # stored although it is the embedding

    def read(self, path: Path, name: str) -> None:
        """Read one tensor. A matrix that is to be packed is put into the decoder at once, so that
        no more than one of them is in memory unpacked."""
        if name in self.names:
            raise InputError(f"{path}: tensor {name} is also in another file of the checkpoint")
        self.names.add(name)
        config, shapes = self.stored.decoder.config, self.stored.shapes
        matrix, part = matrix_of(name)
        if name.endswith(".rotary_emb.inv_freq"):
            return  # some old checkpoints store this table; the config determines it
        if name == OUTPUT and config.tie_word_embeddings:
            self.tied_output = self._weight(path, name, shapes[EMBEDDING])
        elif matrix in self.stored.packed:
            self.parts[matrix][part] = self._part(path, name)
        elif name not in shapes:
            raise InputError(
                f"{path}: unexpected tensor {quote(name)}; config.json describes no such part "
                f"of a {config.model_type} model of {config.num_hidden_layers} layers"
            )
        elif name in self.to_pack:
            with opened(path) as file:
                weight = self._checked(file, path, name, shapes[name]).to(self.device)
            packed = pack(weight, str(self.quantize))
            put(self.stored.decoder, name, packed, self.dtype, path)
        else:
            self.weights[name] = self._weight(path, name, shapes[name])

    def decoder(self) -> Decoder:
        """The decoder with the tensors. Raises InputError if one is missing."""
        decoder, folder, shapes = self.stored.decoder, self.stored.folder, self.stored.shapes
        if missing := sorted(shapes.keys() - self.names):
            raise InputError(_missing(folder, missing))
        output = self.tied_output
        if output is not None and not torch.equal(output, self.weights[EMBEDDING]):
            raise InputError(
                f"{folder}: {OUTPUT} differs from {EMBEDDING}, but "
                "config.json says tie_word_embeddings; set it to false if they should differ"
            )
        for name, tensors in self.parts.items():
            rows, columns = shapes[name]
            packed = read_stored(tensors, (rows, columns), f"{folder}: tensor {name}")
            put(decoder, name, packed, self.dtype, folder)
        decoder.load_state_dict(self.weights, strict=True, assign=True)
        return decoder

    def _weight(self, path: Path, name: str, shape: tuple[int, ...]) -> Tensor:
        """A weight: a copy in the dtype of the model, or where it lies in an open file."""
        # Each copied tensor has a map of its own, which is closed at once and frees its pages.
        with opened(path) as file:
            tensor = self._checked(file, path, name, shape)
            if path in self.maps and tensor.dtype == self.dtype and tuple(tensor.shape) == shape:
                mapped: Tensor = self.maps[path].get_tensor(name)
                return mapped
            weight = tensor.to(device=self.device, dtype=self.dtype, copy=True)
        if _finite(weight):
            return weight
        if self.dtype == torch.float16 and _finite(tensor):
            raise InputError(f"{path}: tensor {name} overflows float16; use bfloat16 or float32")
        raise InputError(f"{path}: tensor {name} has values that are NaN or infinite")

    def _part(self, path: Path, name: str) -> Tensor:
        """A part of a matrix in 4 bits, as it is stored: copied, unless the file stays open."""
        if path in self.maps:
            mapped: Tensor = self.maps[path].get_tensor(name).to(device=self.device)
            return mapped
        with opened(path) as file:
            copied: Tensor = file.get_tensor(name).to(device=self.device, copy=True)
            return copied

    def _checked(self, file: Any, path: Path, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of an open file as it is stored. Its shape and dtype are checked."""
        view = file.get_slice(name)
        if tuple(view.get_shape()) != shape:
            raise InputError(
                f"{path}: tensor {name} has shape {tuple(view.get_shape())}, "
                f"config.json makes it {shape}; one of the two belongs to another model"
            )
        tensor: Tensor = file.get_tensor(name)
        if tensor.dtype not in DTYPES:
            raise InputError(f"{path}: tensor {name} is {tensor.dtype}; no quantized weights")
        return tensor


def _missing(folder: Path, names: list[str]) -> str:
    """What to say of tensors that no file holds."""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    remedy = "fetch the checkpoint again"
    if names == [OUTPUT]:
        remedy += ", or set tie_word_embeddings to true if its output is the embedding"
    return f"{folder}: tensor {names[0]} is missing{more}; {remedy}"


def _finite(tensor: Tensor) -> bool:
    # The extremes are NaN if any value is. isfinite(tensor) would need two more copies.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())
