"""transformers with a 4-D mask and positions. HOW=sdpa (the default) or eager. DEVICE=cuda: there.

WINDOW=no gives every layer the mask without the window in it.
"""

import functools
import os

import torch
from transformers import AutoModelForCausalLM

DEVICE, HOW = os.environ.get("DEVICE", "cpu"), os.environ.get("HOW", "sdpa")


@functools.cache
def load(folder, dtype):
    kind = getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation=HOW)
    return model.to(DEVICE).eval()


@torch.no_grad()
def logits(folder, dtype, tokens, positions, mask, mask_in_window):
    model = load(folder, dtype)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * len(mask_in_window)
    without = os.environ.get("WINDOW") == "no"
    masks = {}
    for kind, sees in zip(kinds, mask_in_window, strict=True):
        sees = torch.tensor(mask if without else sees, device=DEVICE)[None, None]
        lowest = torch.finfo(model.dtype).min
        masks[kind] = torch.zeros(sees.shape, dtype=model.dtype, device=DEVICE)
        masks[kind] = masks[kind].masked_fill(~sees, lowest)
    ids, where = (torch.tensor(x, device=DEVICE)[None] for x in (tokens, positions))
    given = masks if len(masks) > 1 else next(iter(masks.values()))
    found = model(input_ids=ids, position_ids=where, attention_mask=given, use_cache=False)
    return found.logits[0].double().cpu().numpy()
