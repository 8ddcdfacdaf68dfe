"""What a run measured, typed: the one view of results.json that tables and figures use."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from minise.errors import InputError, one_line, printable, shorten
from minise.evaluation.experiments import EXPERIMENTS
from minise.evaluation.samples import DAMAGE

PAPER_LEAVES = {"grouping": "random", "null_option": True}  # what the preset paper says of settings
_PAPER = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
_CONFIG = ("dtype", "device", "limit", "full_run", "seeds", "tasks")
_FACTS = ("n", "questions", "tokens", "tau", "confidence_curve", "seeds", "accuracy_seeds_mean")
_MEASURES = (
    *("accuracy", "nll", "brier", "ece_width", "auroc", "under_confidence", "over_confidence"),
    *("under_confidence_scores", "over_confidence_scores"),
)
_INTERVALS = tuple(f"{name}_interval" for name in _MEASURES)
# A run that was written before has none of these.
_LATER = ("chance", "clusters", "reliability", "nll_matched", "nll_matched_interval", "asked")
_METRICS = (*_FACTS, "accuracy_seeds_std", *_MEASURES, *_INTERVALS)


@dataclass(frozen=True)
class Cell:
    """One task under one variant. Every fact is a field; no name is ever parsed. `choices` is the
    number K of every question, None where it varies. `metrics`: those of `metrics.summarise` that
    are shown, shares from 0 to 1. `timing`: seconds_per_question and peak_bytes, None where not
    measured. `differences`: this cell minus each one before it, or minus the first where cells are
    many. `comparable`: a full run under the paper's settings. `quantize`: how the weights are
    packed, as in `quantize.Packed.format`, None for full precision. `run`: what tells this run from
    others of the same model, such as its --label; may be empty."""

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
    quantize: str | None = None
    run: str = ""
    parameters: int | None = None  # of the model; None in a run that was written before

    @property
    def label(self) -> str:
        """The model, how its weights are packed, and the run."""
        return _label(self.model, self.quantize, self.run)

    @property
    def used(self) -> dict[str, Any]:
        """The settings, where the preset paper leaves one to itself with what it then is."""
        paper = PAPER_LEAVES if self.settings.get("preset") == "paper" else {}
        return {k: paper.get(k) if v is None else v for k, v in self.settings.items()}

    @property
    def compares(self) -> bool:
        """It is under the paper's settings, and of as many questions as the paper asked."""
        asked = _PAPER["questions"].get(self.dataset)
        return self.comparable and self.metrics["questions"] == asked

    def paper(self, what: str) -> Any:
        """What the paper prints for this cell, in percent or seconds. None where it prints nothing
        or does not compare. An experiment for which it prints `what` takes no other's number."""
        numbers = [number for number in _PAPER["numbers"] if self.compares and what in number]
        own = [number for number in numbers if number.get("experiment") == self.experiment]
        for number in own or [number for number in numbers if "experiment" not in number]:
            facts = number.keys() & {"dataset", "choices", "method", "engine"}
            same = all(number[fact] == getattr(self, fact) for fact in facts)
            same = same and number.get("four_bit", False) == (self.quantize is not None)
            same = same and number.get("settings", {}).items() <= self.settings.items()
            if same and self.model in _PAPER["models"][number["model"]]:
                return number[what]
        return None


@dataclass(frozen=True)
class Results:
    """A finished run. `model` is its name for people, as `Cell.label`; `experiment` None where it
    was none of the paper's. `extra` is what an experiment measures besides, by its key in
    results.json. `raw` is the whole file, for `--json`."""

    model: str
    experiment: str | None
    config: dict[str, Any]
    cells: list[Cell]
    extra: dict[str, Any]
    raw: dict[str, Any]

    @classmethod
    def from_json(cls, raw: dict[str, Any], label: str | None = None) -> Results:
        """The typed view of a results.json, with another label if one is given. Raises KeyError for
        what is missing in it."""
        config = raw["config"]
        model, experiment = printable(model_name(config["model"])), config["experiment"]
        run = printable(shorten(label or config.get("label") or "", 60))
        known = "hidden_size" in config.get("config", {})
        timed = ("seconds_per_question", "peak_bytes")
        cells = [
            Cell(
                **{"model": model, "experiment": experiment, "task": printable(task)},
                name=printable(name),
                **{fact: config["tasks"][task][fact] for fact in ("dataset", "choices")},
                **{fact: found[fact] for fact in ("method", "settings", "engine")},
                metrics={metric: found[metric] for metric in _METRICS}
                | {metric: found.get(metric) for metric in _LATER},
                timing={fact: raw["timing"][task][name][fact] for fact in timed},
                differences=[d for d in raw["differences"][task] if d["a"] == name],
                comparable=config["full_run"] and config["as_in_paper"],
                quantize=config.get("quantize"),
                run=run,
                parameters=_parameters(config["config"]) if known else None,
            )
            for task, variants in raw["results"].items()
            for name, found in variants.items()
        ]
        more = EXPERIMENTS[experiment].extra if experiment in EXPERIMENTS else {}
        shown = {key: config[key] for key in _CONFIG} | {"left_out": config.get("left_out", {})}
        model = _label(model, config.get("quantize"), run)
        extra = {key: raw.get(key, {}) if key in _LATER else raw[key] for key in more}
        return cls(model, experiment, shown, cells, extra, raw)


