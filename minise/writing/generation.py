"""Generate text: a tree of prompts that grows by one token below each end. What prompts share runs
once, and no text depends on those generated beside it."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from minise.cache import Cache, Growing
from minise.checks import check_prompts
from minise.engines import LanguageModel, read_logits
from minise.equal_bits.attention import Calls, Reader, prompt_calls, tree_reader
from minise.errors import InputError
from minise.layout import pack
from minise.model import Decoder
from minise.writing.chat import stop_tokens


@dataclass(frozen=True)
class Generation:
    """What the model wrote after a prompt. tokens: the new ids, without the stop token. text: up to
    a stop text. finished: ended by one of both, not by the budget or the model's last position."""

    tokens: list[int]
    text: str
    finished: bool


@torch.inference_mode()
def generate(
    lm: LanguageModel,
    prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_texts: Sequence[str] = (),
) -> list[Generation]:
    """What the model writes after each prompt (a text or token ids), in the order of the prompts.

    At temperature 0 the most likely token is taken, the lower id on a tie. Above 0 a token is drawn
    from the softmax of logits / temperature, among the fewest likely tokens that hold a share of
    `top_p` (nucleus sampling, Holtzman et al. 2020). The draws follow from the seed and the prompt;
    equal prompts have different draws. The checkpoint's stop tokens end a text, and `stop_texts`.
    Raises InputError for a setting out of range, a prompt that cannot run, numbers that overflow,
    and a checkpoint that names no stop token."""
    if max_new_tokens < 1 or not 0 <= temperature < math.inf or not 0 < top_p <= 1:
        given = f"max_new_tokens {max_new_tokens}, temperature {temperature}, top_p {top_p}"
        raise InputError(f"{given}: give at least 1, at least 0, and above 0 up to 1")
    ids = [lm.tokenizer.encode([one])[0] if isinstance(one, str) else list(one) for one in prompts]
    if not ids:
        return []
    check_prompts(lm, [], ids)
    stop_ids, positions = stop_tokens(lm), lm.config.max_position_embeddings
    room = [min(max_new_tokens, positions + 1 - len(prompt)) for prompt in ids]
    keys = [f"{seed}/{ids[:i].count(prompt)}/{prompt}" for i, prompt in enumerate(ids)]
    draws = [random.Random(key) for key in keys]
    new: list[list[int]] = [[] for _ in ids]
    finished = [False] * len(ids)
    tree, live = _Branches(lm.refined), list(range(len(ids)))  # the texts that have not ended
    hidden = tree.start(ids)
    while True:
        for i, logits in zip(live, read_logits(lm, hidden, None).double().cpu(), strict=True):
            token = choose(logits, temperature, top_p, draws[i])
            finished[i] = token in stop_ids
            if not finished[i]:
                new[i].append(token)
                finished[i] = bool(stop_texts) and _read(lm, ids[i], new[i], stop_texts)[1]
        going = [i for i in live if not finished[i] and len(new[i]) < room[i]]
        if not going:
            break
        if len(going) < len(live):
            tree.keep([live.index(i) for i in going])
        live, hidden = going, tree.step([new[i][-1] for i in going])
    texts = [_read(lm, *pair, stop_texts)[0] for pair in zip(ids, new, strict=True)]
    return [Generation(*one) for one in zip(new, texts, finished, strict=True)]


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


def _read(
    lm: LanguageModel, prompt: list[int], new: list[int], stop_texts: Sequence[str]
) -> tuple[str, bool]:
    """The text of `new` after the prompt up to the first stop text, and whether there is one."""
    # Decoded alone it would lose a space at its beginning.
    decode = lm.tokenizer.backend.decode
    before, text = decode(prompt), decode(prompt + new)
    text = text.removeprefix(before) if text.startswith(before) else decode(new)
    ends = [text.find(stop_text) for stop_text in stop_texts if stop_text in text]
    return text[: min(ends, default=None)], bool(ends)


def next_calls(paths: Tensor, lengths: Tensor, decoder: Decoder) -> list[Calls]:
    """The calls in which G prompts grow by one token each: query g is the last token of path g.

    paths: (G, P) rows of a cache in the order of positions, the new row last. Only the first
    `lengths` (G,) rows of a path count; any rows may follow them.
    """
    line, prompts = torch.arange(paths.shape[1]), []
    for path, length in zip(paths.cpu(), lengths.tolist(), strict=True):
        prompts.append((torch.stack([path, line])[:, :length], [length - 1]))
    calls = prompt_calls(prompts, decoder)
    last = paths.gather(1, lengths[:, None] - 1).flatten()
    index = [(call.queries[..., None] == last).int().argmax(dim=-1) for call in calls]
    return [replace(call, queries=each) for call, each in zip(calls, index, strict=True)]


class _Branches:
    """A cache of the tree of prompts, and the path of each prompt through it: its rows of the cache
    in order, (G, P), of which the first `lengths` (G,) count."""

    cache: Cache
    paths: Tensor
    lengths: Tensor

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.windows = decoder, decoder.config.sliding_windows

    def start(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Run the prompts. Returns the hidden states of their last tokens (G, D)."""
        tree, device = pack([], ids, tree=True), self.decoder.device
        ends, tokens, positions = (x.to(device) for x in (tree.ends, tree.tokens, tree.positions))
        paths = [torch.tensor(path, device=device) for path in tree.paths()]
        self.paths = pad_sequence(paths, batch_first=True)
        self.lengths = torch.tensor([len(path) for path in paths], device=device)
        reader = tree_reader(tree, self.decoder)
        return self._run(Growing(None, positions[None]), tokens, reader, ends)

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Run one more token of each. Returns their hidden states (G, D)."""
        growing = Growing(self.cache, self.lengths[None])
        each = torch.arange(len(tokens), device=self.decoder.device)
        self.paths = F.pad(self.paths, (0, 1))
        self.paths[each, self.lengths] = self.cache.positions.shape[-1] + each
        self.lengths = self.lengths + 1
        calls = next_calls(self.paths, self.lengths, self.decoder)
        reader = Reader(calls, len(tokens), self.windows)
        return self._run(growing, torch.tensor(tokens, device=each.device), reader)

    def keep(self, places: list[int]) -> None:
        """Keep these prompts only, and drop the rows of the cache that none of them uses."""
        used, self.paths = self.paths[places].unique(return_inverse=True)
        self.cache, self.lengths = self.cache.only(used), self.lengths[places]

    def _run(self, growing: Growing, tokens: Tensor, reader: Reader, *rows: Tensor) -> Tensor:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return reader.attend(layer, q, *growing.add(layer, k, v))

        positions = growing.cache.positions[:, -len(tokens) :]
        self.cache = growing.cache
        return self.decoder.run(tokens[None], positions, attend, *rows)[0]
