"""The published shapes are configs that the decoder can be built from."""

from __future__ import annotations

import torch

from minise import Decoder
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.loading.config_json import config_from_dict


def test_all_published_shapes_and_the_small_one_can_be_built() -> None:
    for raw in [BENCH_SHAPE, *PUBLISHED.values()]:
        with torch.device("meta"):
            assert Decoder(config_from_dict(raw))