def and_averages(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, method by method, and after those of several tasks their mean, whose task and data
    set are "average". It has no intervals, and only for a method that all tasks have."""
    found: list[Cell] = []
    tasks = {cell.task for cell in cells}
    for name in dict.fromkeys(cell.name for cell in cells):
        own = [cell for cell in cells if cell.name == name]
        found += own
        if 1 < len(own) == len(tasks):
            columns = {key: [cell.metrics[key] for cell in own] for key in own[0].metrics}
            metrics = {
                key: fmean(each) if all(isinstance(x, float) for x in each) else None
                for key, each in columns.items()
            }
            metrics["questions"] = sum(columns["questions"])
            mean = replace(own[0], task="average", dataset="average", choices=None, metrics=metrics)
            found.append(replace(mean, differences=[]))
    return found


def tell_apart(runs: Sequence[Results]) -> list[Results]:
    """The runs, so that one name never stands for two things. Where runs of one model differ in
    dtype, device, seeds or limit, their labels say it; where methods of one name differ in
    settings, their names say which."""
    return [_told(run, [one for one in runs if one.model == run.model]) for run in runs]


def _told(run: Results, same: Sequence[Results]) -> Results:
    facts = ("dtype", "device", "seeds", "limit")
    differ = [f for f in facts if any(one.config[f] != run.config[f] for one in same)]
    mark = ", ".join(f"{fact} {run.config[fact]}" for fact in differ)
    others = [cell for one in same for cell in one.cells]
    differing = {  # settings, each with the name of its method
        (cell.name, setting)
        for cell in run.cells
        for other in others
        if (other.task, other.name) == (cell.task, cell.name)
        for setting, value in cell.used.items()
        if other.used.get(setting) != value
    }
    names: dict[tuple[str, str], str] = {}
    for cell in run.cells:
        told = typed({k: v for k, v in cell.used.items() if (cell.name, k) in differing})
        names[cell.task, cell.name] = f"{cell.name} ({told})" if told else cell.name
    cells = [
        replace(
            cell,
            name=names[cell.task, cell.name],
            run=", ".join(filter(None, [cell.run, mark])),
            differences=[
                d | {side: names.get((cell.task, d[side]), d[side]) for side in "ab"}
                for d in cell.differences
            ],
        )
        for cell in run.cells
    ]
    return replace(run, model=", ".join(filter(None, [run.model, mark])), cells=cells)


def read_results(folder: Path, label: str | None = None) -> Results:
    """A finished run's results, under this label or its own. Raises InputError for a folder without
    them."""
    path, again = folder / "results.json", "minise eval --resume writes it again"
    try:
        if path.exists() and not path.is_file():  # to read a pipe would wait for ever
            raise OSError("it is no file")
        text = path.read_text(encoding="utf-8")
        return Results.from_json(
            json.loads(text, parse_float=_finite, parse_constant=_finite), label
        )
    except FileNotFoundError:
        reason = "no such file; finish the run with minise eval --resume"
    except KeyError as error:
        reason = f"{error} is missing, so it is damaged or of another version of minise; {again}"
    except (OSError, *DAMAGE) as error:
        reason = f"not readable as results ({one_line(error)}); {again}"
    raise InputError(f"{path}: {reason}")


def peaks_so_far(path: Path) -> tuple[dict[tuple[str, str], int], str]:
    """The peaks of memory (bytes) in a results.json, by task and variant; and why it cannot be
    read, else empty. Samples are what counts: such a file is written anew."""
    try:
        timing = json.loads(path.read_text(encoding="utf-8"))["timing"]
        named = {(t, v): one["peak_bytes"] for t in timing for v, one in timing[t].items()}
        return {key: int(peak) for key, peak in named.items() if peak is not None}, ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, *DAMAGE) as error:
        return {}, one_line(error)


def typed(settings: dict[str, Any]) -> str:
    """Settings as one types them after --method."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _parameters(config: dict[str, Any]) -> int:
    """How many numbers the weights of a model of these facts hold."""
    D, heads, read = (config[f] for f in ("hidden_size", "num_attention_heads", "head_dim"))
    kv = 2 * config["num_key_value_heads"]
    attention = D * read * (2 * heads + kv) + config["qkv_bias"] * read * (heads + kv)
    layer = attention + 3 * D * config["intermediate_size"] + 2 * D
    tables = D * config["vocab_size"] * (1 if config["tie_word_embeddings"] else 2)
    return int(tables + config["num_hidden_layers"] * layer + D)


def _label(model: str, quantize: str | None, run: str) -> str:
    packed = f"{model} ({quantize})" if quantize else model
    return f"{packed}, {run}" if run else packed


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"it holds {text}, which no run writes")
    return value


def model_name(model: str) -> str:
    """A hub id as it is; of a folder its last part. It depends on nothing but the text.

    >>> model_name("Qwen/Qwen2-7B"), model_name("weights/tiny-llama"), model_name("/data/llama/")
    ('Qwen/Qwen2-7B', 'tiny-llama', 'llama')
    """
    parts = re.split(r"[/\\]+", model.rstrip("/\\"))
    is_hub_id = len(parts) == 2 and parts[0] not in ("", ".", "..", "~", "weights")
    return "/".join(parts) if is_hub_id else parts[-1]
