"""4-bit weights in the formats of bitsandbytes: pack a matrix, unpack it, compute with it.

A matrix is read row by row and cut into blocks of 64 values; a block may run over the end of a
row. A block is stored as its largest absolute value (`absmax`), and each of its values as the index
of the nearest entry of a table of 16: value = table[code] * absmax. nf4 and fp4 are two such
tables. Double quantization stores the absmax in 8 bits in the same way: their mean is taken off,
and what remains is cut into blocks of 256, with a table of 256.

The linear layers inside a decoder's blocks are packed: q, k, v, o, gate, up and down. Embeddings,
norms, biases and the output matrix never are.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minise.errors import InputError, one_line, quote
from minise.exact.layers import linear
from minise.loading.names import FOUR_BIT

# fp4: a sign, two bits of exponent, one of fraction. Codes 0 and 8 are both zero.
_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
# nf4: quantiles of a normal distribution.
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
TABLES = {"nf4": torch.tensor(_NF4), "fp4": torch.tensor([*_FP4, *(-x for x in _FP4)]) / 12}
DOUBLE = "-double"  # ends the name of a format with double quantization
BLOCK, NESTED_BLOCK = 64, 256  # values in a block
BLOCKS = {32, 64, 128, 256, 512, 1024, 2048, 4096}  # the sizes that bitsandbytes knows
PIECE = 1 << 20  # values that are packed or unpacked at once on a CPU
ROWS = 64  # rows of a piece, at most: threads look up whole rows

BYTES = 0.5 + 4 / BLOCK  # of memory per value, at most
# A matrix that may be packed, and the tensors that bitsandbytes stores beside it: "absmax", ...
MATRIX = re.compile(r"(model\.layers\.\d+\.(?:self_attn|mlp)\.\w+_proj\.weight)(?:\.(.+))?")
STATE = "quant_state.bitsandbytes__"


@dataclass(frozen=True, eq=False)
class Packed:
    """A matrix in 4 bits. `tensors` have the names that come after "weight." in a stored layer:

    "" uint8 (values / 2,), two codes in a byte, the first in its high half; "quant_map" float32
    (16,), the table; "absmax" float32 (blocks,). With double quantization "absmax" is uint8, codes
    too, and there are "nested_quant_map" (256,), "nested_absmax" (blocks / 256,) and
    "nested_offset" (), the mean that was taken off, all float32.
    """

    kind: str  # a key of TABLES
    shape: tuple[int, int]
    block: int  # values in a block
    tensors: dict[str, Tensor]

    @property
    def format(self) -> str:
        """The kind, and "-double" with double quantization."""
        return self.kind + (DOUBLE if "nested_offset" in self.tensors else "")

    def scales(self) -> Tensor:
        """The absmax of each block, (blocks,) float32."""
        parts = self.tensors
        if "nested_offset" not in parts:
            return parts["absmax"]
        values = parts["nested_quant_map"][parts["absmax"].int()]
        return _scale(values, parts["nested_absmax"], NESTED_BLOCK) + parts["nested_offset"]

    def unpack(self, dtype: torch.dtype, memory: Memory | None = None) -> Tensor:
        """The matrix. The products are float32 and then rounded to `dtype`. With `memory` it lies
        there, and only until the next one does."""
        # For each of the 256 bytes its two values in float32, looked up as one number of 8 bytes.
        table, packed = self.tensors["quant_map"], self.tensors[""]
        pairs = torch.stack([table.repeat_interleave(16), table.repeat(16)], dim=1)
        both = pairs.view(torch.int64).view(1, -1)
        if memory is None:
            out = torch.empty(2 * len(packed), dtype=dtype, device=packed.device)
        else:
            out = memory.of(2 * len(packed), dtype)
        size = _piece(packed.device)
        # For all pieces one memory: to allocate it for each takes as long as to look it up.
        index = torch.empty(min(size // 2, len(packed)), dtype=torch.int64, device=packed.device)
        values = torch.empty_like(index)
        pieces = (packed.split(size // 2), self.scales().split(size // self.block))
        for piece, codes, scales in zip(out.split(size), *pieces, strict=True):
            n = len(codes)
            index[:n] = codes
            # Torch divides the rows of a gather among its threads.
            rows = math.gcd(n, ROWS)
            index_rows, value_rows = (x[:n].view(rows, -1) for x in (index, values))
            torch.gather(both.expand(rows, -1), 1, index_rows, out=value_rows)
            piece.copy_(_scale(values[:n].view(torch.float32), scales, self.block))
        return out[: math.prod(self.shape)].view(self.shape)

    def to(self, device: torch.device) -> Packed:
        """The same on another device."""
        return replace(self, tensors={name: x.to(device) for name, x in self.tensors.items()})


class Memory(threading.local):
    """Memory of this thread for one unpacked matrix on a CPU, kept for the next. The pages of new
    memory are mapped one by one, which takes half as long as to unpack a matrix into them."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def of(self, values: int, dtype: torch.dtype) -> Tensor:
        """Memory for so many values: (values,) of `dtype`."""
        size = values * dtype.itemsize
        if len(self.bytes) < size:
            self.bytes = torch.empty(0, dtype=torch.uint8)  # free the old one first
            with torch.inference_mode(False):  # so that it can be used outside of that mode, too
                self.bytes = torch.empty(size, dtype=torch.uint8)
        return self.bytes[:size].view(dtype)


