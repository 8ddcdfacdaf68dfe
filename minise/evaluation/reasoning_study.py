"""What methods that reason wrote, and what their text itself answers."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from minise.evaluation.metrics import summarise
from minise.methods.sample import Sample


def summarise_reasoning(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """For each variant whose samples hold a reasoning: the accuracy of the choice that the text
    names, with its 95% "interval" (a text that names none counts as wrong), the shares of texts
    that name none and that were cut, and the mean number of new tokens."""
    found = {}
    for name, each in samples.items():
        notes = [sample.notes or {} for sample in each]
        if all("new_tokens" in one for one in notes):
            as_said = [_as_said(s, one["said"]) for s, one in zip(each, notes, strict=True)]
            measured = summarise(as_said)
            found[name] = {
                "accuracy": measured["accuracy"],
                "interval": measured["accuracy_interval"],
                "names_none": fmean(one["said"] is None for one in notes),
                "cut": fmean(one["cut"] for one in notes),
                "new_tokens": fmean(one["new_tokens"] for one in notes),
            }
    return found


def _as_said(sample: Sample, said: int | None) -> Sample:
    K, answer = len(sample.scores), sample.answer or 0
    return replace(sample, prediction=(answer + 1) % K if said is None else said)
