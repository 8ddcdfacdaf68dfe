"""Load a checkpoint: config.json, tokenizer.json and safetensors, from a folder or the hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minise.config import Config
from minise.errors import InputError, one_line, printable, quote, shorten
from minise.lab.quantize import pack_layers
from minise.lm import LanguageModel, LocalModel
from minise.loading import DTYPES, machine
from minise.loading.config_json import read_config
from minise.loading.plugin import find_engine, find_object
from minise.loading.source import find_folder, instead, read_json, weight_files
from minise.model import Decoder
from minise.tokenizer import Tokenizer

LARGE_MODEL = 20_000_000  # values; a smaller model gains nothing by a GPU or by 16 bits
# Found by name: the room serving stands above this one.
ELSEWHERE = {
    "server": "minise.lab.serving.server:connect",
    "transformers": "minise.lab.serving.transformers:load",
}
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


class Unfilled(TorchFunctionMode):
    """Draws no initial values. Those of an embedding on "meta" would import torch's compiler, which
    takes a second or more."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is nn.init.normal_:
            return None
        return function(*args, **(kwargs or {}))


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: torch.dtype | str = "auto",
    device: torch.device | str = "auto",
    quantize: str | None = None,
    engine: str = "tree",
    equal_bits: bool = False,
    tokenizer: str | Path | None = None,
) -> LanguageModel:
    """Load a checkpoint from a folder, the shipped "weights/...", or a hub id "owner/name".

    device "auto": CUDA, if there is one, for a model of 20 million values and more; else the CPU.
    dtype "auto": as stored; but on a CPU float32, unless it is such a model, stored in 16 bits, and
    the CPU multiplies bfloat16: then bfloat16. quantize: "nf4" packs the linear layers inside
    the blocks in 4 bits (quantize.py). engine: how prompts run (engines.py), or "FILE.py:NAME" for
    a function of yours. equal_bits: the engines tree, packed and separate give the same bits, which
    takes longer (minise/lab/equal_bits/).
    "server:http://HOST:PORT" is a model that a server runs, and "transformers:ID" one that the
    library transformers runs (minise/lab/serving/). tokenizer: the folder or hub id of the tokenizer of
    a server's model; `revision` is that id's.

    Weights that run on a CPU in their stored dtype are not copied: they are pages of the file, read
    when they are first used. Do not write into such a file while it is in use.

    Raises InputError if a tensor is missing, unexpected, corrupt or of the wrong shape, if the
    config asks for what is not implemented, and if the hub does not serve a file.
    """
    wanted = str(dtype).removeprefix("torch.")
    if wanted not in ("auto", *DTYPES):
        raise InputError(f"dtype {quote(wanted)} is not one of auto, {', '.join(DTYPES)}")
    if quantize not in (None, "nf4"):
        raise InputError(f"quantize {quote(quantize)} is not nf4")
    kind, _, where = str(source).partition(":")
    if kind in ELSEWHERE:
        asked = Elsewhere(
            source=where,
            tokenizer=None if tokenizer is None else str(tokenizer),
            revision=revision,
            dtype=None if wanted == "auto" else wanted,
            device=None if str(device) == "auto" else str(device),
            quantize=quantize,
            engine=engine,
            equal_bits=equal_bits,
        )
        return find_object(ELSEWHERE[kind])(asked)
    if tokenizer is not None:
        raise InputError("a tokenizer is named for server:URL; a checkpoint has its own")
    own_engine = find_engine(engine)  # a wrong name is refused before anything is read
    small = read_small(str(source), revision)
    with torch.device("meta"), Unfilled():  # no memory for initial values
        decoder = Decoder(small.config)
    values = sum(x.numel() for x in decoder.parameters())
    is_large = values >= LARGE_MODEL
    place = _usable(device, is_large)
    files = weight_files(small.folder, str(source), small.commit)
    state = _mapped(files)
    if wanted == "auto":
        wanted = _best_dtype(state, place, is_large)
    target: torch.dtype = getattr(torch, wanted)
    _assign(decoder, state, target, f"{small.folder}")
    if quantize:
        pack_layers(decoder.model.layers, target, place)
    decoder.to(place, target)
    if equal_bits:
        from minise.lab.equal_bits.decoder import EqualBits

        decoder = EqualBits(decoder)
    return LocalModel(
        name=str(source),
        config=small.config,
        decoder=decoder,
        tokenizer=small.tokenizer,
        engine=engine,
        own_engine=own_engine,
        revision=small.commit,
    )


