"""What a run costs: seconds and peak memory."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one run, to the end of the device's work."""
    _wait(device)
    began = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - began


def peak_bytes(run: Callable[[], T], device: torch.device) -> tuple[int | None, T]:
    """The peak of memory during a run above what was held before it, and what the run returned.

    It is allocated memory on CUDA and resident memory on a Linux CPU; None where the system does
    not say.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = run()
        _wait(device)
        return torch.cuda.max_memory_allocated(device) - before, result
    try:
        # Memory that the allocator keeps for reuse would hide what a run takes: give it back. Then
        # set the kernel's mark of the highest resident size down to the present one.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except (OSError, AttributeError):  # not Linux, or another C library
        return None, run()
    result = run()
    return high_water() - before, result


def high_water() -> int:
    """The peak of this process' resident memory so far, in bytes. Linux only."""
    return _status("VmHWM")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
