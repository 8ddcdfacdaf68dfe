"""4-bit weights in the formats of bitsandbytes: pack a matrix, unpack it, compute with it.

A matrix is read row by row and cut into blocks of 64 values; a block may run over the end of a row.
A block is stored as its largest absolute value (its scale), and each of its values as the index of
the nearest entry of a table of 16: value = table[code] * scale. nf4 and fp4 are two such tables.
"nf4-double" rounds the scales to 8 bits in the same way: their mean is taken off, and the rest cut
into blocks of 256, with a table of 256. (Here they are held as float32 all the same.)
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
BLOCK, NESTED_BLOCK = 64, 256  # values in a block


class Packed(nn.Module):
    """A linear layer with the shape and bias of `layer` and its weight in 4 bits.

    parts: codes, uint8 (values / 2,), two in a byte, the first in its high half; scales, float32
    (blocks,); table, float32 (16,). The unpacked weight is rounded to `dtype`.
    """

    def __init__(self, parts: Sequence[Tensor], layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.out_features, layer.in_features
        self.bias, self.dtype = layer.bias, dtype
        codes, scales, table = parts
        # Floats are held as integers, so that .to(dtype) changes `like` alone.
        buffers = {"codes": codes, "scales": scales.view(torch.int32)}
        buffers |= {"table": table.view(torch.int32), "like": torch.empty(0, dtype=dtype)}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The matrix (out, in), unpacked anew: products in float32, then rounded."""
        codes, like = self.get_buffer("codes"), self.get_buffer("like")
        scales, table = (self.get_buffer(x).view(torch.float32) for x in ("scales", "table"))
        # The two values of each byte, looked up as one number of 8 bytes: twice as fast.
        pairs = torch.stack([table.repeat_interleave(16), table.repeat(16)], dim=1)
        values = pairs.view(torch.int64)[:, 0].index_select(0, codes.int()).view(torch.float32)
        values.view(-1, BLOCK).mul_(scales[:, None])
        matrix = values[: self.out_features * self.in_features]
        return matrix.view(self.out_features, -1).to(self.dtype).to(like.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def pack_layers(layers: nn.Module, format: str, dtype: torch.dtype, device: torch.device) -> None:
    """Put `Packed` in place of all linear layers. `format`: one of FOUR_BIT."""
    for name, layer in list(layers.named_modules()):
        if isinstance(layer, nn.Linear):
            parts = pack(layer.weight.to(device), format)
            layers.set_submodule(name, Packed(parts, layer, dtype))


def pack(weight: Tensor, format: str) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of `Packed` for a matrix of finite numbers."""
    kind, _, double = format.partition("-")
    table = TABLES[kind].to(weight.device)
    ascending, order = table.sort()
    nearest, scales = _nearest(weight.reshape(-1).float(), ascending, BLOCK)
    high, low = order.byte().index_select(0, nearest.view(-1)).view(-1, 2).unbind(dim=1)
    if double:
        mean, dynamic = scales.mean(), _dynamic_table().to(weight.device)
        nearest, largest = _nearest(scales - mean, dynamic, NESTED_BLOCK)
        scales = (dynamic[nearest] * largest[:, None]).view(-1)[: len(scales)] + mean
    return high << 4 | low, scales, table


def _nearest(values: Tensor, table: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """For each value, divided by its block's largest absolute value, the index of the nearest entry
    of a sorted table, the lower one on a tie: (blocks, block); and those largest values."""
    blocks = F.pad(values, (0, -len(values) % block)).view(-1, block)
    largest = blocks.abs().amax(dim=1)
    scaled = blocks * (1 / largest.clamp(min=1e-38))[:, None]
    return torch.bucketize(scaled, (table[1:] + table[:-1]) / 2, out_int32=True), largest


def _dynamic_table() -> Tensor:
    """The 256 values for 8 bits: float32, more of them near 0, from -0.993 to 1."""
    edges = [torch.linspace(0.1, 1, 2**i + 1) for i in range(7)]
    some = [10 ** (i - 6) * (x[1:] + x[:-1]) / 2 for i, x in enumerate(edges)]
    return torch.cat([*some, *(-x for x in some), torch.tensor([0.0, 1.0])]).sort().values
