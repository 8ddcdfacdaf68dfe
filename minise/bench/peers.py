"""The peers of the engines: five ways to the same logits with the reference library.

Each peer computes the logits after every prompt `prefix + branch`. The library's model shares the
decoder's tensors, so that there is one copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minise.config import Config
from minise.layout import pack
from minise.model import Decoder

Peer = Callable[[], Tensor]


def library_model(decoder: Decoder) -> Any | None:
    """The reference library's model over the decoder's tensors; None if it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    config = transformers.AutoConfig.for_model(**library_config(decoder.config))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    state = decoder.state_dict()
    if decoder.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    # The rotary table is not a parameter. It was created on meta, so create it again.
    with decoder.device:
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.eval().requires_grad_(False)


def library_config(config: Config) -> dict[str, object]:
    """A config's facts under the library's names."""
    windows = [window for window in config.sliding_windows if window is not None]
    rope: dict[str, object] = {
        "rope_type": config.rope_scaling.rope_type,
        "rope_theta": config.rope_theta,
    }
    if config.rope_scaling.rope_type != "default":
        rope["factor"] = config.rope_scaling.factor
    if config.rope_scaling.rope_type == "llama3":
        for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
            rope[name] = getattr(config.rope_scaling, name)
    facts = {
        name: getattr(config, name)
        for name in (
            "model_type",
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "rms_norm_eps",
            "max_position_embeddings",
            "tie_word_embeddings",
        )
    }
    facts |= {"rope_parameters": rope, "sliding_window": windows[0] if windows else None}
    if config.model_type == "qwen2" and windows:
        kinds = [
            "full_attention" if w is None else "sliding_attention" for w in config.sliding_windows
        ]
        facts |= {"use_sliding_window": True, "layer_types": kinds}
    return facts


def peers(
    model: Any, prefix: Sequence[int], branches: Sequence[Sequence[int]], columns: Tensor
) -> dict[str, tuple[Peer, int]]:
    """Each peer by name, with the number of tokens it runs, padding included.

    A peer returns logits (G, len(columns)) for the token ids `columns`. The library computes the
    whole vocabulary first.
    """
    weight = model.model.embed_tokens.weight
    device, dtype = weight.device, weight.dtype
    lowest = torch.finfo(dtype).min
    prompts = [[*prefix, *branch] for branch in branches]
    longest = max(map(len, branches))

    def batch(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Right-padded ids, their 0/1 mask, and the index of each row's last token."""
        width = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
        kept = torch.tensor(
            [[1] * len(row) + [0] * (width - len(row)) for row in rows], device=device
        )
        return ids, kept, torch.tensor([len(row) - 1 for row in rows], device=device)

    def at_ends(hidden: Tensor, ends: Tensor) -> Tensor:
        logits: Tensor = model.lm_head(hidden[torch.arange(len(ends), device=device), ends])
        return logits[:, columns]

    def one_by_one() -> Tensor:
        rows = [
            model(input_ids=torch.tensor([p], device=device), use_cache=False, logits_to_keep=1)
            for p in prompts
        ]
        return torch.cat([row.logits[:, -1] for row in rows])[:, columns]

    def packed(keep_all: bool) -> Tensor:
        layout = pack(prefix, branches)
        mask = torch.zeros(layout.mask.shape, dtype=dtype, device=device)
        mask.masked_fill_(~layout.mask.to(device), lowest)
        ends = layout.ends.to(device)
        out = model(
            input_ids=layout.tokens[None].to(device),
            position_ids=layout.positions[None].to(device),
            attention_mask=mask[None, None],
            use_cache=False,
            logits_to_keep=0 if keep_all else ends,
        )
        logits: Tensor = out.logits[0]
        return (logits[ends] if keep_all else logits)[:, columns]

    def padded() -> Tensor:
        ids, kept, ends = batch(prompts)
        hidden = model.model(input_ids=ids, attention_mask=kept, use_cache=False)
        return at_ends(hidden.last_hidden_state, ends)

    def cached() -> Tensor:
        begun = model.model(input_ids=torch.tensor([list(prefix)], device=device), use_cache=True)
        cache = copy.deepcopy(begun.past_key_values)
        cache.batch_repeat_interleave(len(branches))
        ids, kept, ends = batch(branches)
        seen = torch.ones(len(branches), len(prefix), dtype=kept.dtype, device=device)
        positions = torch.arange(len(prefix), len(prefix) + ids.shape[1], device=device)
        hidden = model.model(
            input_ids=ids,
            attention_mask=torch.cat([seen, kept], dim=1),
            position_ids=positions.expand(len(ids), -1),
            past_key_values=cache,
            use_cache=True,
        )
        return at_ends(hidden.last_hidden_state, ends)

    flat = len(prefix) + sum(map(len, branches))
    found: dict[str, tuple[Peer, int]] = {
        "library: one forward per group": (one_by_one, sum(map(len, prompts))),
        "library: packed, 4-D mask, all logits": (lambda: packed(True), flat),
        "library: packed, 4-D mask, rows kept": (lambda: packed(False), flat),
        "library: padded batch": (padded, len(prompts) * (len(prefix) + longest)),
    }
    if prefix:
        found["library: prefix cache, then a batch"] = (
            cached,
            len(prefix) + len(branches) * longest,
        )
    return found
