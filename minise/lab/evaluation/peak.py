"""How much memory a pass takes at its peak."""

import ctypes
from pathlib import Path
from typing import Any

import torch

from minise.lm import LocalModel
from minise.prompts import LabelLogits, Prompts

RESET = Path("/proc/self/clear_refs")  # of Linux alone


class Measured:
    """A model that measures the memory of each pass, in which it has one question. peak_bytes: of
    the last pass, what it took at its peak beside what was in use before. Allocated on CUDA,
    resident on Linux; None on a CPU under another system, which does not tell."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.peak_bytes: int | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # of a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.model, name)

    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        on_gpu = self.model.decoder.device.type == "cuda"
        if not on_gpu and not RESET.exists():
            return self.model.logits(prompts)
        reset_peak(on_gpu)
        before = peak_of_memory(on_gpu)
        logits = self.model.logits(prompts)
        self.peak_bytes = peak_of_memory(on_gpu) - before
        return logits


def reset_peak(on_gpu: bool) -> None:
    """From now on the peak is at least what is in use now."""
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        return
    # What the allocator keeps for reuse would hide what a pass takes: give it back. musl has none.
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    RESET.write_text("5")


def peak_of_memory(on_gpu: bool) -> int:
    """The peak of memory since the last reset, in bytes."""
    if on_gpu:
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status").read_text()
    kilobytes = status.partition("VmHWM:")[2].split()[0]
    return int(kilobytes) * 1024
