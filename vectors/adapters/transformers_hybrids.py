"""The hybrids in transformers. HOW=alone (the default): each prompt alone, which the vectors are
held to. HOW=mask: the row in one pass with a 4-D mask and positions; states know no borders."""

import functools
import os

import torch
from transformers import AutoModelForCausalLM

MODEL_TYPES = ("qwen3_5_text", "nemotron_h")
HOW = os.environ.get("HOW", "alone")


@functools.cache
def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


@torch.no_grad()
def logits(folder, dtype, tokens, positions, prompts, mask, config):
    model = load(folder, dtype)
    ids = torch.tensor(tokens)[None]
    if HOW == "mask":
        additive = torch.zeros(1, 1, *mask.shape, dtype=model.dtype)
        additive = additive.masked_fill(~torch.tensor(mask), torch.finfo(model.dtype).min)
        where = torch.tensor(positions)[None]
        call = {"position_ids": where, "attention_mask": additive, "use_cache": False}
        return model(input_ids=ids, **call).logits[0].double().numpy()
    out = torch.zeros(len(tokens), config["vocab_size"], dtype=torch.float64)
    for prompt in prompts:
        path = torch.tensor(prompt[prompt >= 0])
        out[path] = model(input_ids=ids[:, path], use_cache=False).logits[0].double()
    return out.numpy()
