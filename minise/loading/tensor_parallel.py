"""A decoder split over processes, by heads and by columns of the MLP.

As in Megatron-LM (Shoeybi et al. 2019, Section 3): each of W processes has H / W query heads with
their K / W key/value heads, and 1 / W of the MLP. Embedding, norms and output matrix are whole in
each. The outputs of the processes' parts of o_proj and of down_proj are added up: two sums of
(T, D) values per layer, after which all processes have the same numbers. model.py is unchanged.

The sums run in another order than in one process, so the last bits differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from minise.config import Config
from minise.errors import InputError
from minise.exact.layers import linear
from minise.model import Decoder

SPLIT_ROWS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
SPLIT_COLUMNS = ("o_proj", "down_proj")


class Summed(nn.Linear):
    """A linear layer with a part of the columns. Its output is the sum over the processes."""

    group: Any = None

    def forward(self, x: Tensor) -> Tensor:
        out = linear(x, self.weight, self.bias)
        distributed.all_reduce(out, group=self.group)
        return out


@dataclass(frozen=True, eq=False)
class Share:
    """The part of process `index` of `of`, whose sums run over `group` (None: all processes)."""

    index: int
    of: int
    group: Any = None

    def decoder(self, config: Config) -> Decoder:
        """Its part of the decoder, on the device "meta". Raises InputError for sizes that cannot be
        split."""
        sizes = {
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "intermediate_size": config.intermediate_size,
        }
        for name, size in sizes.items():
            if size % self.of:
                largest = max(W for W in range(1, self.of) if math.gcd(*sizes.values()) % W == 0)
                raise InputError(
                    f"{name} {size} cannot be split over {self.of} processes; use "
                    f"--tensor-parallel {largest}"
                )
        with torch.device("meta"):
            part: dict[str, Any] = {name: size // self.of for name, size in sizes.items()}
            decoder = Decoder(replace(config, **part))
            for module in list(decoder.modules()):
                for name, layer in list(module.named_children()):
                    if name in SPLIT_COLUMNS and isinstance(layer, nn.Linear):
                        summed = Summed(layer.in_features, layer.out_features, bias=False)
                        summed.group = self.group
                        setattr(module, name, summed)
        return decoder

    def read(self, name: str, stored: Any) -> Tensor:
        """Its part of the tensor `name`, of which `stored` is a safetensors slice. Nothing else is
        read."""
        layer = name.split(".")[-2]
        part: Tensor
        if layer in SPLIT_ROWS:
            part = stored[self._part(stored.get_shape()[0])]
        elif layer in SPLIT_COLUMNS:
            part = stored[:, self._part(stored.get_shape()[1])]
        else:
            part = stored[:]
        return part

    def _part(self, size: int) -> slice:
        """The part of this process of so many rows or columns."""
        each = size // self.of
        return slice(self.index * each, (self.index + 1) * each)
