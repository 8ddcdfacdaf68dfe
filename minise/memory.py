"""How much memory is free."""

from __future__ import annotations

from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int | None:
    """Bytes that a new tensor can take on a device; None where the system does not tell."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    return min([*free, *left_by_limit(Path("/sys/fs/cgroup"))], default=None)


def left_by_limit(group: Path) -> list[int]:
    """The bytes left under a container's memory limit (cgroup v2): a list of one number, or an
    empty list if there is no limit."""
    try:
        limit, used = (int((group / f"memory.{x}").read_text()) for x in ("max", "current"))
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such file, or "max": no limit
        return []
    # Cached files count as used, but make room.
    cached = [int(line.split()[1]) for line in lines if line.split()[0].endswith("active_file")]
    return [limit - used + sum(cached)]
