"""The facts that decide how a CPU rounds: the processor, torch, and environment variables.

What was measured with the same facts is in files: in ~/.cache/minise, or under XDG_CACHE_HOME.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from minise.errors import InputError
from minise.lab.files import write_file

# The variables by which MKL, oneDNN, OpenMP and torch choose kernels begin so.
CHOOSES = ("MKL_", "ONEDNN_", "DNNL_", "ATEN_CPU_CAPABILITY", "OMP_", "TORCH_MKLDNN")
FORMAT = 4  # of a stored file: one more whenever the rules of the probe change


def processor() -> str:
    """The processor's name, such as "AMD EPYC (family 26, ...)": in a cloud names are short."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    facts = {}
    for line in first.splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    parts = []
    for key, short in (("cpu family", "family"), ("model", "model"), ("stepping", "stepping")):
        if key in facts:
            parts.append(f"{short} {facts[key]}")
    name = facts.get("model name", platform.machine())
    return f"{name} ({', '.join(parts)})" if parts else name


def instructions() -> str:
    """The instructions that torch uses, and those for matrices that its libraries may use."""
    return " + ".join([torch.backends.cpu.get_cpu_capability(), *for_bfloat16()])


def for_bfloat16() -> list[str]:
    """The instructions of this CPU that multiply bfloat16. (On ARM this is not known.)"""
    checks = {"AVX512-BF16": "_is_avx512_bf16_supported", "AMX": "_is_amx_tile_supported"}
    found = []
    for name, check in checks.items():
        is_supported = getattr(torch.cpu, check, None)  # a private function of torch
        if is_supported is not None and is_supported():
            found.append(name)
    return found


def computes_16_bits() -> bool:
    """Whether this CPU computes with bfloat16 and float16, and does not only store them."""
    return instructions() != "AVX2"


def environment() -> dict[str, str]:
    """The variables that are set and choose kernels. The size of a cache of kernels does not."""
    found = {}
    for name, value in sorted(os.environ.items()):
        if name.startswith(CHOOSES) and not name.endswith("_CACHE_CAPACITY"):
            found[name] = value
    return found


def facts() -> dict[str, object]:
    """The facts about this machine that stand beside results: without any path."""
    return {
        "cpu": processor(),
        "instructions": instructions(),
        "torch": torch.__version__,
        "environment": environment(),
    }


def remembered(name: str, measure: Callable[[], list[list[int]]]) -> list[list[int]]:
    """What this machine has under `name` in a file, or the result of `measure`, which is then
    written there. A file that cannot be read or written is treated as absent."""
    with suppress(Exception):  # there may be none, no home, or it holds anything
        classes = json.loads(_file(name).read_text())["classes"]
        return [list(map(int, numbers)) for numbers in classes]
    found = measure()
    # A full disk, no home: it is measured again next time.
    with suppress(OSError, RuntimeError, InputError):
        path = _file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"machine": facts(), "name": name, "classes": found}
        write_file(path, json.dumps(content))
    return found


def _file(name: str) -> Path:
    build = hashlib.sha256(torch.__config__.show().encode()).hexdigest()
    key = json.dumps([FORMAT, facts(), build, platform.platform(), name], sort_keys=True)
    digest = hashlib.sha256(key.encode()).hexdigest()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "minise" / f"bits-{digest[:16]}.json"
