"""What a run measured, typed: the one view of results.json that tables and figures use."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minise.errors import InputError
from minise.evaluation.experiments import EXPERIMENTS

_PAPER = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
_CONFIG = ("dtype", "device", "limit", "full_run", "seeds", "tasks")
_FACTS = ("n", "tokens", "tau", "confidence_curve", "seeds", "accuracy_seeds_mean")
_MEASURES = (
    *("accuracy", "nll", "brier", "ece_width", "auroc", "under_confidence", "over_confidence"),
    *("under_confidence_scores", "over_confidence_scores"),
)
_INTERVALS = tuple(f"{name}_interval" for name in _MEASURES)
_METRICS = (*_FACTS, "accuracy_seeds_std", *_MEASURES, *_INTERVALS)


@dataclass(frozen=True)
class Cell:
    """One task under one variant. Every fact is a field; no name is ever parsed. `choices` is the
    number K of every question, None where it varies. `metrics`: those of `metrics.summarise` that
    are shown, shares from 0 to 1. `timing`: seconds_per_question and peak_bytes, None where not
    measured. `differences`: this cell minus each one before it, or minus the first where cells are
    many. `comparable`: the whole task under the paper's settings."""

    model: str
    experiment: str | None
    task: str
    name: str
    dataset: str
    choices: int | None
    method: str
    settings: dict[str, Any]
    engine: str
    metrics: dict[str, Any]
    timing: dict[str, Any]
    differences: list[dict[str, Any]]
    comparable: bool

    def paper(self, what: str) -> Any:
        """What the paper prints for this cell, in percent or seconds. None where it prints nothing
        or does not compare. An experiment for which it prints `what` takes no other's number."""
        numbers = [number for number in _PAPER["numbers"] if self.comparable and what in number]
        own = [number for number in numbers if number.get("experiment") == self.experiment]
        for number in own or [number for number in numbers if "experiment" not in number]:
            facts = number.keys() & {"dataset", "choices", "method", "engine"}
            same = all(number[fact] == getattr(self, fact) for fact in facts)
            same = same and number.get("settings", {}).items() <= self.settings.items()
            if same and self.model in _PAPER["models"][number["model"]]:
                return number[what]
        return None


@dataclass(frozen=True)
class Results:
    """A finished run. `model` is its name for people, `experiment` None where it was none of the
    paper's. `extra` is what an experiment measures besides, by its key in results.json. `raw` is
    the whole file, for `--json`."""

    model: str
    experiment: str | None
    config: dict[str, Any]
    cells: list[Cell]
    extra: dict[str, Any]
    raw: dict[str, Any]

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Results:
        """The typed view of a results.json. Raises KeyError for what is missing in it."""
        config = raw["config"]
        model, experiment = model_name(config["model"]), config["experiment"]
        timed = ("seconds_per_question", "peak_bytes")
        cells = [
            Cell(
                **{"model": model, "experiment": experiment, "task": task, "name": name},
                **{fact: config["tasks"][task][fact] for fact in ("dataset", "choices")},
                **{fact: found[fact] for fact in ("method", "settings", "engine")},
                metrics={metric: found[metric] for metric in _METRICS},
                timing={fact: raw["timing"][task][name][fact] for fact in timed},
                differences=[d for d in raw["differences"][task] if d["a"] == name],
                comparable=config["full_run"] and config["as_in_paper"],
            )
            for task, variants in raw["results"].items()
            for name, found in variants.items()
        ]
        more = EXPERIMENTS[experiment].extra if experiment in EXPERIMENTS else {}
        shown = {key: config[key] for key in _CONFIG}
        return cls(model, experiment, shown, cells, {key: raw[key] for key in more}, raw)


def read_results(folder: Path) -> Results:
    """A finished run's results. Raises InputError for a folder without them."""
    path = folder / "results.json"
    try:
        return Results.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        reason = "no such file; finish the run with minise eval --resume"
    except KeyError as error:
        reason = f"{error} is missing, so it is incomplete or of another version of minise; "
        reason += "run it again in another folder"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = f"not readable as results ({error})"
    raise InputError(f"{path}: {reason}")


def model_name(model: str) -> str:
    """A hub id as it is; of a folder its last part. It depends on nothing but the text.

    >>> model_name("Qwen/Qwen2-7B"), model_name("weights/tiny-llama"), model_name("/data/llama/")
    ('Qwen/Qwen2-7B', 'tiny-llama', 'llama')
    """
    parts = re.split(r"[/\\]+", model.rstrip("/\\"))
    is_hub_id = len(parts) == 2 and parts[0] not in ("", ".", "..", "~", "weights")
    return "/".join(parts) if is_hub_id else parts[-1]