@dataclass(frozen=True)
class Elsewhere:
    """What `load` was asked for a model that runs elsewhere: minise/lab/serving/ finds it. source: what
    stands behind "server:" or "transformers:". dtype, device: None where the user named none."""

    source: str
    tokenizer: str | None
    revision: str | None
    dtype: str | None
    device: str | None
    quantize: str | None
    engine: str
    equal_bits: bool


@dataclass(frozen=True)
class Small:
    """A checkpoint without its weights. A proof needs no more. commit: of one from the hub."""

    folder: Path
    commit: str | None
    config: Config
    tokenizer: Tokenizer


def read_small(source: str, revision: str | None) -> Small:
    """The config and the tokenizer of a checkpoint."""
    folder, commit = find_folder(source, revision)
    path = folder / "config.json"
    config = read_config(read_json(path), f"{path}")
    path = folder / "tokenizer.json"
    if not path.exists():
        raise InputError(f"{path}: no such file; {instead(folder)}")
    return Small(folder, commit, config, Tokenizer.from_file(path))


def _best_dtype(state: dict[str, Tensor], place: torch.device, is_large: bool) -> str:
    """The dtype for "auto"."""
    stored = state.get(EMBEDDING, torch.empty(0)).dtype
    if place.type != "cpu":
        return str(stored).removeprefix("torch.")
    if is_large and stored.itemsize == 2 and machine.for_bfloat16():
        return "bfloat16"
    return "float32"


def _usable(device: torch.device | str, is_large: bool) -> torch.device:
    if device == "auto":
        device = "cuda" if is_large and torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=device).item()  # fails on "meta", whose tensors hold no values
    except (RuntimeError, AssertionError, ImportError) as error:
        raise InputError(f"device {device} cannot be used ({one_line(error)}); try cpu") from None
    return torch.device(device)


def _mapped(files: list[Path]) -> dict[str, Tensor]:
    """All tensors of the files, mapped into memory: none is read yet. Each may occur once."""
    state: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors = {}
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 (it is no dict)
                    tensors[name] = file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, AttributeError) as error:
            why = f"not a whole safetensors file ({one_line(error)})"
            raise InputError(f"{path}: {why}; fetch it again") from None
        for name in tensors.keys() & state.keys():
            raise InputError(f"{path}: tensor {name} is also in another file of the checkpoint")
        state |= tensors
    for name in list(state):
        # Some old checkpoints store this table; the config determines it.
        if name.endswith(".rotary_emb.inv_freq"):
            del state[name]
    return state


def _assign(decoder: Decoder, state: dict[str, Tensor], dtype: torch.dtype, where: str) -> None:
    """Give the decoder its tensors: each one must be there, and no other, with its shape."""
    if decoder.config.tie_word_embeddings and OUTPUT in state:
        output = state.pop(OUTPUT)
        embedding = state.get(EMBEDDING, torch.empty(0))
        if not torch.equal(output.to(embedding.dtype), embedding):
            what = f"{OUTPUT} is not {EMBEDDING}, but config.json says tie_word_embeddings"
            raise InputError(f"{where}: {what}; set it to false if they should differ")
    decoder.requires_grad_(False).eval()
    try:
        decoder.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        _, *lines = str(error).splitlines()
        what = shorten("; ".join(shorten(line.strip(), 150) for line in lines), 450)
        if decoder.lm_head is not None and OUTPUT not in state:
            what += " If its output is the embedding, set tie_word_embeddings to true."
        raise InputError(f"{where}: weights and config.json differ: {printable(what)}") from None
    for name, x in decoder.named_parameters():
        if str(x.dtype).removeprefix("torch.") not in DTYPES:
            raise InputError(f"{where}: tensor {name} is {x.dtype}; take the original weights")
        # The extremes are NaN if any value is. Weights that stay in the file are not read here.
        if x.dtype == dtype:
            continue
        extremes = torch.stack(x.aminmax()).to(dtype)
        if not extremes.isfinite().all():
            what = f"has values that are not finite in {dtype}; use bfloat16 or float32"
            raise InputError(f"{where}: tensor {name} {what}, or fetch it again")
