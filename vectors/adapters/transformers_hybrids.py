"""The hybrids in transformers. HOW=alone (the default): each prompt alone, which the vectors are
held to. HOW=mask: the row in one pass with a 4-D mask and positions; states know no borders.
HOW=axes: Qwen3.5 with positions on three axes, without the fourth, by which borders are found.
HOW=cached: the row that rolls back, by Cache.crop."""

import functools
import os

import torch
import transformers

MODEL_TYPES = ("qwen3_5_text", "nemotron_h")
HOW = os.environ.get("HOW", "alone")


@functools.cache
def load(folder, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype)
    ).eval()


@torch.no_grad()
def logits(folder, dtype, tokens, positions, parents, cached, prompts, mask, config):
    model = load(folder, dtype)
    ids = torch.tensor(tokens)[None]
    if HOW == "mask":
        additive = torch.zeros(1, 1, *mask.shape, dtype=model.dtype)
        additive = additive.masked_fill(~torch.tensor(mask), torch.finfo(model.dtype).min)
        where = torch.tensor(positions)[None]
        call = {"position_ids": where, "attention_mask": additive, "use_cache": False}
        return model(input_ids=ids, **call).logits[0].double().numpy()
    if HOW == "axes":
        if config["model_type"] != "qwen3_5_text":
            return None
        where = torch.tensor(positions).expand(3, 1, -1)
        return model(input_ids=ids, position_ids=where, use_cache=False).logits[0].double().numpy()
    if HOW == "cached":
        return rolled_back(model, ids, parents, int(cached))
    out = torch.zeros(len(tokens), config["vocab_size"], dtype=torch.float64)
    for prompt in prompts:
        path = torch.tensor(prompt[prompt >= 0])
        out[path] = model(input_ids=ids[:, path], use_cache=False).logits[0].double()
    return out.numpy()


def rolled_back(model, ids, parents, cached):
    """None where no token of the first pass is rolled back."""
    kept = int(parents[cached])
    if not 0 <= kept < cached - 1:
        return None
    cache = transformers.DynamicCache(config=model.config)
    parts = [run_on(model, ids[:, : kept + 1], cache)]
    cache.activate_past_recording()
    parts.append(run_on(model, ids[:, kept + 1 : cached], cache))
    cache.crop(kept + 1 - cached)
    parts.append(run_on(model, ids[:, cached:], cache))
    return torch.cat(parts).double().numpy()


def run_on(model, ids, cache):
    return model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
