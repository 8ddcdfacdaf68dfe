"""What decides how a CPU rounds: the processor, torch, what the environment asks of its libraries.

What was measured on a machine is kept in a file of its own for it (~/.cache/minise, or under
XDG_CACHE_HOME). Any of these facts being another, it is another machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch

# What chooses kernels: MKL's, oneDNN's, OpenMP's and torch's own variables.
CHOOSES = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_CPU_CAPABILITY", "OMP_", "TORCH_MKLDNN")
FORMAT = 2  # of what is kept: one more whenever the probe finds by other rules


def processor() -> str:
    """The name that the processor gives itself: "AMD EPYC", with family, model and stepping where
    the system tells them, because a cloud's names are short."""
    facts: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
    except OSError:
        pass
    name = facts.get("model name") or platform.processor() or platform.machine()
    parts = [f"{part} {facts[key]}" for part, key in _PARTS.items() if key in facts]
    return name + (f" ({', '.join(parts)})" if parts else "")


_PARTS = {"family": "cpu family", "model": "model", "stepping": "stepping"}


def instructions() -> str:
    """The instructions that torch uses, and those for matrices that its libraries may use."""
    return " + ".join([torch.backends.cpu.get_cpu_capability(), *for_bfloat16()])


def for_bfloat16() -> list[str]:
    """The instructions of this CPU that multiply bfloat16. (On ARM nobody says.)"""
    checks = {"AVX512-BF16": "_is_avx512_bf16_supported", "AMX": "_is_amx_tile_supported"}
    return [name for name, check in checks.items() if getattr(torch.cpu, check, bool)()]


def computes_16_bits() -> bool:
    """Whether bfloat16 and float16 are more than storage here. A CPU with no more than AVX2 widens
    each number before it multiplies."""
    return instructions() != "AVX2"


def environment() -> dict[str, str]:
    """The variables that are set and choose kernels."""
    return {name: os.environ[name] for name in sorted(os.environ) if name.startswith(CHOOSES)}


def facts() -> dict[str, object]:
    """All that is said of a machine where results are kept: in words, without a path."""
    return {
        "cpu": processor(),
        "instructions": instructions(),
        "torch": torch.__version__,
        "environment": environment(),
    }


def in_words() -> str:
    """The same on one line, with the number of threads."""
    told = facts()
    threads = torch.get_num_threads()
    asked = [f"{name}={value}" for name, value in environment().items()]
    has = [f"torch {told['torch']}", f"{threads} thread{'s' * (threads > 1)}"]
    return ", ".join([str(told["cpu"]), str(told["instructions"]), *has, *asked])


def remembered(name: str, measure: Callable[[], list[list[int]]]) -> list[list[int]]:
    """What this machine's file says of `name`, or else what `measure` finds, which is written
    there. A file that cannot be read or written is as good as none."""
    kept = _read()
    if name not in kept:
        kept[name] = measure()
        _write(name, kept[name])
    return kept[name]


def _file() -> Path:
    build = hashlib.sha256(torch.__config__.show().encode()).hexdigest()
    key = json.dumps([FORMAT, facts(), build, platform.platform()], sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "minise" / f"bits-{name}.json"


@lru_cache(1)
def _read() -> dict[str, list[list[int]]]:
    try:
        found = json.loads(_file().read_text())["classes"]
        return {name: [[int(n) for n in one] for one in classes] for name, classes in found.items()}
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError, RuntimeError):
        return {}


def _write(name: str, classes: list[list[int]]) -> None:
    """Add to the file, which another process may have changed meanwhile. It is replaced whole."""
    _read.cache_clear()
    told = {"machine": facts(), "classes": {**_read(), name: classes}}
    with suppress(OSError, RuntimeError):  # a full disk, no home: it is measured again next time
        path = _file()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        try:
            temporary.write_text(json.dumps(told))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    _read.cache_clear()
