"""A model in float64, without a whole copy of it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from torch import nn

from minise.engines import LanguageModel


class _Wide(nn.Module):
    """A layer that computes in float64, by a copy that lives for one call."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.narrow = [layer]  # in a list it is no part of this module, and stays as it is

    def forward(self, *arguments: object) -> object:
        return copy.deepcopy(self.narrow[0]).double()(*arguments)


def widened(lm: LanguageModel) -> LanguageModel:
    """The same model in float64, its refined decoder too. It holds copies of the embedding and the
    output matrix; the layers are copied one at a time, when they run."""
    known: dict[int, Any] = {}  # what deepcopy takes as copied; so the two share their copies
    for decoder in (lm.decoder, lm.refined):
        layers = decoder.model.layers
        known[id(layers)] = nn.ModuleList(map(_Wide, layers))
    plain, refined = (copy.deepcopy(one, known).double() for one in (lm.decoder, lm.refined))
    wide = replace(lm, decoder=plain)
    wide.__dict__["refined"] = refined  # in place of what the property would make
    return wide
