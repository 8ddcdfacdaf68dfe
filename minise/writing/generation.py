"""Generate text: a tree of prompts that grows by one token below each end.

The first pass runs all prompts, and what they share once. Every further pass runs one token for
each text that has not ended. A text does not depend on the other texts generated beside it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor

from minise.cache import Cache, Growing
from minise.engines import LanguageModel, check_finite, check_fit
from minise.errors import InputError
from minise.exact.attention import Reader, few_queries, next_calls, tree_reader
from minise.layout import pack
from minise.method import OnText
from minise.model import Decoder
from minise.writing.chat import stop_tokens


@dataclass(frozen=True)
class Generation:
    """What the model wrote after a prompt. tokens: the new ids, without the stop token. text: their
    text, up to a stop text. ended: "stop" (by a stop token or text), "budget" (by max_new_tokens)
    or "positions" (the model has no more positions)."""

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
    on_text: OnText | None = None,
) -> list[Generation]:
    """What the model writes after each prompt, in the order of the prompts.

    A prompt is a text or token ids. At temperature 0 the most likely token is taken, the lower id
    on a tie. Above 0 a token is drawn from the softmax of logits / temperature, among the fewest
    likely tokens that hold a share of `top_p` (nucleus sampling, Holtzman et al. 2020). The draws
    follow from the seed and the prompt; equal prompts have different draws. `stop`: the ids that
    end a text, by default the checkpoint's. `stop_texts`: texts that also end it, and are left out
    of it. `on_text(number, piece)` is called with each piece of text of prompt `number` as soon as
    it is written.

    Raises InputError for a setting out of range, an empty prompt, a prompt beyond the model's
    positions or vocabulary, numbers that overflow, and a checkpoint that names no stop token where
    `stop` is None.
    """
    _check(max_new_tokens, temperature, top_p)
    ids = _prompt_ids(lm, prompts)
    if not ids:
        return []
    check_fit(lm.name, lm.config, [], ids)
    stop_ids = frozenset(stop_tokens(lm) if stop is None else stop)
    texts = [
        _Text(lm, number, prompt, max_new_tokens, stop_ids, stop_texts, on_text)
        for number, prompt in enumerate(ids)
    ]
    # Equal prompts differ by how many of them come before: ids[:i].count(prompt).
    draws = [
        random.Random(f"{seed}/{ids[:i].count(prompt)}/{prompt}") for i, prompt in enumerate(ids)
    ]
    tree = _Branches(lm.decoder)
    hidden = tree.start(ids)
    live = list(range(len(ids)))  # the texts that have not ended; the rows of `tree` are theirs
    while True:
        logits = lm.logits(hidden)
        check_finite(lm.name, logits, hidden)
        rows = logits.double().cpu()
        tokens = [
            choose(row, temperature, top_p, draws[i]) for i, row in zip(live, rows, strict=True)
        ]
        places = []  # in `live`: the texts that still have not ended
        for place, (i, token) in enumerate(zip(live, tokens, strict=True)):
            texts[i].add(token)
            if not texts[i].ended:
                places.append(place)
        if not places:
            return [text.generation() for text in texts]
        if len(places) < len(live):
            tree.keep(places)
        live = [live[place] for place in places]
        hidden = tree.step([tokens[place] for place in places])


def _prompt_ids(lm: LanguageModel, prompts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """The token ids of prompts. All that are text are encoded at once."""
    encoded = iter(lm.tokenizer.encode([prompt for prompt in prompts if isinstance(prompt, str)]))
    ids = [next(encoded) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    if not all(ids):
        raise InputError("an empty prompt; give at least one token to go on from")
    return ids


class _Text:
    """The text that grows after one prompt. `ended`: why, as in `Generation`; "" before it ends."""

    def __init__(
        self,
        lm: LanguageModel,
        number: int,
        prompt: list[int],
        max_new_tokens: int,
        stop_ids: frozenset[int],
        stop_texts: Sequence[str],
        on_text: OnText | None,
    ) -> None:
        self.lm, self.number, self.prompt = lm, number, prompt
        self.max_new_tokens, self.on_text = max_new_tokens, on_text
        self.stop_ids, self.stop_texts = stop_ids, stop_texts
        self.stream = DecodeStream(skip_special_tokens=True)
        self.tokens: list[int] = []
        self.text = ""  # only kept up to date where pieces of it are used
        self.ended = ""

    def add(self, token: int) -> None:
        """Append a token, or end the text."""
        if token in self.stop_ids:
            self.ended = "stop"
            return
        self.tokens.append(token)
        if self.on_text or self.stop_texts:
            piece = self.stream.step(self.lm.tokenizer.backend, token) or ""
            self.text += piece
            if self.on_text and piece:
                self.on_text(self.number, piece)
        if any(stop_text in self.text for stop_text in self.stop_texts):
            self.ended = "stop"
        elif len(self.prompt) + len(self.tokens) > self.lm.config.max_position_embeddings:
            self.ended = "positions"
        elif len(self.tokens) >= self.max_new_tokens:
            self.ended = "budget"

    def generation(self) -> Generation:
        """The result, once it has ended."""
        text = _text_after(self.lm, self.prompt, self.tokens)
        starts = [text.find(stop_text) for stop_text in self.stop_texts if stop_text in text]
        return Generation(self.tokens, text[: min(starts, default=len(text))], self.ended)


def choose(logits: Tensor, temperature: float, top_p: float, draw: random.Random) -> int:
    """The next token, from logits (V,) float64: see `generate`."""
    if temperature == 0:
        return int((logits == logits.max()).nonzero()[0])
    shares, order = torch.softmax(logits / temperature, dim=-1).sort(descending=True, stable=True)
    sums = shares.cumsum(dim=-1)
    # In the nucleus, what comes before a token is below top_p. Before the first there is exactly 0.
    sums = sums[: int((sums - shares < top_p).sum())]
    # random() is below 1, so the product is below the last sum.
    return int(order[torch.searchsorted(sums, draw.random() * sums[-1], right=True)])


def _check(max_new_tokens: int, temperature: float, top_p: float) -> None:
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens {max_new_tokens} is below 1")
    if not 0 <= temperature < math.inf:
        raise InputError(f"temperature {temperature} is out of range; 0 is greedy, 1 as it is")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p {top_p} is out of range; it is above 0 and at most 1")


def _text_after(lm: LanguageModel, prompt: Sequence[int], new: Sequence[int]) -> str:
    """The text of `new` after the prompt. Decoded alone it would lose a space at its beginning."""
    decode = lm.tokenizer.backend.decode
    before, whole = decode(list(prompt)), decode([*prompt, *new])
    return whole.removeprefix(before) if whole.startswith(before) else decode(list(new))


class _Branches:
    """A cache of the tree of prompts, and the path of each prompt through it."""

    cache: Cache
    # (G, P): each prompt's rows of the cache, in order; after the prompt's length, any rows
    paths: Tensor
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
        each = torch.arange(G, device=device)
        rows = self.cache.positions.shape[-1] + each
        if int(self.lengths.max()) == self.paths.shape[1]:  # it is full: make it half as long again
            room = self.paths[:, :1].expand(-1, math.ceil(self.paths.shape[1] / 2))
            self.paths = torch.cat([self.paths, room], dim=1)
        self.paths[each, self.lengths] = rows
        positions, self.lengths = self.lengths, self.lengths + 1
        calls = next_calls(self.paths, self.lengths, self.windows, self.queries)
        reader = Reader(calls, G, self.windows)
        return self._run(torch.tensor(tokens, device=device), positions, reader, self.cache)

    def keep(self, places: list[int]) -> None:
        """Keep these prompts only, and drop the rows of the cache that none of them uses."""
        used, paths = self.paths[places].unique(return_inverse=True)
        self.cache, self.paths, self.lengths = self.cache.only(used), paths, self.lengths[places]

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
