"""A model in a wider dtype, without a whole copy of it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from minise.model import Decoder


class _Wide(nn.Module):
    """A layer that computes in another dtype, by a copy that lives for one call."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer, self.dtype = layer, dtype

    def forward(self, *arguments: object) -> Tensor:
        result: Tensor = copy.deepcopy(self.layer).to(self.dtype)(*arguments)
        return result


class _WideEmbedding(nn.Module):
    """An embedding whose rows are widened when they are looked up."""

    def __init__(self, layer: nn.Embedding, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.weight = layer.weight[:0].to(
            dtype
        )  # from which the decoder's dtype and device are read

    def forward(self, tokens: Tensor) -> Tensor:
        rows: Tensor = self.layer(tokens)
        return rows.to(self.weight.dtype)


def widened(decoder: Decoder, dtype: torch.dtype) -> Decoder:
    """The same model in a wider dtype. It holds a copy of the output matrix; its layers are copied
    one at a time, when they run."""
    with torch.device("meta"):
        wide = Decoder(decoder.config)
    model = decoder.model
    parts = {
        "embed_tokens": _WideEmbedding(model.embed_tokens, dtype),
        "layers": nn.ModuleList(_Wide(layer, dtype) for layer in model.layers),
        "norm": _Wide(model.norm, dtype),
    }
    for name, part in parts.items():
        wide.model.add_module(name, part)
    head: Any = model.embed_tokens if decoder.lm_head is None else decoder.lm_head
    wide.lm_head = copy.deepcopy(head).to(dtype)  # a tied one, too
    return wide