_memory = Memory()


class Linear4bit(nn.Module):
    """A linear layer that unpacks its weight each time it is used. Its numbers are, to the last
    bit, those of an ordinary layer that has the unpacked weight in `dtype`."""

    def __init__(self, packed: Packed, bias: nn.Parameter | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.packed, self.bias, self.dtype = packed, bias, dtype
        self.out_features, self.in_features = packed.shape

    def forward(self, x: Tensor) -> Tensor:
        # A gradient needs the weight later.
        keep = torch.is_grad_enabled() or x.device.type != "cpu"
        weight = self.packed.unpack(self.dtype, None if keep else _memory)
        return linear(x, weight.to(x.dtype), self.bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear4bit:
        # .to() calls this. The packed tensors move to another device, but keep their dtypes.
        self.packed = self.packed.to(fn(self.packed.tensors[""]).device)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


def pack(weight: Tensor, format: str) -> Packed:
    """A matrix (rows, columns) of finite numbers in 4 bits, on its device. `format`: a key of
    TABLES, or that and "-double" for double quantization."""
    kind = format.removesuffix(DOUBLE)
    table = TABLES[kind].to(weight.device)
    ascending, order = table.sort()
    order = order.to(torch.uint8)
    values, blocks = weight.numel(), -(-weight.numel() // BLOCK)
    codes = torch.empty(-(-values // 2), dtype=torch.uint8, device=weight.device)
    absmax = torch.empty(blocks, device=weight.device)
    size = _piece(weight.device)
    pieces = (weight.reshape(-1).split(size), codes.split(size // 2), absmax.split(size // BLOCK))
    for piece, out, largest in zip(*pieces, strict=True):
        nearest, largest[:] = _nearest(piece.float(), ascending, BLOCK)
        high, low = order.index_select(0, nearest.int()).view(-1, 2).unbind(dim=1)
        out[:] = (high << 4 | low)[: len(out)]  # the last block may be a shorter one
    parts = {"": codes, "quant_map": table, "absmax": absmax}
    if format.endswith(DOUBLE):
        offset, dynamic = parts["absmax"].mean(), _dynamic_table().to(weight.device)
        nearest, largest = _nearest(parts["absmax"] - offset, dynamic, NESTED_BLOCK)
        parts["absmax"] = nearest[: len(parts["absmax"])]
        parts |= {"nested_quant_map": dynamic, "nested_absmax": largest, "nested_offset": offset}
    rows, columns = weight.shape
    return Packed(kind, (rows, columns), BLOCK, parts)


def read_stored(tensors: dict[str, Tensor], shape: tuple[int, int], where: str) -> Packed:
    """The matrix that bitsandbytes stored as `tensors`, named by what comes after "weight." (""
    for the codes). Raises InputError that begins with `where` if they are no such matrix."""
    state = next((name for name in tensors if name.startswith(STATE)), STATE + "nf4")
    try:
        facts = json.loads(bytes(tensors[state].tolist()).decode())
        kind, block, double = facts["quant_type"], facts["blocksize"], "nested_offset" in facts
        if type(block) is not int or block not in BLOCKS:
            raise ValueError(f"blocks of {quote(block)}")
        if kind not in TABLES or state != STATE + kind:
            raise ValueError(f"quant_type {quote(kind)}")
        if tuple(facts["shape"]) != shape:
            raise ValueError(f"shape {facts['shape']}, config.json makes it {list(shape)}")
        if double and facts["nested_blocksize"] != NESTED_BLOCK:
            raise ValueError(f"nested_blocksize {facts['nested_blocksize']}, not {NESTED_BLOCK}")
        offset = _finite(facts["nested_offset"]) if double else None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"cannot be used ({one_line(error)})"
        raise InputError(f"{where}.{state} {reason}; fetch the checkpoint again") from None
    blocks = -(-math.prod(shape) // block)
    expected = {"": (-(-math.prod(shape) // 2), torch.uint8), "quant_map": (16, torch.float32)}
    expected["absmax"] = (blocks, torch.uint8 if double else torch.float32)
    if double:
        expected["nested_absmax"] = (-(-blocks // NESTED_BLOCK), torch.float32)
        expected["nested_quant_map"] = (256, torch.float32)
    parts = {name: tensor.reshape(-1) for name, tensor in tensors.items() if name != state}
    if "" in parts:  # the codes may be stored as numbers of any dtype; they are bytes all the same
        parts[""] = parts[""].view(torch.uint8)
    for name in sorted({*parts, *expected}):
        actual = (len(parts[name]), parts[name].dtype) if name in parts else None
        needed = expected.get(name)
        if actual != needed:
            tensor = f"{where}.{name}".rstrip(".")
            raise InputError(
                f"{tensor} is {actual}, and a 4-bit matrix of {list(shape)} needs {needed} "
                "(size and dtype); fetch the checkpoint again"
            )
    if not torch.allclose(parts["quant_map"].cpu(), TABLES[kind], rtol=0, atol=1e-6):
        raise InputError(
            f"{where}.quant_map is not the table of {kind}; fetch the checkpoint again"
        )
    if offset is not None:
        parts["nested_offset"] = torch.tensor(offset)
    return Packed(kind, shape, block, parts)


def _finite(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"nested_offset {quote(value)}")
    return float(value)


def check_format(quantize: str | None) -> None:
    """Raise InputError for an unknown format."""
    if quantize not in (None, *FOUR_BIT):
        raise InputError(f"quantize {quote(quantize)} is not one of {', '.join(FOUR_BIT)}")


def matrix_of(name: str) -> tuple[str, str]:
    """The matrix in a block to which a checkpoint's tensor belongs, and as which part of it.

    >>> matrix_of("model.layers.0.mlp.up_proj.weight.absmax")
    ('model.layers.0.mlp.up_proj.weight', 'absmax')
    >>> matrix_of("model.layers.0.mlp.up_proj.weight"), matrix_of("lm_head.weight")
    (('model.layers.0.mlp.up_proj.weight', ''), ('', ''))
    """
    match = MATRIX.fullmatch(name)
    return (match[1], match[2] or "") if match else ("", "")


def put(decoder: nn.Module, name: str, packed: Packed, dtype: torch.dtype, where: Path) -> None:
    """Replace the layer whose weight has this name by one with the packed weight and the same bias.
    Raises InputError that begins with `where` if the scales are not finite in `dtype`."""
    if not packed.scales().to(dtype).isfinite().all():
        reason = f"has scales that are not finite in {dtype}; use bfloat16 or float32"
        raise InputError(f"{where}: tensor {name} {reason}, or fetch the checkpoint again")
    parent, _, last = name.removesuffix(".weight").rpartition(".")
    module = decoder.get_submodule(parent)
    setattr(module, last, Linear4bit(packed, getattr(module, last).bias, dtype))


def format_of(decoder: nn.Module) -> str | None:
    """How its layers are packed, as in `Packed.format`; None where none is."""
    layers = (module for module in decoder.modules() if isinstance(module, Linear4bit))
    return "+".join(sorted({layer.packed.format for layer in layers})) or None


def _piece(device: torch.device) -> int:
    """How many values are handled at once: on a CPU about what its caches hold; elsewhere more,
    because each piece starts several kernels."""
    return PIECE if device.type == "cpu" else 32 * PIECE


def _scale(values: Tensor, absmax: Tensor, block: int) -> Tensor:
    """The values (n,), each times the absmax of its block. In place."""
    whole = len(values) // block
    values[: whole * block].view(-1, block).mul_(absmax[:whole, None])
    values[whole * block :].mul_(absmax[whole:])  # the last block, if it is shorter
    return values


def _nearest(values: Tensor, table: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """For each value, divided by its block's absmax, the index of the nearest entry of a sorted
    table, the lower one on a tie; and the absmax. The last block is filled up with zeros."""
    blocks = F.pad(values, (0, -len(values) % block)).view(-1, block)
    absmax = blocks.abs().amax(dim=1)
    least = absmax.clamp(min=1e-38)
    scaled = blocks * (1 / least)[:, None]
    if len(values) % block:  # bitsandbytes divides in a shorter block; the last bit may differ
        scaled[-1] = blocks[-1] / least[-1]
    nearest = torch.zeros_like(scaled, dtype=torch.uint8)
    for edge in (table[1:] + table[:-1]) / 2:  # for so few entries faster than torch.bucketize
        nearest += scaled > edge
    return nearest.view(-1), absmax


def _dynamic_table() -> Tensor:
    """The 256 values for 8 bits: float32, more of them near 0, from -0.993 to 1."""
    values = [0.0, 1.0]
    for i in range(7):
        edges = torch.linspace(0.1, 1, 2**i + 1)
        some = (10 ** (i - 6) * (edges[1:] + edges[:-1]) / 2).tolist()
        values += [*some, *(-x for x in some)]
    return torch.tensor(sorted(values))
