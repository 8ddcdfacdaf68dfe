"""The decoder of equal bits, which belongs to the lab: a copy of the reference alone has none."""

from importlib.util import find_spec

import pytest

from minise import Decoder
from minise.by_name import from_lab

HAS_LAB = find_spec("minise.lab") is not None
needs_lab = pytest.mark.skipif(not HAS_LAB, reason="equal bits are in minise/lab")


def equal_bits(plain: Decoder) -> Decoder:
    """The decoder of equal bits over the same parameters."""
    found: Decoder = from_lab("--equal-bits")(plain)
    return found


def both(plain: Decoder) -> list[Decoder]:
    """The plain decoder, and the one of equal bits where there is one."""
    return [plain, equal_bits(plain)] if HAS_LAB else [plain]
