"""A checkpoint's tensors as bitsandbytes stores them in 4 bits."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from minise.loading.quantize import STATE, matrix_of, pack


def in_4_bits(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, its matrices in nf4 with double quantization."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not matrix_of(name)[0]:
            stored[name] = tensor
            continue
        parts = pack(tensor, "nf4-double").tensors
        facts = {"quant_type": "nf4", "blocksize": 64, "shape": list(tensor.shape)}
        facts |= {"nested_blocksize": 256, "nested_offset": parts["nested_offset"].item()}
        for part in parts.keys() - {"nested_offset"}:
            stored[f"{name}.{part}".rstrip(".")] = parts[part].clone()  # one table is for all
        stored[f"{name}.{STATE}nf4"] = torch.tensor(list(json.dumps(facts).encode())).byte()
    return stored
