"""Generate text: a tree of prompts that grows by one token below each end.

What prompts share runs once. A new token sees what its text has seen, and itself, so no text
depends on those beside it: within rounding, or under equal bits in every bit.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minise.errors import InputError, Unsuited
from minise.lab.writing.cache import extend
from minise.lab.writing.chat import stop_tokens
from minise.layout import pack
from minise.lm import check_finite
from minise.model import Decoder
from minise.prompts import LanguageModel, check_positions, check_tokens, check_vocabulary


@dataclass(frozen=True)
class Generation:
    """What the model wrote after a prompt. tokens: the new ids, without the stop token. text: up to
    a stop text. finished: ended by one of both, not by the budget or the model's last position."""

    tokens: list[int]
    text: str
    finished: bool


@dataclass
class Writing:
    """A text that is being written. room: how many new tokens it may have. draw: its random
    numbers. new: the new ids."""

    prompt: list[int]
    room: int
    draw: random.Random
    new: list[int] = field(default_factory=list)
    finished: bool = False

    @property
    def goes_on(self) -> bool:
        return not self.finished and len(self.new) < self.room


@torch.inference_mode()
def generate(
    lm: LanguageModel,
    prompts: Sequence[str | Sequence[int]],
    max_new_tokens: int | Sequence[int] = 256,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | Sequence[int] = 0,
    stop_texts: Sequence[str] = (),
) -> list[Generation]:
    """What the model writes after each prompt (a text or token ids), in the order of the prompts.

    At temperature 0 the most likely token is taken, the lower id on a tie. Above 0 a token is drawn
    from the softmax of logits / temperature, among the fewest likely tokens that hold a share of
    `top_p` (nucleus sampling, Holtzman et al. 2020). The draws follow from the seed and the prompt;
    equal prompts have different draws. The checkpoint's stop tokens end a text, and `stop_texts`.
    max_new_tokens, seed: one for all prompts, or one for each. Raises InputError for a setting out
    of range, a prompt that cannot run, numbers that overflow, a checkpoint that names no stop
    token, and a model that runs elsewhere.
    """
    if not prompts:
        return []
    decoder = decoder_that_writes(lm)
    budgets = one_for_each("max_new_tokens", max_new_tokens, len(prompts))
    seeds = one_for_each("seed", seed, len(prompts))
    if min(budgets) < 1 or not 0 <= temperature < math.inf or not 0 < top_p <= 1:
        given = f"max_new_tokens {min(budgets)}, temperature {temperature}, top_p {top_p}"
        raise InputError(f"{given}: give at least 1, at least 0, and above 0 up to 1")
    ids = [lm.tokenizer.encode([one])[0] if isinstance(one, str) else list(one) for one in prompts]
    check_tokens([], ids)
    check_positions(lm, max(len(one) for one in ids))
    check_vocabulary(lm, ids)
    stop_ids = stop_tokens(lm)
    texts = []
    for prompt, budget, draw in zip(ids, budgets, draws_of(ids, seeds), strict=True):
        # The last token of a text needs no position, because nothing reads it.
        room = min(budget, lm.limits.positions + 1 - len(prompt))
        texts.append(Writing(prompt, room, draw))

    # 1. The prompts, as a tree. sees_GS: which of the cached tokens each text sees.
    tree = pack([], ids, tree=True)
    hidden_GD, cache = extend(decoder, tree.tokens, tree.positions, tree.mask, rows=tree.ends)
    sees_GS = tree.mask[tree.ends]
    growing = texts
    while True:
        # 2. The next token of each text.
        logits_GV = decoder.logits(hidden_GD)
        check_finite(lm, logits_GV, hidden_GD)
        for text, logits_V in zip(growing, logits_GV.double().cpu(), strict=True):
            token = choose(logits_V, temperature, top_p, text.draw)
            if token in stop_ids:
                text.finished = True
                continue
            text.new.append(token)
            if stop_texts:
                written = text_of(lm, text)
                text.finished = len(up_to(stop_texts, written)) < len(written)

        # 3. Texts that have ended leave, and the tokens that no other text sees.
        going = [number for number, text in enumerate(growing) if text.goes_on]
        if not going:
            break
        if len(going) < len(growing):
            growing = [growing[number] for number in going]
            sees_GS = sees_GS[going]
            seen = sees_GS.any(dim=0).nonzero().flatten()
            sees_GS = sees_GS[:, seen]
            cache = cache.only(seen)

        # 4. Run the new tokens. Each sees what its text has seen, and itself.
        G = len(growing)
        tokens_G = torch.tensor([text.new[-1] for text in growing])
        positions_G = sees_GS.sum(dim=1)
        sees_GS = torch.cat([sees_GS, torch.eye(G, dtype=torch.bool)], dim=1)
        hidden_GD, cache = extend(decoder, tokens_G, positions_G, sees_GS, cache)

    generated = []
    for text in texts:
        written = up_to(stop_texts, text_of(lm, text))
        generated.append(Generation(text.new, written, text.finished))
    return generated


def one_for_each(name: str, given: int | Sequence[int], count: int) -> list[int]:
    """The numbers of `count` prompts, given as one for all or one for each."""
    if isinstance(given, int):
        return [given] * count
    if len(given) != count:
        raise InputError(f"{len(given)} numbers as {name} for {count} prompts; give one for each")
    return list(given)


def draws_of(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[random.Random]:
    """The random numbers of each text. They follow from its seed, its prompt, and how many prompts
    before are equal and have the same seed."""
    draws = []
    earlier: Counter[str] = Counter()
    for prompt, seed in zip(prompts, seeds, strict=True):
        both = f"{seed}/{prompt}"
        draws.append(random.Random(f"{seed}/{earlier[both]}/{prompt}"))
        earlier[both] += 1
    return draws


def decoder_that_writes(lm: LanguageModel) -> Decoder:
    """The model's decoder. Raises Unsuited for one that cannot go on from a cache."""
    decoder = getattr(lm, "decoder", None)
    if not isinstance(decoder, Decoder):
        what = "this needs weights that minise runs itself, and the model runs elsewhere"
        raise Unsuited(f"{what}; give the folder of a llama, mistral, qwen2 or qwen3")
    return decoder


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


def text_of(lm: LanguageModel, text: Writing) -> str:
    """The text of the new tokens."""
    # Decoded alone it would lose a space at its beginning.
    decode = lm.tokenizer.backend.decode
    before, whole = decode(text.prompt), decode(text.prompt + text.new)
    return whole.removeprefix(before) if whole.startswith(before) else decode(text.new)


def up_to(stop_texts: Sequence[str], text: str) -> str:
    """The text up to the first stop text in it, if there is one."""
    ends = [text.find(stop_text) for stop_text in stop_texts if stop_text in text]
    return text[: min(ends, default=None)]
