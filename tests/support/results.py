"""Results made by hand, in the shape of results.json."""

from __future__ import annotations

from typing import Any

from minise.report.results import Results
from minise.report.tables import render

LLAMA = "meta-llama/Meta-Llama-3-8B-Instruct"
M4 = {"group_size": 4, "trials": 20}
SIZES = {  # of a tiny model
    **{"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "num_key_value_heads": 2},
    **{"qkv_bias": False, "intermediate_size": 128, "vocab_size": 512, "num_hidden_layers": 2},
    "tie_word_embeddings": False,
}

_METRICS = (
    *("accuracy", "nll", "brier", "ece_width", "auroc", "under_confidence", "over_confidence"),
    *("under_confidence_scores", "over_confidence_scores", "nll_matched"),
)


def cell(method: str = "standard", engine: str = "tree", **more: Any) -> dict[str, Any]:
    """A cell of results.json with an accuracy of 80%; `more` are settings and metrics."""
    return {
        "method": method,
        "settings": {},
        "engine": engine,
        **dict.fromkeys(_METRICS, 0.8),
        **{f"{name}_interval": [0.7, 0.9] for name in _METRICS},
        "n": 926,
        "questions": 926,
        "clusters": 926,
        "tokens": 1234.4,
        "tau": 0.5,
        "seeds": {"0": 0.7, "1": 0.8},
        "accuracy_seeds_mean": 0.75,
        "accuracy_seeds_std": 0.0707,
        "chance": 0.125,
        "reliability": {
            "edges": [i / 15 for i in range(16)],
            "count": [0] * 10 + [4, 0, 0, 40, 60],
            "questions": [0] * 10 + [4, 0, 0, 20, 30],
            "confidence": [None] * 10 + [0.7, None, None, 0.9, 0.98],
            "accuracy": [None] * 10 + [0.25, None, None, 0.8, 1.0],
        },
        "confidence_curve": {"tau": [0.0, 1.0], "correct": [1.0, 0.0], "incorrect": [0.9, 0.0]},
        **more,
    }


def ours(**more: Any) -> dict[str, Any]:
    """A cell of Self-Ensemble at the paper's sizes for QASC."""
    return cell("self-ensemble", settings={**M4, "preset": "paper"}, **more)


def make(
    experiment: str | None,
    tasks: dict[str, dict[str, Any]],
    facts: dict[str, tuple[str, int | None]] | None = None,
    differences: dict[str, list[Any]] | None = None,
    extra: dict[str, Any] | None = None,
    **config: Any,
) -> dict[str, Any]:
    """What results.json holds. `facts`: the data set and the number of choices of each task;
    `extra`: what else the experiment measures; `config`: what differs from a full run of LLaMA."""
    facts = facts or dict.fromkeys(tasks, ("qasc", 8))
    extra = {"asked": {task: {} for task in tasks}, **(extra or {})}
    timing = {"seconds_per_question": 0.25, "peak_bytes": 3 * 2**20}
    return {
        "config": {
            "experiment": experiment,
            "model": LLAMA,
            "config": SIZES,
            "label": None,
            "left_out": {},
            "dtype": "bfloat16",
            "device": "cuda",
            "limit": None,
            "full_run": True,
            "as_in_paper": True,
            "seeds": [0],
            "tasks": {
                task: {"questions": 926, "hash": "0", "dataset": dataset, "choices": choices}
                for task, (dataset, choices) in facts.items()
            },
            **config,
        },
        "results": tasks,
        "differences": differences or {task: [] for task in tasks},
        "timing": {task: {name: dict(timing) for name in cells} for task, cells in tasks.items()},
        **extra,
    }


def table(*runs: dict[str, Any]) -> str:
    """The report of runs, each given as its results.json."""
    return render([Results.from_json(run) for run in runs])


DIFFERENCE = {
    "a": "tree",
    "b": "multi-pass",
    "changed": 3,
    "accuracy": 0.05,
    "interval": [-0.01, 0.11],
    "clusters": 40,
    "only_a": 7,
    "only_b": 2,
    "mcnemar_p": 0.18,
}
