"""How much memory a pass takes at its peak."""

import ctypes
from dataclasses import replace
from pathlib import Path

import torch

from minise.lm import LabelLogits, Limits, LocalModel, Prompts
from minise.tokenizer import Tokenizer

RESET = Path("/proc/self/clear_refs")  # of Linux alone


class Measured:
    """A model that measures the memory of each pass, in which it has one question. peak_bytes: of
    the last pass, what it took at its peak beside what was in use before. Allocated on CUDA,
    resident on Linux; None on a CPU under another system, which does not tell."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        self.peak_bytes: int | None = None

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def family(self) -> str:
        return self.model.family

    @property
    def engine(self) -> str:
        return self.model.engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @property
    def limits(self) -> Limits:
        return replace(self.model.limits, together=0)

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
