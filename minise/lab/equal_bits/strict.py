"""MKL's strict mode, switched on where it costs little: on Intel's processors.

There it gives float32 and float64 the same bits for nearly any number of rows (docs/verify.md). The
command line sets it before torch is imported: MKL reads it at its first product.
"""

from __future__ import annotations

import os

VARIABLE, STRICT = "MKL_CBWR", "AUTO,STRICT"


def ask_for() -> None:
    """Set the variable for this process on an Intel processor, unless the user has set it."""
    if is_intel():
        os.environ.setdefault(VARIABLE, STRICT)


def is_intel() -> bool:
    """Whether the processor is Intel's."""
    try:
        with open("/proc/cpuinfo") as file:  # pathlib would take a while to import
            return "GenuineIntel" in file.read(4096)
    except OSError:
        return "GenuineIntel" in os.environ.get("PROCESSOR_IDENTIFIER", "")
