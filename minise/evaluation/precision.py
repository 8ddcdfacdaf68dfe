"""How precise a number of trials is: sampled groupings against the exact expectation.

All ordered groups of a question are run once. Any sample of groups is then a matter of looking up,
so that many repetitions of every grouping and number of trials cost one exact evaluation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from minise.checkpoint import LanguageModel
from minise.ensemble import answer, plan_groups, resolve
from minise.evaluation.folder import open_folder, replace_file
from minise.evaluation.methods import Method
from minise.evaluation.runs import Run, machine
from minise.evaluation.samples import append_lines, drop_torn_line
from minise.grouping import make_groups
from minise.layout import token_counts
from minise.prompt import Question

GROUPINGS = ("random", "balanced")
TRIALS = (1, 2, 5, 7, 10, 14, 20, 28, 40, 80)
REPETITIONS = 16

Array = NDArray[np.float64]


def evaluate_precision(
    lm: LanguageModel, run: Run, group_sizes: dict[str, int], folder: Path, resume: bool = False
) -> dict[str, Any]:
    """Every task's questions under the first seed; as `evaluate`, with the same promises."""
    began, found = time.time(), {}
    seed = next(iter(run.tasks))
    description = {**run.describe(), "group_sizes": group_sizes}
    with open_folder(folder, description, resume):
        for task in run.names:
            questions = [question for s, question in run.questions(task) if s == seed]
            path = folder / f"precision-{task}.jsonl"
            found[task] = summarise(measure_all(lm, questions, group_sizes[task], seed, path))
        config = {**description, **run.about, **machine()}
        config["wall_seconds"] = round(time.time() - began, 1)
        report = {"config": config, "results": {}, "differences": {}, "timing": {}}
        report["precision"] = found
        replace_file(folder / "results.json", json.dumps(report, indent=1) + "\n")
    return report


def measure_question(
    lm: LanguageModel, question: Question, group_size: int, seed: int
) -> dict[str, Any]:
    """For each grouping and number of trials, over the repetitions: the mean squared distance of
    the scores from the exact expectation, accuracy, NLL (nats), and the merged tokens."""
    exact = Method("exact", "self-ensemble", group_size, 0, grouping="exact")
    plan = exact.plan(lm, question, seed)
    (rows,) = exact.logits(lm, [plan])
    expected = answer(plan, rows)
    assert question.answer is not None
    probabilities = {group.choices: group.probabilities.numpy() for group in expected.groups}
    K = len(question.choices)
    cells = {}
    for grouping in GROUPINGS:
        for trials in TRIALS:
            samples = [
                make_groups(K, group_size, trials, seed, f"{question.id}/{repetition}", grouping)
                for repetition in range(REPETITIONS)
            ]
            scores = np.stack([_scores(groups, probabilities, K) for groups in samples])
            right = scores[:, question.answer] / scores.sum(1)
            preset = resolve(lm, "paper", grouping)
            prompts = plan_groups(lm, question, group_size, trials, seed, preset).prompts
            cells[f"{grouping}-{trials}"] = {
                "variance": float(np.mean((scores - expected.scores.numpy()) ** 2)),
                "accuracy": float(np.mean(scores.argmax(1) == question.answer)),
                "nll": float(np.mean(-np.log(right))),
                "tokens": token_counts(prompts.prefix, prompts.branches)["tree"],
            }
    cells["exact"] = {
        "variance": 0.0,
        "accuracy": float(expected.prediction == question.answer),
        "nll": -float(expected.probabilities[question.answer].log()),
        "tokens": exact.tokens(plan),
    }
    return {"id": question.id, "cells": cells}


def _scores(
    groups: Sequence[Sequence[int]], probabilities: dict[tuple[int, ...], Array], K: int
) -> Array:
    """Eq. 3 from looked-up probabilities: (K,)."""
    places = np.concatenate(groups)
    values = np.concatenate([probabilities[tuple(group)] for group in groups])
    return np.bincount(places, values, K) / np.bincount(places, minlength=K)


def measure_all(
    lm: LanguageModel, questions: Sequence[Question], group_size: int, seed: int, path: Path
) -> list[dict[str, Any]]:
    """A line in `path` for each question; what is there already is kept."""
    drop_torn_line(path)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    done = {line["id"]: line for line in map(json.loads, lines)}
    bar = tqdm(
        total=len(questions),
        initial=len(done),
        desc=f"precision {path.stem}",
        unit="question",
        disable=None,
        leave=False,
    )
    with bar:
        for question in questions:
            if question.id in done:
                continue
            done[question.id] = measure_question(lm, question, group_size, seed)
            append_lines(path, [json.dumps(done[question.id]) + "\n"])
            bar.update()
    return [done[question.id] for question in questions]


def summarise(lines: Sequence[dict[str, Any]], resamples: int = 1000) -> dict[str, Any]:
    """Means over the questions; for each balanced number of trials, how many random trials have its
    variance ("worth", with a 95% bootstrap interval over questions) and how many tokens they take.

    The variance of N random trials is that of one, divided by N: one number, fitted on all N.
    """
    names = list(lines[0]["cells"])
    means: dict[str, dict[str, Any]] = {
        name: {
            what: float(np.mean([line["cells"][name][what] for line in lines]))
            for what in ("variance", "accuracy", "nll", "tokens")
        }
        for name in names
    }
    variance = {
        name: np.array([line["cells"][name]["variance"] for line in lines]) for name in names
    }
    of_one = np.mean([n * variance[f"random-{n}"] for n in TRIALS], axis=0)
    drawn = np.random.Generator(np.random.PCG64(0)).integers(
        len(lines), size=(resamples, len(lines))
    )
    random_tokens = [means[f"random-{n}"]["tokens"] for n in TRIALS]
    for n in TRIALS:
        balanced = variance[f"balanced-{n}"]
        worth = float(of_one.mean() / balanced.mean())
        ratios = of_one[drawn].mean(1) / balanced[drawn].mean(1)
        means[f"balanced-{n}"] |= {
            "worth": worth,
            "worth_interval": np.quantile(ratios, [0.025, 0.975]).tolist(),
            # None: more than were measured.
            "tokens_of_worth": None
            if worth > TRIALS[-1]
            else float(np.interp(worth, TRIALS, random_tokens)),
        }
    return {"questions": len(lines), "repetitions": REPETITIONS, "cells": means}
