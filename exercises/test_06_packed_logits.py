"""Tests of exercise 6, with the small model. They compare with minise/engines.py."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

import minise
from exercises.checks import holds, same
from minise.engines import separate
from minise.layout import pack
from minise.template import DEFAULT_TEMPLATE, write_prompts

CHOICES = [["Accra", "Nairobi"], ["Lagos", "Cairo", "Lima"], ["Quito"]]


class Watched:
    """The decoder, with a note of what it was called with, and of how many rows got logits."""

    def __init__(self, decoder: minise.Decoder) -> None:
        self.decoder = decoder
        self.calls: list[tuple[Tensor, Tensor, Tensor]] = []
        self.rows: list[int] = []

    def __call__(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        self.calls.append((tokens, positions, mask))
        return self.decoder(tokens, positions, mask, rows)

    def logits(self, hidden: Tensor) -> Tensor:
        self.rows.append(hidden.numel() // hidden.shape[-1])
        return self.decoder.logits(hidden)


@pytest.fixture(scope="module")
def prompts(lm: minise.LocalModel) -> tuple[list[int], list[list[int]]]:
    """The prefix and the branches of a real question, as token ids."""
    question = "What is the capital of Kenya?"
    prompts = write_prompts(lm.tokenizer, DEFAULT_TEMPLATE, question, CHOICES)
    return prompts.prefix, prompts.branches


def alone(decoder: minise.Decoder, prefix: list[int], branches: list[list[int]]) -> Tensor:
    """The logits after each prompt, by minise: (G, V)."""
    return decoder.logits(separate(decoder, prefix, branches))


def test_each_prompt_alone(
    exercise: ModuleType, decoder: minise.Decoder, prompts: tuple[list[int], list[list[int]]]
) -> None:
    prefix, branches = prompts
    got = exercise.separate_logits(decoder, [prefix + branch for branch in branches])
    expected = alone(decoder, prefix, branches)
    same(got, expected, "separate_logits: the logits after each prompt", 1e-9)


def test_one_pass_gives_the_logits_of_each_prompt_alone(
    exercise: ModuleType, decoder: minise.Decoder, prompts: tuple[list[int], list[list[int]]]
) -> None:
    prefix, branches = prompts
    expected = alone(decoder, prefix, branches)
    got = exercise.packed_logits(decoder, prefix, branches)
    same(got, expected, "packed_logits: the logits after each prompt", 1e-9)


def test_a_change_in_one_branch_changes_no_other(
    exercise: ModuleType, decoder: minise.Decoder, prompts: tuple[list[int], list[list[int]]]
) -> None:
    prefix, branches = prompts
    before = exercise.packed_logits(decoder, prefix, branches)
    changed = [[token + 1 for token in branches[0]], *branches[1:]]
    after = exercise.packed_logits(decoder, prefix, changed)
    changes = (after - before).abs().amax(dim=1)
    words = "the tokens of branch 0 changed, and so did the logits of another branch (largest "
    holds((changes[1:] < 1e-9).all(), f"{words}change per branch: {changes.tolist()}): it leaks")
    holds(changes[0] > 1e-3, "the tokens of branch 0 changed, but its own logits did not")


def test_one_call_has_the_prefix_once_then_the_branches(
    exercise: ModuleType, decoder: minise.Decoder
) -> None:
    watched, layout = Watched(decoder), pack([5, 6], [[8, 9], [10], [8, 11, 12]])
    exercise.packed_logits(watched, [5, 6], [[8, 9], [10], [8, 11, 12]])
    calls = len(watched.calls)
    holds(calls == 1, f"packed_logits must call the decoder once; yours does it {calls} times")
    for name, got in zip(("tokens", "positions", "mask"), watched.calls[0], strict=True):
        same(got, getattr(layout, name), f"the {name} in the call of the decoder")
    words = "logits of 3 rows are needed, one for each prompt; yours computes those of"
    holds(sum(watched.rows) == 3, f"{words} {sum(watched.rows)}")


def test_the_order_of_the_branches_is_kept(exercise: ModuleType, decoder: minise.Decoder) -> None:
    prefix, branches = [5, 6, 7], [[8, 9], [10], [8, 11, 12]]
    got = exercise.packed_logits(decoder, prefix, branches)
    turned = exercise.packed_logits(decoder, prefix, branches[::-1])
    same(turned, torch.flip(got, [0]), "packed_logits of the branches in reverse order", 1e-9)
