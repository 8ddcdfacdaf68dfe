"""What the files of a checkpoint hold, by the config and the files' headers: no value is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from minise.config import Config
from minise.errors import InputError, one_line
from minise.loading.names import DTYPES as DTYPE_NAMES
from minise.loading.quantize import BYTES, STATE, matrix_of
from minise.model import Decoder

DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in DTYPE_NAMES)
_IN_FILES = dict(zip(("F64", "F32", "BF16", "F16"), DTYPES, strict=True))


@dataclass(frozen=True, eq=False)
class Stored:
    """A checkpoint before its weights are read.

    decoder: on the device "meta", which keeps shapes and no values. shapes: of its tensors by their
    names. tensors: every tensor of the files, as (file, name). dtype: of most of the values that
    are not in 4 bits. packed: the matrices that are stored in 4 bits.
    """

    folder: Path
    decoder: Decoder
    shapes: dict[str, tuple[int, ...]]
    tensors: list[tuple[Path, str]]
    dtype: torch.dtype
    packed: frozenset[str]

    @property
    def values(self) -> int:
        """How many numbers the model has."""
        return sum(map(math.prod, self.shapes.values()))

    def in_4_bits(self, quantize: str | None) -> frozenset[str]:
        """The matrices that are in 4 bits after loading with `quantize`. Raises InputError if they
        are stored in 4 bits already."""
        if quantize is None:
            return self.packed
        if self.packed:
            raise InputError(f"{self.folder}: is stored in 4 bits; leave quantize out")
        return frozenset(name for name in self.shapes if matrix_of(name)[0])

    def bytes(self, dtype: torch.dtype, packed: frozenset[str] = frozenset()) -> int:
        """Memory that the weights take in `dtype`, with the matrices `packed` in 4 bits."""
        size = 0.0
        for name, tensor in self.decoder.state_dict().items():
            size += tensor.numel() * (BYTES if name in packed else dtype.itemsize)
        return math.ceil(size)


def read_headers(config: Config, files: Sequence[Path]) -> Stored:
    """What these files hold, by their headers. Raises InputError for a damaged file."""
    decoder, shapes = _shapes(config)
    tensors, kinds, packed = [], {}, set()
    for path in files:
        with opened(path) as file:
            for name in sorted(file.keys()):
                tensors.append((path, name))
                kinds[name] = file.get_slice(name).get_dtype()
                matrix, part = matrix_of(name)
                if part.startswith(STATE) and matrix in shapes:
                    packed.add(matrix)
    values = Counter[torch.dtype]()
    for name in shapes.keys() & kinds.keys() - packed:
        if kinds[name] in _IN_FILES:
            values[_IN_FILES[kinds[name]]] += math.prod(shapes[name])
    dtype = max(values, key=values.__getitem__, default=torch.float32)
    return Stored(files[0].parent, decoder, shapes, tensors, dtype, frozenset(packed))


@contextmanager
def opened(path: Path) -> Iterator[Any]:  # safe_open is untyped
    """A safetensors file, mapped into memory. Raises InputError for a damaged file."""
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path}: not a whole safetensors file ({one_line(error)}); fetch it again"
        ) from None


def _shapes(config: Config) -> tuple[Decoder, dict[str, tuple[int, ...]]]:
    with torch.device("meta"):  # no memory for initial values
        decoder = Decoder(config)
    return decoder, {name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}
