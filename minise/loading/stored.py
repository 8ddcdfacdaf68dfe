"""What a checkpoint's files hold, by the config and the files' heads alone: no value is read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from minise.config import Config
from minise.errors import InputError, one_line
from minise.loading.quantize import BYTES, STATE, matrix_of
from minise.model import Decoder
from minise.names import DTYPES as DTYPE_NAMES

if TYPE_CHECKING:
    from minise.loading.tensor_parallel import Share

DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in DTYPE_NAMES)
_IN_FILES = dict(zip(("F64", "F32", "BF16", "F16"), DTYPES, strict=True))


@dataclass(frozen=True, eq=False)
class Stored:
    """A checkpoint before its weights are read.

    decoder: on the device "meta", so shapes without values; `shapes` are its tensors'. tensors:
    every tensor of the files, as (file, name). dtype: that of most values, where they are not
    packed. packed: the matrices that are stored in 4 bits. share: the part of this process, if the
    decoder is split; `shapes` are those of the whole one.
    """

    folder: Path
    decoder: Decoder
    shapes: dict[str, tuple[int, ...]]
    tensors: list[tuple[Path, str]]
    dtype: torch.dtype
    packed: frozenset[str]
    share: Share | None = None

    def split(self, share: Share, quantize: str | None = None) -> Stored:
        """The part of one process. Raises InputError for weights in 4 bits, whose blocks cannot be
        split, and for sizes that cannot."""
        if self.in_4_bits(quantize):
            raise InputError(f"{self.folder}: weights in 4 bits cannot be split over processes")
        return replace(self, decoder=share.decoder(self.decoder.config), share=share)

    @property
    def values(self) -> int:
        """How many numbers the model has."""
        return sum(map(math.prod, self.shapes.values()))

    def in_4_bits(self, quantize: str | None) -> frozenset[str]:
        """The matrices that are packed once it is loaded so. Raises InputError for packing what is
        packed already."""
        if quantize is None:
            return self.packed
        if self.packed:
            raise InputError(f"{self.folder}: is stored in 4 bits; leave quantize out")
        return frozenset(name for name in self.shapes if matrix_of(name)[0])

    def bytes(self, dtype: torch.dtype, packed: frozenset[str] = frozenset()) -> int:
        """Memory that the weights take in `dtype`, with these matrices in 4 bits."""
        return math.ceil(
            sum(
                tensor.numel() * (BYTES if name in packed else dtype.itemsize)
                for name, tensor in self.decoder.state_dict().items()
            )
        )


def read_heads(config: Config, files: Sequence[Path]) -> Stored:
    """What these files hold. Raises InputError for one that is not whole."""
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


def described(config: Config, path: Path) -> Stored:
    """What a checkpoint holds by the account of its config.json, which is at `path`, alone."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    name = raw.get("dtype") or raw.get("torch_dtype")
    dtype = getattr(torch, name) if name in DTYPE_NAMES else torch.float32
    decoder, shapes = _shapes(config)
    all_of = shapes if raw.get("quantization_config") else ()
    packed = frozenset(name for name in all_of if matrix_of(name)[0])
    return Stored(path.parent, decoder, shapes, [], dtype, packed)


@contextmanager
def opened(path: Path) -> Iterator[Any]:  # safe_open is untyped
    """A safetensors file, mapped. Raises InputError for one that is not whole."""
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
