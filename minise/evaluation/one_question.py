"""Single questions at every number of choices, for a figure of one that is lost among many."""

from __future__ import annotations

from typing import Any

from minise.methods.sample import Sample
from minise.prompt import LABELS

KEPT = 50  # questions, of which the figure takes the first that fits


def summarise_asked(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """The first questions of a task by their ids, each with its text and choices (or their labels,
    where samples hold no text), its answer, and the probabilities of each method."""
    found: dict[str, Any] = {}
    for name, each in samples.items():
        for sample in each[:KEPT]:
            text = sample.text or {"question": "", "choices": LABELS[: len(sample.scores)]}
            one = {"question": text["question"], "choices": list(text["choices"])}
            kept = found.setdefault(sample.id, {**one, "answer": sample.answer, "methods": {}})
            kept["methods"][name] = [round(p, 4) for p in sample.probabilities]
    return found


def lost_among_many(asked: dict[int, dict[str, Any]], method: str) -> list[tuple[int, Any]]:
    """By K the first question that the method answers rightly at K = 4 (or the smallest K), and
    wrongly at the largest; empty if there is none. `asked`: what `summarise_asked` says, by K."""
    few, most = 4 if 4 in asked else min(asked), max(asked)
    for id in [id for id in asked[few] if id in asked[most]]:
        pair = [(K, asked[K][id]) for K in (few, most)]
        said = [one["methods"][method] for _, one in pair if method in one["methods"]]
        best = [max(range(len(p)), key=p.__getitem__) for p in said]
        if [one["answer"] == i for (_, one), i in zip(pair, best, strict=False)] == [True, False]:
            return pair
    return []
