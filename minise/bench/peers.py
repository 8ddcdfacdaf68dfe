"""The peers of the engines: five ways to the same logits with the reference library.

Each peer computes the logits after every prompt `prefix + branch`. The library's model shares the
decoder's tensors, so that there is one copy of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
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
    facts: dict[str, object] = asdict(config)
    for name in ("rope_theta", "rope_scaling", "qkv_bias", "qk_norm", "sliding_windows"):
        del facts[name]  # these have other names there, or follow from the family
    facts |= {"rope_parameters": rope, "sliding_window": windows[0] if windows else None}
    if config.model_type in ("qwen2", "qwen3") and windows:
        kinds = [
            "full_attention" if w is None else "sliding_attention" for w in config.sliding_windows
        ]
        facts |= {"use_sliding_window": True, "layer_types": kinds}
    return facts


@dataclass(frozen=True)
class _Peers:
    """One question's prompts for the library's model. Each method below is a peer.

    columns: (C,) int64, the token ids whose logits are read. The library computes the whole
    vocabulary first.
    """

    model: Any
    prefix: Sequence[int]
    branches: Sequence[Sequence[int]]
    columns: Tensor

    @property
    def prompts(self) -> list[list[int]]:
        return [[*self.prefix, *branch] for branch in self.branches]

    @property
    def device(self) -> torch.device:
        return self.columns.device

    def one_by_one(self) -> Tensor:
        rows = []
        for prompt in self.prompts:
            ids = torch.tensor([prompt], device=self.device)
            output = self.model(input_ids=ids, use_cache=False, logits_to_keep=1)
            rows.append(output.logits[:, -1])
        return torch.cat(rows)[:, self.columns]

    def packed(self, keep_all: bool) -> Tensor:
        """With `keep_all`, logits of every token are computed, and not of the ends only."""
        layout = pack(self.prefix, self.branches)
        dtype = self.model.model.embed_tokens.weight.dtype
        mask = torch.zeros(layout.mask.shape, dtype=dtype, device=self.device)
        mask.masked_fill_(~layout.mask.to(self.device), torch.finfo(dtype).min)
        ends = layout.ends.to(self.device)
        output = self.model(
            input_ids=layout.tokens[None].to(self.device),
            position_ids=layout.positions[None].to(self.device),
            attention_mask=mask[None, None],
            use_cache=False,
            logits_to_keep=0 if keep_all else ends,
        )
        logits: Tensor = output.logits[0]
        return (logits[ends] if keep_all else logits)[:, self.columns]

    def padded(self) -> Tensor:
        ids, real, ends = self._batch(self.prompts)
        output = self.model.model(input_ids=ids, attention_mask=real, use_cache=False)
        return self._at_ends(output.last_hidden_state, ends)

    def cached(self) -> Tensor:
        start = torch.tensor([list(self.prefix)], device=self.device)
        cache = copy.deepcopy(self.model.model(input_ids=start, use_cache=True).past_key_values)
        cache.batch_repeat_interleave(len(self.branches))
        ids, real, ends = self._batch(self.branches)
        P = len(self.prefix)
        before = torch.ones(len(self.branches), P, dtype=real.dtype, device=self.device)
        positions = torch.arange(P, P + ids.shape[1], device=self.device)
        output = self.model.model(
            input_ids=ids,
            attention_mask=torch.cat([before, real], dim=1),
            position_ids=positions.expand(len(ids), -1),
            past_key_values=cache,
            use_cache=True,
        )
        return self._at_ends(output.last_hidden_state, ends)

    def _batch(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Right-padded ids, their 0/1 mask, and the index of each row's last token."""
        width = max(map(len, rows))
        ids = [[*row, *[0] * (width - len(row))] for row in rows]
        real = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        ends = [len(row) - 1 for row in rows]
        return (
            torch.tensor(ids, device=self.device),
            torch.tensor(real, device=self.device),
            torch.tensor(ends, device=self.device),
        )

    def _at_ends(self, hidden: Tensor, ends: Tensor) -> Tensor:
        rows = hidden[torch.arange(len(ends), device=self.device), ends]
        logits: Tensor = self.model.lm_head(rows)
        return logits[:, self.columns]


def peers(
    model: Any, prefix: Sequence[int], branches: Sequence[Sequence[int]], columns: Tensor
) -> dict[str, tuple[Peer, int]]:
    """Each peer by name, with the number of tokens that it runs, padding included.

    A peer returns logits (G, len(columns)) for the token ids `columns`, on the model's device.
    """
    library = _Peers(model, prefix, branches, columns)
    flat = len(prefix) + sum(map(len, branches))
    longest = max(map(len, branches))
    separate = sum(map(len, library.prompts))
    by_name: dict[str, tuple[Peer, int]] = {
        "library: one forward per group": (library.one_by_one, separate),
        "library: packed, 4-D mask, all logits": (partial(library.packed, True), flat),
        "library: packed, 4-D mask, rows kept": (partial(library.packed, False), flat),
        "library: padded batch": (library.padded, len(branches) * (len(prefix) + longest)),
    }
    if prefix:
        tokens = len(prefix) + len(branches) * longest
        by_name["library: prefix cache, then a batch"] = library.cached, tokens
    return by_name
