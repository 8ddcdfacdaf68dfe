"""Write on: a tree of prompts that grows by one token below each end.

All prompts run in one pass, over what they share, and every further pass runs one token for each
that has not ended. What a prompt becomes does not depend on what is generated beside it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor

from minise.cache import Cache, Growing
from minise.engines import LanguageModel, check_fit
from minise.errors import InputError
from minise.exact.attention import Reader, few_queries, next_calls, tree_reader
from minise.layout import pack
from minise.model import Decoder
from minise.writing.chat import stop_tokens

Heard = Callable[[int, str], None]  # the prompt's number and its next piece of text


@dataclass(frozen=True)
class Generation:
    """What followed a prompt. tokens: the new ids, without the one that stopped it. text: theirs,
    up to a stop text. ended: "stop" (a stop token or text came), "budget" (max_new_tokens) or
    "positions" (the model has no more)."""

    tokens: list[int]
    text: str
    ended: str

    @property
    def finished(self) -> bool:
        """Whether the model ended the text itself, by a stop token or text."""
        return self.ended == "stop"


@torch.inference_mode()
def generate(
    lm: LanguageModel,
    prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Sequence[int] | None = None,
    stop_texts: Sequence[str] = (),
    on_text: Heard | None = None,
) -> list[Generation]:
    """What the model writes after each prompt, in their order.

    A prompt is a text or token ids. At temperature 0 the most likely token is taken, the lower id
    on a tie. Above 0 a token is drawn from the softmax of logits / temperature, among the fewest
    likely tokens that hold a share of `top_p` (nucleus sampling, Holtzman et al. 2020). The draws
    follow from the seed and the prompt; of equal prompts each has draws of its own. `stop` are the
    ids that end a text, by default the checkpoint's; one of `stop_texts` ends it, too, and is left
    out of it. `on_text(number, piece)` hears each piece of
    text as it comes.

    Raises InputError for a setting out of range, an empty prompt, one beyond the model's positions
    or vocabulary, and a checkpoint that names no stop token where none is given.
    """
    _check(max_new_tokens, temperature, top_p)
    encoded = iter(lm.tokenizer.encode([p for p in prompts if isinstance(p, str)]))
    ids = [next(encoded) if isinstance(p, str) else list(p) for p in prompts]
    if not ids:
        return []
    if not all(ids):
        raise InputError("an empty prompt; give at least one token to go on from")
    check_fit(lm.name, lm.config, [], ids)
    ends = frozenset(stop_tokens(lm) if stop is None else stop)
    draws = [
        random.Random(f"{seed}/{ids[:i].count(prompt)}/{prompt}") for i, prompt in enumerate(ids)
    ]
    streams = [DecodeStream(skip_special_tokens=True) for _ in ids]
    written: list[list[int]] = [[] for _ in ids]
    texts = [""] * len(ids)
    ended = ["budget"] * len(ids)
    live = list(range(len(ids)))  # the prompts that go on; the rows of `tree` are theirs
    tree = _Branches(lm.decoder)
    hidden = tree.start(ids)
    while True:
        rows = lm.logits(hidden).double().cpu()
        chosen = [
            choose(row, temperature, top_p, draws[i]) for i, row in zip(live, rows, strict=True)
        ]
        going: list[int] = []  # places in `live`
        for place, (i, token) in enumerate(zip(live, chosen, strict=True)):
            if token in ends:
                ended[i] = "stop"
                continue
            written[i].append(token)
            if on_text or stop_texts:
                piece = streams[i].step(lm.tokenizer.backend, token) or ""
                texts[i] += piece
                if on_text and piece:
                    on_text(i, piece)
            if any(end in texts[i] for end in stop_texts):
                ended[i] = "stop"
            elif len(ids[i]) + len(written[i]) > lm.config.max_position_embeddings:
                ended[i] = "positions"
            elif len(written[i]) < max_new_tokens:
                going.append(place)
        if not going:
            break
        if len(going) < len(live):
            tree.keep(going)
        live = [live[place] for place in going]
        hidden = tree.step([chosen[place] for place in going])
    made = []
    for prompt, new, end in zip(ids, written, ended, strict=True):
        text = _text_after(lm, prompt, new)
        upto = min((text.find(one) for one in stop_texts if one in text), default=len(text))
        made.append(Generation(new, text[:upto], end))
    return made


def choose(logits: Tensor, temperature: float, top_p: float, draw: random.Random) -> int:
    """A token by its logits (V,) float64: see `generate`."""
    if temperature == 0:
        return int((logits == logits.max()).nonzero()[0])
    shares, order = torch.softmax(logits / temperature, dim=-1).sort(descending=True, stable=True)
    before = shares.cumsum(dim=-1) - shares
    # The first token stays, even where rounding makes its share reach top_p.
    kept = max(1, int((before < top_p).sum()))
    upto = shares[:kept].cumsum(dim=-1)
    place = torch.searchsorted(upto, draw.random() * upto[-1], right=True)
    return int(order[min(int(place), kept - 1)])


def _check(max_new_tokens: int, temperature: float, top_p: float) -> None:
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens {max_new_tokens} is below 1")
    if not 0 <= temperature < math.inf:
        raise InputError(f"temperature {temperature} is out of range; 0 is greedy, 1 as it is")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p {top_p} is out of range; it is above 0 and at most 1")


def _text_after(lm: LanguageModel, prompt: Sequence[int], new: Sequence[int]) -> str:
    """The text of `new` as it follows the prompt: alone, it would lose a space at its beginning."""
    decode = lm.tokenizer.backend.decode
    before, whole = decode(list(prompt)), decode([*prompt, *new])
    return whole.removeprefix(before) if whole.startswith(before) else decode(list(new))


class _Branches:
    """The cache of a tree of prompts, and the path of each through it."""

    cache: Cache
    paths: Tensor  # (G, P): each prompt's rows of the cache, in order; behind its length any rows
    lengths: Tensor  # (G,)

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.windows = decoder, decoder.config.sliding_windows
        self.queries = few_queries(decoder.config, decoder.dtype, decoder.device)

    def start(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Run the prompts. Returns the hidden states of their last tokens (G, D)."""
        tree, device = pack([], ids, tree=True), self.decoder.device
        ends, tokens, positions = (x.to(device) for x in (tree.ends, tree.tokens, tree.positions))
        reader = tree_reader(tree, self.windows, device)
        paths = tree.paths()
        self.lengths = torch.tensor([len(path) for path in paths], device=device)
        longest = max(map(len, paths))
        rows = [path + path[:1] * (longest - len(path)) for path in paths]
        self.paths = torch.tensor(rows, device=device)
        return self._run(tokens, positions, reader, None, ends)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Run one more token of each. Returns their hidden states (G, D)."""
        G, device = len(tokens), self.decoder.device
        rows = self.cache.positions.shape[-1] + torch.arange(G, device=device)
        if int(self.lengths.max()) == self.paths.shape[1]:  # more room, half as much again
            room = self.paths[:, :1].expand(-1, math.ceil(self.paths.shape[1] / 2))
            self.paths = torch.cat([self.paths, room], dim=1)
        self.paths[torch.arange(G, device=device), self.lengths] = rows
        positions, self.lengths = self.lengths, self.lengths + 1
        calls = next_calls(self.paths, self.lengths, self.windows, self.queries)
        reader = Reader(calls, G, self.windows)
        return self._run(torch.tensor(tokens, device=device), positions, reader, self.cache)

    def keep(self, places: list[int]) -> None:
        """Go on with these prompts only, and drop the rows of the cache that none of them sees."""
        seen, rows = self.paths[places].unique(return_inverse=True)
        self.cache, self.paths, self.lengths = self.cache.only(seen), rows, self.lengths[places]

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor,
        reader: Reader,
        cache: Cache | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        growing = Growing(cache, positions[None])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return reader.attend(layer, q, *growing.add(layer, k, v))

        hidden = self.decoder.run(tokens[None], positions[None], attend, rows)[0]
        self.cache = growing.cache
        return hidden
