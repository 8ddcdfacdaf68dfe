"""Load the model that a request names."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from minise.commands.options import ModelRequest
from minise.engines import LanguageModel
from minise.errors import InputError, say
from minise.loading import checkpoint, placement
from minise.loading.names import AUTO
from minise.loading.placement import Placement, name_of
from minise.loading.tensor_parallel import Share


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


def set_threads(threads: int | None, values: int) -> None:
    """As many threads as --threads says, or one for a model of few values. results.json records
    their number."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif values < placement.SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
