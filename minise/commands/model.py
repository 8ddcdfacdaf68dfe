"""Load the model that a request names."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from minise.commands.options import ModelRequest
from minise.engines import LanguageModel
from minise.loading import checkpoint
from minise.loading.names import AUTO

SMALL = 20_000_000  # numbers of a model; threads slow a smaller one down


@dataclass(frozen=True)
class Loaded:
    """A model, and the dtype and device that were chosen for it."""

    lm: LanguageModel
    dtype: str  # as --dtype names it: "float32"
    device: str


def load_model(request: ModelRequest) -> Loaded:
    """The model, in as many threads as --threads says."""
    dtype = request.dtype if request.dtype == AUTO else getattr(torch, request.dtype)
    preferred = getattr(torch, request.preferred)
    lm, stored, chosen, device = checkpoint.prepare(
        request.model, request.revision, dtype, request.device, request.quantize, preferred
    )
    # First: the numbers of rows that share their bits depend on the threads (exact/probe.py).
    set_threads(request.threads, stored.values)
    decoder = checkpoint.read_weights(stored, chosen, device, request.quantize)
    return Loaded(replace(lm, decoder=decoder), checkpoint.name_of(chosen), str(device))


def set_threads(threads: int | None, values: int) -> None:
    """As many threads as --threads says, or one for a model of few values. results.json records
    their number."""
    if threads is not None:
        torch.set_num_threads(threads)
    elif values < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
