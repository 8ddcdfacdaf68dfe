"""What a run costs and what still fits: seconds, peak memory, free memory."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from minise.config import Config
from minise.errors import InputError

if TYPE_CHECKING:
    from minise.engines import LanguageModel
    from minise.question import Question

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


def free_bytes(device: torch.device) -> int | None:
    """Memory that a new tensor can still take on a device; None where the system does not say."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return min([*free, *left_by_limit(Path("/sys/fs/cgroup"))], default=None)


def left_by_limit(group: Path) -> list[int]:
    """What the memory limit of a container leaves (cgroup v2), if it has one."""
    try:
        limit, used = (int((group / f"memory.{x}").read_text()) for x in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such file, or "max": no limit
        return []
    # Cached files count as used, but make room.
    cached = [int(line.split()[1]) for line in lines if line.split()[0].endswith("active_file")]
    return [limit - used + sum(cached)]


def check_fit(
    name: str,
    config: Config,
    prefix: Sequence[int],
    branches: Sequence[Sequence[int]],
    columns: Sequence[int] = (),
) -> None:
    """Raise InputError for an empty prompt, one beyond the model's positions, and for a token, or
    a column of the logits, beyond its vocabulary."""
    if not prefix and not all(branches):
        raise InputError(f"the tokenizer of {name} makes no token of a prompt; use another")
    longest, limit = len(prefix) + max(map(len, branches)), config.max_position_embeddings
    if longest > limit:
        raise InputError(
            f"a prompt has {longest} tokens, but {name} has positions for {limit}; "
            "shorten the question or its choices, or use smaller groups"
        )
    largest = max(max(ids, default=0) for ids in [prefix, *branches, columns])
    if largest >= config.vocab_size:
        raise InputError(
            f"token id {largest} is beyond the vocabulary of {name} (vocab_size "
            f"{config.vocab_size}); "
            "its tokenizer.json belongs to another model"
        )


def check_length(lm: LanguageModel, question: Question) -> None:
    """Raise InputError for a text far beyond the model's positions, before many prompts that hold
    it are written and encoded."""
    text = f"{question.text}\n{max(question.choices, key=len)}"
    if len(text) > 4 * lm.config.max_position_embeddings:
        check_fit(lm.name, lm.config, lm.tokenizer.encode([text])[0], [[]])


def check_mask_fits(tokens: int, scores: int = 0) -> None:
    """Raise InputError if a dense mask of `tokens` squared cells, a byte each, would not fit, with
    twice as many bytes of `scores` for each cell: before and after the softmax."""
    free, size = free_bytes(torch.device("cpu")), tokens**2 * (1 + 2 * scores)  # made on the CPU
    if free is not None and size > free:
        both = " and scores" if scores else ""
        raise InputError(
            f"{tokens:,} packed tokens need a mask{both} of {tokens**2:,} cells, "
            f"{size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; use the engine tree"
        )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
