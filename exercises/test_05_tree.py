"""Tests of exercise 5. They compare with minise/layout.py."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from exercises.checks import examples, holds, same
from minise.layout import Layout, pack

PROMPTS = {
    "a shared question": [[7, 8, 1, 2], [7, 8, 1, 3], [7, 8, 4]],
    "the same token after other tokens": [[7, 1, 5], [7, 2, 5]],
    "nothing in common": [[1, 2], [3, 2]],
    "a prompt that begins another": [[7, 8], [7, 8, 9], [7]],
    "the same prompt twice": [[7, 8], [7, 8]],
    "a token that repeats": [[7, 7, 7], [7, 7, 8]],
    "alike, but not one after the other": [[7, 1, 5], [7, 2], [7, 1, 6]],
}


@pytest.mark.parametrize("case", PROMPTS)
def test_each_end_leads_back_through_its_prompt(exercise: ModuleType, case: str) -> None:
    prompts = PROMPTS[case]
    tokens, parents, ends = exercise.merge(prompts)
    holds(len(ends) == len(prompts), f"{len(prompts)} prompts need as many ends; yours: {ends}")
    for prompt, end in zip(prompts, ends, strict=True):
        path, row = [], end
        while row >= 0 and len(path) <= len(tokens):
            path.append(tokens[row])
            row = parents[row]
        words = f"{case}, {prompts}: the parents of row {end} lead back through {path[::-1]}"
        holds(path[::-1] == prompt, f"{words}, not through the prompt {prompt}")


@pytest.mark.parametrize("case", PROMPTS)
def test_what_prompts_begin_with_is_laid_out_once(exercise: ModuleType, case: str) -> None:
    prompts = PROMPTS[case]
    tree = pack([], prompts, tree=True)
    names, got = ("tokens", "parents", "ends"), exercise.merge(prompts)
    for name, mine in zip(names, got, strict=True):
        right = getattr(tree, name).tolist()
        holds(mine == right, f"{case}, {prompts}: {name} must be {right}; yours: {mine}")


@pytest.mark.parametrize("parents", [[-1, 0, 1], [-1, 0, 1, 1, 0, 4], [-1, -1, 0, 1, 2]])
def test_a_token_sees_its_ancestors_and_itself(exercise: ModuleType, parents: list[int]) -> None:
    rows = torch.arange(len(parents))  # tokens, positions and ends do not matter here
    expected = Layout(rows, torch.tensor(parents), rows, rows).mask
    same(exercise.tree_mask(parents), expected, f"tree_mask({parents})")


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
