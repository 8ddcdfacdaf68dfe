"""A decoder whose rows do not depend, even in their last bit, on what runs beside them.

It is called as model.Decoder is, over the same parameters. So the engines separate, packed and tree
are the same functions, and under it they give the same bits.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from minise.attention import Attend
from minise.errors import InputError
from minise.lab.equal_bits.attention import BLOCK, Reader, reader_of
from minise.lab.equal_bits.layers import fix_layers, linear
from minise.model import Decoder


class EqualBits(Decoder):
    """The decoder `plain` with other layers, another `reader` and another `logits`. No number is
    copied. Raises InputError on a GPU: nothing is known of its kernels."""

    def __init__(self, plain: Decoder) -> None:
        if plain.device.type != "cpu":
            raise InputError("equal bits are known of a CPU only; leave --equal-bits out")
        nn.Module.__init__(self)
        self.config = plain.config
        shared: dict[int, Any] = {}  # what deepcopy does not copy
        for tensor in (*plain.parameters(), *plain.buffers()):
            shared[id(tensor)] = tensor
        self.model = copy.deepcopy(plain.model, shared)
        self.lm_head = copy.deepcopy(plain.lm_head, shared)
        fix_layers(self.model, self.config)
        self.train(plain.training)

    def reader(self, mask_BTU: Tensor, positions_BU: Tensor, rows: Tensor | None) -> Attend:
        # Empty places of a call repeat its last query, whose gradient would count several times.
        if torch.is_grad_enabled() and any(x.requires_grad for x in self.parameters()):
            raise InputError("equal bits have no gradients; train without --equal-bits")
        readers: list[Reader] = []
        for mask_TU, positions_U in zip(mask_BTU, positions_BU, strict=True):
            readers.append(reader_of(mask_TU, positions_U, self, rows))

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = []
            for sequence, one in enumerate(readers):
                parts.append(one.attend(layer, q[sequence], k[sequence], v[sequence]))
            return torch.stack(parts)

        return attend

    def logits(self, hidden: Tensor, columns: Tensor | None = None) -> Tensor:
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        if columns is None:
            return linear(hidden, head.weight)
        # Dot products, one by one: in a matrix product a column's bits depend on its place.
        wide = torch.promote_types(hidden.dtype, torch.float32)
        rows = hidden.to(wide).reshape(-1, hidden.shape[-1])
        weights = head.weight[columns].to(wide)
        logits = []
        for some_rows in rows.split(BLOCK):
            parts = []
            for some_weights in weights.split(BLOCK):
                products = some_rows[:, None] * some_weights
                parts.append(products.sum(dim=-1))
            logits.append(torch.cat(parts, dim=-1))
        return torch.cat(logits).to(hidden.dtype).view(*hidden.shape[:-1], len(columns))
