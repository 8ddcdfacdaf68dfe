"""A folder or a hub id becomes a model: config, weights and tokenizer. Strict, safetensors only."""

from __future__ import annotations

import json
import logging
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub import errors as hub
from huggingface_hub.utils import logging as hub_log
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from minise.config import Config
from minise.errors import InputError
from minise.model import Decoder
from minise.tokenizer import Tokenizer

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A loaded checkpoint. `name` is what was asked for, `revision` the hub's commit hash."""

    name: str
    config: Config
    decoder: Decoder
    tokenizer: Tokenizer
    revision: str | None = None


def load(
    source: str | Path,
    *,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> LanguageModel:
    """Load a checkpoint from a folder, the shipped "weights/...", or a hub id "owner/name".

    Every tensor is read from a memory map and placed in the wanted dtype and device one by one, so
    the peak is one copy of the weights and one tensor. Hub files go through huggingface-hub: its
    cache, progress bars, offline mode (HF_HUB_OFFLINE=1) and token (HF_TOKEN, or `hf auth login`).

    Raises InputError, naming file and tensor, for anything missing, unexpected, misshapen, corrupt
    or not finite, for what the config asks and minise does not implement, and for hub troubles.
    """
    device = _usable(device)
    find = _finder(str(source), revision)
    config_path = find("config.json")
    config = Config.from_file(config_path)
    tokenizer = Tokenizer.from_file(find("tokenizer.json"))
    decoder = read_weights(config, _weight_files(find, config_path.parent), dtype, device)
    commit = config_path.parent.name if config_path.parent.parent.name == "snapshots" else None
    return LanguageModel(str(source), config, decoder, tokenizer, commit)


def read_weights(
    config: Config, files: list[Path], dtype: torch.dtype, device: torch.device
) -> Decoder:
    """A decoder with the tensors of `files`, each name exactly once and in its exact shape."""
    with torch.device("meta"):  # shapes only: no memory is spent on initial values
        decoder = Decoder(config)
    expected = {name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}
    state: dict[str, Tensor] = {}
    tied: Tensor | None = None
    with tqdm(total=len(expected), desc="weights", unit="tensor", disable=None, delay=1) as bar:
        for path, name in _tensor_names(files):
            if name in state:
                raise InputError(f"{path}: tensor {name} is also in another file of the checkpoint")
            if name.endswith(".rotary_emb.inv_freq"):
                continue  # old conversions store this table; it follows from the config
            if name == "lm_head.weight" and config.tie_word_embeddings:
                tied = _read(path, name, expected["model.embed_tokens.weight"], dtype, device)
                continue
            if name not in expected:
                raise InputError(
                    f"{path}: unexpected tensor {name}; config.json describes no such part "
                    f"of a {config.model_type} model of {config.num_hidden_layers} layers"
                )
            state[name] = _read(path, name, expected[name], dtype, device)
            bar.update()
    if missing := sorted(set(expected) - set(state)):
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
            "config.json says tie_word_embeddings; set it to false if they are meant to differ"
        )
    decoder.load_state_dict(state, strict=True, assign=True)
    return decoder.requires_grad_(False).eval()


def _tensor_names(files: list[Path]) -> Iterator[tuple[Path, str]]:
    for path in files:
        with _opened(path) as file:
            names = sorted(file.keys())
        for name in names:
            yield path, name


def _read(
    path: Path, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    # Opened anew for each tensor: closing drops the pages that were mapped for it, so the file's
    # bytes never add up beside the converted copy.
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
    # By the extremes, which are NaN if any value is. isfinite(tensor) would cost two more copies.
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


@contextmanager
def _opened(path: Path) -> Iterator[Any]:  # a safe_open, which has no types
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: not a whole safetensors file ({_reason(error)}); fetch it again"
        ) from None


