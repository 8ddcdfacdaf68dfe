"""Load the model that a request names: a checkpoint of minise's own families, or, with
"transformers:", one of another library."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from minise.commands.options import OTHER_LIBRARY, ModelRequest
from minise.engines import LanguageModel
from minise.errors import InputError, say
from minise.loading import checkpoint, placement
from minise.loading.names import AUTO
from minise.loading.placement import Placement, name_of, usable_device
from minise.loading.plugin import load_extra
from minise.loading.tensor_parallel import Share
from minise.model import Decoder


@dataclass(frozen=True)
class Loaded:
    """A model, and what was chosen for it. `placement` and `packed`, the 4-bit format of the
    weights or "as stored", are known of minise's own models; without a format, packed is None. With
    ModelRequest.dry_run the model has no weights."""

    lm: LanguageModel
    dtype: str  # as --dtype names it: "float32"
    device: str
    placement: Placement | None = None
    packed: str | None = None


def load_model(request: ModelRequest, share: Share | None = None) -> Loaded:
    """The model, or this process' share of it. What was chosen for "auto" is said on stderr, unless
    it is the plain case."""
    if request.memory is not None and not request.dry_run:
        raise InputError("--memory is for a plan; give it with --dry-run")
    if request.of_other_library:
        return _load_other(request, share)
    dtype = request.dtype if request.dtype == AUTO else getattr(torch, request.dtype)
    lm, stored, placed = checkpoint.prepare(
        request.model,
        request.revision,
        dtype,
        request.device,
        request.quantize,
        getattr(torch, request.preferred),
        fetch=not request.dry_run,
        share=share,
        memory=request.memory,
    )
    packed = "as stored" if stored.packed else request.quantize
    loaded = Loaded(lm, name_of(placed.dtype), str(placed.device), placed, packed)
    if request.dry_run:
        return loaded
    if placed.why:
        say(f"{request.model}: {loaded.dtype} on {loaded.device}, {placed.why}")
    # First: the numbers of rows that share their bits depend on the threads (exact/probe.py).
    set_threads(request.threads, stored.values)
    decoder = checkpoint.read_weights(stored, placed.dtype, placed.device, request.quantize)
    return replace(loaded, lm=replace(lm, decoder=decoder))


def _load_other(request: ModelRequest, share: Share | None) -> Loaded:
    """The checkpoint, loaded by the transformers library. A dtype "auto" is float32 on a CPU,
    elsewhere that of the stored weights; a device "auto" is a GPU if there is one."""
    refused = {
        "--quantize": request.quantize is not None,
        "--dry-run": request.dry_run,
        "--tensor-parallel": share is not None,
    }
    for option, is_used in refused.items():
        if is_used:
            raise InputError(f"{option} is for minise's own models; leave it out, or transformers:")
    load_extra("transformers", "transformers")
    from minise.bridges import transformers_model  # an optional extra

    device = request.device
    if device == AUTO:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    usable_device(device)
    dtype = request.dtype
    if dtype == AUTO and device == "cpu":
        dtype = "float32"
    source = request.model.removeprefix(OTHER_LIBRARY)
    wanted = dtype if dtype == AUTO else getattr(torch, dtype)
    lm = transformers_model.load(source, request.revision, wanted, device, request.attention)
    set_threads(request.threads, values_of(lm.decoder))
    return Loaded(lm, name_of(lm.decoder.dtype), device)


def set_threads(threads: int | None, values: int) -> None:
    """As many threads as --threads says, or one for a model of few values. results.json records
    their number."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif values < placement.SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def values_of(decoder: Decoder) -> int:
    """How many numbers its parameters hold; for `set_threads`."""
    return sum(parameter.numel() for parameter in decoder.parameters())
