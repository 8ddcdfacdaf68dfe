"""Tests of exercise 7, with the small model. They compare with minise/model.py."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

import minise
from exercises.checks import holds, same
from minise.attention import Attend
from minise.engines import separate
from minise.lab.writing.cache import extend
from minise.layout import causal_mask

PROMPT = torch.tensor([[0, 278, 27, 262, 200, 300, 301, 302, 303]])
LENGTH = PROMPT.shape[1]
CUTS = [[9], [4, 5], [4, 1, 1, 3], [1] * 9]  # the numbers of tokens that run in each call


class Watched:
    """The decoder, with a note of the positions of the tokens in each call of `run`."""

    def __init__(self, decoder: minise.Decoder) -> None:
        self.decoder, self.logits = decoder, decoder.logits
        self.positions: list[list[int]] = []

    def run(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        self.positions.append(positions.flatten().tolist())
        return self.decoder.run(tokens, positions, attend)


@pytest.mark.parametrize("cuts", CUTS)
def test_a_prompt_in_pieces_has_the_hidden_states_of_the_whole(
    exercise: ModuleType, decoder: minise.Decoder, cuts: list[int]
) -> None:
    expected = decoder(PROMPT, torch.arange(LENGTH), causal_mask(LENGTH))
    cache: list[tuple[Tensor, Tensor]] = []
    start = 0
    for piece in PROMPT.split(cuts, dim=1):
        end = start + piece.shape[1]
        hidden, cache = exercise.extend(decoder, piece, cache)
        what = f"hidden states of tokens {start} to {end - 1}, run in pieces {cuts}"
        same(hidden, expected[:, start:end], what, 1e-9)
        start = end


def test_new_tokens_continue_the_positions_of_the_cache(
    exercise: ModuleType, decoder: minise.Decoder
) -> None:
    watched = Watched(decoder)
    _, cache = exercise.extend(watched, PROMPT[:, :4], [])
    exercise.extend(watched, PROMPT[:, 4:], cache)
    words = "4 tokens and then 5 more must run at the positions [0, 1, 2, 3] and [4, 5, 6, 7, 8]"
    right = [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    holds(watched.positions == right, f"{words}; yours: {watched.positions}")


def test_the_new_cache_holds_the_keys_and_values_of_all_tokens(
    exercise: ModuleType, decoder: minise.Decoder
) -> None:
    _, expected = extend(decoder, PROMPT, torch.arange(LENGTH), causal_mask(LENGTH))
    _, cache = exercise.extend(decoder, PROMPT[:, :6], [])
    _, cache = exercise.extend(decoder, PROMPT[:, 6:], cache)
    layers = len(expected.keys)
    holds(len(cache) == layers, f"the model has {layers} layers; your cache has {len(cache)}")
    for layer, (keys, values) in enumerate(cache):
        same(keys, expected.keys[layer], f"the keys of layer {layer} after 6 + 3 tokens", 1e-9)
        same(values, expected.values[layer], f"the values of layer {layer} after 6 + 3", 1e-9)


def test_a_cache_can_be_continued_twice(exercise: ModuleType, decoder: minise.Decoder) -> None:
    _, shared = exercise.extend(decoder, PROMPT[:, :4], [])
    lengths = [keys.shape[1] for keys, _ in shared]
    first, _ = exercise.extend(decoder, PROMPT[:, 4:6], shared)
    now = [keys.shape[1] for keys, _ in shared]
    words = f"`extend` changed the cache it was given: it held {lengths[0]} tokens per layer, now"
    holds(now == lengths, f"{words} {now}")
    again, _ = exercise.extend(decoder, PROMPT[:, 4:6], shared)
    same(again, first, "hidden states of the same tokens, continued from the same cache again")


def test_branches_that_share_a_cache_answer_as_each_prompt_alone(
    exercise: ModuleType, decoder: minise.Decoder
) -> None:
    prefix, branches = [0, 278, 27, 262], [[200, 300], [301], [302, 303, 304]]
    got = exercise.cached_logits(decoder, prefix, branches)
    expected = decoder.logits(separate(decoder, prefix, branches))
    same(got, expected, "cached_logits: the logits after each prompt", 1e-9)


def test_no_token_runs_twice(exercise: ModuleType, decoder: minise.Decoder) -> None:
    watched = Watched(decoder)
    exercise.cached_logits(watched, [5, 6, 7], [[8, 9], [10]])
    runs = [len(positions) for positions in watched.positions]
    words = "the prefix has 3 tokens, the branches 2 and 1: 6 tokens must run; numbers of tokens in"
    holds(sum(runs) == 6, f"{words} your calls: {runs}")
