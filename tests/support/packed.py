"""A checkpoint's tensors as bitsandbytes stores them in 4 bits."""

import json
from typing import Any

import torch
from torch import Tensor

from minise.loading.quantize import STATE, _nearest, pack


def stored(weight: Tensor, format: str, block: int = 64, **facts: Any) -> dict[str, Tensor]:
    """The tensors of a matrix as bitsandbytes stores them, by what follows its name."""
    kind = format.removesuffix("-double")
    codes, scales, table = pack(weight, kind)
    tensors = {"": codes[:, None], ".absmax": scales, ".quant_map": table.clone()}
    state = {"quant_type": kind, "blocksize": block, "shape": list(weight.shape)}
    if format != kind:
        mean, entries = scales.mean(), torch.linspace(-1, 1, 256)
        nearest, largest = _nearest(scales - mean, entries, 256)
        tensors[".absmax"] = nearest.view(-1)[: len(scales)].to(torch.uint8)
        tensors |= {".nested_absmax": largest, ".nested_quant_map": entries}
        state |= {"nested_blocksize": 256, "nested_offset": mean.item()}
    fact = torch.tensor(list(json.dumps(state | facts).encode()), dtype=torch.uint8)
    return tensors | {f"{STATE.removeprefix('.weight')}{kind}": fact}


def in_4_bits(tensors: dict[str, Tensor], format: str = "nf4-double") -> dict[str, Tensor]:
    """The tensors of a checkpoint with the matrices of its blocks in 4 bits."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        parts = stored(tensor, format) if name.endswith("_proj.weight") else {"": tensor}
        result |= {name + part: one for part, one in parts.items()}
    return result
