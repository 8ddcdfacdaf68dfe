"""What an experiment measures besides the metrics: functions of a task's samples by variant.

The experiments name these functions, and `minise --help` lists the experiments: so numpy and the
tokenizers are imported where they are needed.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from minise.methods.sample import Sample

MOST_QUESTIONS = 50  # of which the figure takes the first that fits


def single_questions(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """The first questions of a task by their ids, each with its text and choices (or their labels,
    where samples hold no text), its answer, and the probabilities of each method."""
    from minise.prompt import LABELS

    questions: dict[str, Any] = {}
    for name, of_method in samples.items():
        for sample in of_method[:MOST_QUESTIONS]:
            text = sample.text or {"question": "", "choices": LABELS[: len(sample.scores)]}
            if sample.id not in questions:
                questions[sample.id] = {
                    "question": text["question"],
                    "choices": list(text["choices"]),
                    "answer": sample.answer,
                    "methods": {},
                }
            rounded = [round(p, 4) for p in sample.probabilities]
            questions[sample.id]["methods"][name] = rounded
    return questions


def reasoning_texts(samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """For each variant whose samples hold a reasoning: the accuracy of the choice that the text
    names, with its 95% "interval" (a text that names none counts as wrong), the shares of texts
    that name none and that were cut, and the mean number of new tokens."""
    from minise.evaluation.metrics import summarise

    measured = {}
    for name, of_method in samples.items():
        notes = [sample.notes or {} for sample in of_method]
        if not all("new_tokens" in note for note in notes):
            continue
        as_said = [_as_said(s, note["said"]) for s, note in zip(of_method, notes, strict=True)]
        metrics = summarise(as_said)
        measured[name] = {
            "accuracy": metrics["accuracy"],
            "interval": metrics["accuracy_interval"],
            "names_none": fmean(note["said"] is None for note in notes),
            "cut": fmean(note["cut"] for note in notes),
            "new_tokens": fmean(note["new_tokens"] for note in notes),
        }
    return measured


def _as_said(sample: Sample, choice: int | None) -> Sample:
    """The sample with the choice that its text names as the prediction; None: a wrong one."""
    K, answer = len(sample.scores), sample.answer or 0
    return replace(sample, prediction=(answer + 1) % K if choice is None else choice)
