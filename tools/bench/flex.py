"""The decoder, reading by compiled FlexAttention in place of `scaled_dot_product_attention` in
chunks. For measurements: tools/bench/ways.py and tools/bench/card.py say what it brings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from minise.attention import Attend, by_mask, within
from minise.model import Decoder


class FlexDecoder(Decoder):
    """The decoder `plain` with another `reader`. No number is copied. Needs a C++ compiler on a
    CPU, and Triton on a GPU."""

    def __init__(self, plain: Decoder) -> None:
        nn.Module.__init__(self)
        self.config = plain.config
        self.model = plain.model
        self.rotary = plain.rotary
        self.lm_head = plain.lm_head
        self.flex = torch.compile(flex_attention)

    def reader(self, mask_BTU: Tensor, positions_BU: Tensor, rows: Tensor | None) -> Attend:
        windows = self.config.sliding_windows
        top = len(windows) - 1
        masks: dict[int | None, BlockMask] = {}
        for window in set(windows):
            masks[window] = self.block_mask(mask_BTU, positions_BU, window)
        # The top layer has the queries of few rows, which no block of FlexAttention suits.
        read_top = by_mask(mask_BTU, positions_BU, windows[-1:], rows, self.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if layer == top:
                return read_top(0, q, k, v)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            out = self.flex(q, k, v, block_mask=masks[windows[layer]], enable_gqa=True)
            return out.transpose(1, 2)

        return attend

    def block_mask(self, mask_BTU: Tensor, positions_BU: Tensor, window: int | None) -> BlockMask:
        """The mask as FlexAttention takes it: by blocks of 128 queries and keys."""
        B, T, U = mask_BTU.shape
        mask_BTU = mask_BTU.to(self.device)
        positions_BU = positions_BU.to(self.device)
        allowed = within(mask_BTU, positions_BU[:, -T:], positions_BU, window)

        def may_see(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return allowed[b, q, k]

        return create_block_mask(may_see, B, None, T, U, str(self.device))