def _weight_files(find: Callable[[str], Path], folder: Path) -> list[Path]:
    """The files that hold the weights: all shards of the index if there is one."""
    if (folder / SINGLE).is_file() and not (folder / INDEX).is_file():
        return [folder / SINGLE]  # not asking the hub for an index: it may be out of reach
    try:
        index_path = find(INDEX)
    except _Absent:
        return [find(SINGLE)]
    try:
        shards = set(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].values())
        # A shard is a name beside the index, never a path to somewhere else.
        if not shards or not all(re.fullmatch(r"[\w.-]+\.safetensors", name) for name in shards):
            raise ValueError("weight_map names no shards beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{index_path}: not an index of shards ({_reason(error)}); fetch it again"
        ) from None
    return [find(name) for name in sorted(shards)]


class _Absent(InputError):
    """The source is there; this file of it is not."""


def _finder(source: str, revision: str | None) -> Callable[[str], Path]:
    """How to get a file of the checkpoint `source` by its name."""
    shipped = [root / source for root in _SHIPPED if source.startswith("weights/")]
    # os.path, because Path's own is_dir and expanduser raise for names that cannot be.
    for folder in [Path(os.path.expanduser(source)), *shipped]:
        if os.path.isdir(folder):
            if revision:
                raise InputError(f"{folder}: is a folder; a revision is of a hub id, leave it out")
            return lambda name: _in_folder(folder, name)
    if os.path.exists(source):
        raise InputError(f"{source}: is a file; give the folder that holds config.json")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", source):
        raise InputError(f"{source}: no such folder, and not a hub id (owner/name)")
    pinned = revision

    def from_hub(name: str) -> Path:
        nonlocal pinned
        path = _download(source, name, pinned)
        # The first file fixes the commit, so that all files are of one revision.
        pinned = path.parent.name
        return path

    return from_hub


# Where "weights/..." lies: beside the package in a checkout, inside it when installed from a wheel.
_SHIPPED = (Path(__file__).parents[1], Path(__file__).parent)


def _in_folder(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise _Absent(
            f"{folder / name}: no such file; minise reads config.json, tokenizer.json "
            "and safetensors weights"
        )
    return folder / name


def _download(repository: str, name: str, revision: str | None) -> Path:
    at = f"{repository}" + (f" at {revision}" if revision else "")
    try:
        with _quiet_hub():
            return Path(huggingface_hub.hf_hub_download(repository, name, revision=revision))
    except hub.GatedRepoError:
        raise InputError(
            f"{repository}: gated; accept its licence on https://huggingface.co/{repository}, then "
            "set HF_TOKEN or run `hf auth login`"
        ) from None
    except hub.RepositoryNotFoundError:
        raise InputError(
            f"{repository}: no such folder here and no such repository on the hub (or it is "
            "private: set HF_TOKEN or run `hf auth login`)"
        ) from None
    except hub.RevisionNotFoundError:
        raise InputError(
            f"{repository}: has no revision {revision}; give one of its branches, tags or commits"
        ) from None
    except hub.LocalEntryNotFoundError as error:
        offline = huggingface_hub.constants.HF_HUB_OFFLINE
        cause = _reason(error.__cause__ or error)
        why = "HF_HUB_OFFLINE is set" if offline else f"the hub did not serve it ({cause})"
        raise _Absent(
            f"{at}: no such folder here, {why}, and {name} is not in the cache "
            f"({huggingface_hub.constants.HF_HUB_CACHE}); go online once or give a folder"
        ) from None
    except hub.EntryNotFoundError:
        raise _Absent(
            f"{at}: has no {name}; minise reads config.json, tokenizer.json and safetensors weights"
        ) from None
    except Exception as error:  # the HTTP client beneath has its own classes, and has changed
        raise InputError(
            f"{at}: {name} could not be fetched ({_reason(error)}); "
            "check the connection and HF_TOKEN, then try again"
        ) from None


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Hold back the hub library's warnings of each retry: what comes of them is one line, ours."""
    level = hub_log.get_verbosity()
    hub_log.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        hub_log.set_verbosity(level)


def _usable(device: str | torch.device) -> torch.device:
    try:
        torch.zeros(1, device=device).item()  # "meta" makes tensors too, but they hold nothing
        return torch.device(device)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise InputError(
            f'device "{device}" cannot be used here ({_reason(error)}); try cpu'
        ) from None


def _reason(error: BaseException) -> str:
    """A library's message, which may be a page or nothing, as part of one line."""
    return textwrap.shorten(str(error) or type(error).__name__, 200)
