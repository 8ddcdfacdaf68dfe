"""A decoder split over processes, by heads and by columns of the MLP.

As in Megatron-LM (Shoeybi et al. 2019, Section 3): each of W processes has H / W query heads with
their K / W key/value heads, and 1 / W of the MLP. Embedding, norms and output matrix are whole in
each. What the processes' parts of o_proj and of down_proj give is added up: two sums of (T, D)
values a layer, after which all have the same numbers. model.py knows nothing of it.

Beside one process the sums run in another order, so the last bits differ.
"""

from __future__ import annotations

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
    """A linear layer that has a part of the columns. Its output is the sum over the processes."""

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
                fits = [W for W in range(1, self.of) if not any(n % W for n in sizes.values())]
                raise InputError(
                    f"{name} {size} cannot be split over {self.of} processes; use "
                    f"--tensor-parallel {fits[-1]}"
                )
        with torch.device("meta"):
            part: dict[str, Any] = {name: size // self.of for name, size in sizes.items()}
            decoder = Decoder(replace(config, **part))
            for module in list(decoder.modules()):
                for name in SPLIT_COLUMNS:
                    if (linear := getattr(module, name, None)) is not None:
                        summed = Summed(linear.in_features, linear.out_features, bias=False)
                        summed.group = self.group
                        setattr(module, name, summed)
        return decoder

    def read(self, name: str, stored: Any) -> Tensor:
        """Its part of the tensor `name`, a safetensors slice: nothing else is read."""
        layer = name.split(".")[-2]
        axis = 0 if layer in SPLIT_ROWS else 1 if layer in SPLIT_COLUMNS else None
        if axis is None:
            whole: Tensor = stored[:]
            return whole
        part = stored.get_shape()[axis] // self.of
        own = slice(self.index * part, (self.index + 1) * part)
        read: Tensor = stored[own] if axis == 0 else stored[:, own]
        return read
