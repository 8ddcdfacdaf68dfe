"""Exercise 8: reading the answer.

A prompt ends in "Answer:". The model's answer is how it would go on: with " A", " B", ... Two
things can go wrong here. The id of a label is that of the token that follows *this prompt*: encoded
alone, it may be another token, or two. And the probabilities of the choices are a softmax over the
labels, not over the whole vocabulary.

Dimension legend: V vocabulary, m labels of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def label_ids(encode: Callable[[str], list[int]], prompt: str, labels: Sequence[str]) -> list[int]:
    """For each label the id of the one token by which prompt + label is longer than the prompt.
    `encode` turns a text into token ids; the same text gets the same ids. Raises ValueError if a
    label is not one token after this prompt.

    Here is a tokenizer with a token for each character:

    >>> label_ids(lambda text: [ord(character) for character in text], "Answer:", ["A", "B"])
    [65, 66]
    """
    raise NotImplementedError


def label_probabilities(logits_V: Tensor, ids: Sequence[int]) -> Tensor:
    """The probabilities of the labels: (m,), sum 1, in float64. `logits_V`: (V,), the logits after
    the prompt. `ids`: the token ids of its m labels, that of "None of the above" among them.

    >>> label_probabilities(torch.tensor([5.0, 1.0, 9.0, 1.0]), [1, 3]).tolist()
    [0.5, 0.5]
    """
    raise NotImplementedError
