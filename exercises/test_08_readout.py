"""Tests of exercise 8. They compare with minise/template.py and minise/method.py."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
import torch

import minise
from exercises.checks import examples, holds, same
from minise.lm import branch_logits

QUESTION = minise.Question("What is the capital of Kenya?", ["Accra", "Nairobi", "Lagos"])


def encode(text: str) -> list[int]:
    """As tokenizers of the kind of Mistral's: a text begins with a special token, and its first
    word is taken to follow a space. So "A" alone is not the token "A" after a newline."""
    pieces = re.findall(r" ?[A-Za-z]+|[^A-Za-z]", f" {text}")
    return [1, *(sum(ord(letter) << 7 * i for i, letter in enumerate(p)) for p in pieces)]


def test_the_labels_of_the_model_that_ships(exercise: ModuleType, lm: minise.LocalModel) -> None:
    _, prompts = minise.SelfEnsemble(group_size=2, trials=1).prompts(lm, QUESTION)
    for branch, expected in zip(prompts.branches, prompts.label_ids, strict=True):
        text = lm.tokenizer.decode([*prompts.prefix, *branch])
        labels = [" A", " B", " C"][: len(expected)]
        got = exercise.label_ids(lambda text: lm.tokenizer.encode([text])[0], text, labels)
        words = f"after {text[-10:]!r} the ids of {labels} are {expected}"
        holds(list(got) == expected, f"{words}; yours: {got}")


def test_a_label_is_the_token_that_follows_the_prompt(exercise: ModuleType) -> None:
    got = exercise.label_ids(encode, "Answer:\n", ["A", "B"])
    words = 'after "Answer:\\n" the tokens of "A" and "B" have the ids 65 and 66. Alone, this '
    words += f'tokenizer reads "A" as {encode("A")}, which begins with a space. Yours'
    holds(list(got) == [65, 66], f"{words}: {got}")


@pytest.mark.parametrize("label", ["A.", "B C", ""])
def test_a_label_that_is_not_one_token_is_refused(exercise: ModuleType, label: str) -> None:
    try:
        got = exercise.label_ids(encode, "Answer:\n", [label])
    except ValueError:
        return
    holds(False, f"{label!r} is not one token: label_ids must raise ValueError; yours gives {got}")


def test_a_label_that_merges_with_the_prompt_is_refused(exercise: ModuleType) -> None:
    """ "Answe" + "r" is one word: no token follows, another one is there in place of the last."""
    try:
        got = exercise.label_ids(encode, "Answe", ["r"])
    except ValueError:
        return
    words = "the label becomes part of the prompt's last token: label_ids must raise ValueError"
    holds(False, f"{words}; yours gives {got}")


def test_probabilities_are_those_of_the_labels_alone(
    exercise: ModuleType, lm: minise.LocalModel
) -> None:
    """Those of a real question; the last label of each group is "None of the above"."""
    method = minise.SelfEnsemble(group_size=2, trials=2)
    _, prompts = method.prompts(lm, QUESTION)
    logits = branch_logits(lm, prompts.prefix, prompts.branches)
    expected = minise.ask(lm, method, QUESTION).groups
    for ids, row, group in zip(prompts.label_ids, logits, expected, strict=True):
        got = exercise.label_probabilities(row, ids)
        holds(len(got) == len(ids), "each label must get a probability")
        total = float(got.sum())
        words = f"the probabilities of the labels must sum to 1; yours to {total:.4f}"
        holds(abs(total - 1) < 1e-9, f"{words} (the whole vocabulary is not the set of answers)")
        assert group.null is not None
        right = torch.cat([group.probabilities, torch.tensor([group.null]).double()])
        same(got, right, f"the probabilities of group {group.choices}", 1e-6)


def test_large_logits_do_not_overflow(exercise: ModuleType) -> None:
    got = exercise.label_probabilities(torch.tensor([1000.0, 0.0, 1000.0]), [0, 2])
    right = torch.tensor([0.5, 0.5], dtype=torch.float64)
    same(got, right, "label_probabilities of logits 1000 and 1000", 1e-9)


def test_the_examples_are_true(exercise: ModuleType) -> None:
    examples(exercise)
