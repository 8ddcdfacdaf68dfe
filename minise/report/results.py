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
from minise.evaluation.experiments import find_experiment
from minise.evaluation.samples import DAMAGE

PAPER_SETTINGS = {"grouping": "random", "null_option": True}  # where the preset paper sets them
_PAPER = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
_CONFIG = ("dtype", "device", "limit", "full_run", "seeds", "tasks", "left_out")
_FACTS = (
    *("n", "questions", "clusters", "tokens", "tau", "chance", "confidence_curve", "reliability"),
    *("seeds", "accuracy_seeds_mean", "accuracy_seeds_std"),
)
_MEASURES = (
    *("accuracy", "nll", "nll_matched", "brier", "ece_width", "auroc"),
    *("under_confidence", "over_confidence", "under_confidence_scores", "over_confidence_scores"),
)
_METRICS = (*_FACTS, *_MEASURES, *(f"{name}_interval" for name in _MEASURES))
_TIMING = ("seconds_per_question", "peak_bytes")


@dataclass(frozen=True)
class Cell:
    """One task under one variant. Every fact is a field; no name is ever parsed. `choices` is the
    number K of every question, None where it varies. `metrics`: those of `metrics.summarise` that
    are shown, shares from 0 to 1. `timing`: seconds_per_question and peak_bytes, None where not
    measured. `differences`: this cell minus each one before it, or minus the first where cells are
    many. `comparable`: a full run under the paper's settings. `parameters`: how many the model has.
    `quantize`: how the weights are packed, as in `quantize.Packed.format`, None for full precision.
    `run`: distinguishes this run from others of the same model, such as its --label; may be empty.
    """

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
    parameters: int | None
    quantize: str | None = None
    run: str = ""

    @property
    def label(self) -> str:
        """The model, how its weights are packed, and the run."""
        return _label(self.model, self.quantize, self.run)

    @property
    def used(self) -> dict[str, Any]:
        """The settings; one that is left to the preset paper with the value that it has there."""
        paper = PAPER_SETTINGS if self.settings.get("preset") == "paper" else {}
        return {k: paper.get(k) if v is None else v for k, v in self.settings.items()}

    @property
    def compares(self) -> bool:
        """It is under the paper's settings, and of as many questions as the paper has."""
        count = _PAPER["questions"].get(self.dataset)
        return self.comparable and self.metrics["questions"] == count

    def paper(self, what: str) -> Any:
        """What the paper prints for this cell, in percent or seconds. None where it prints nothing
        or does not compare. An experiment for which it prints `what` takes no other's number."""
        numbers = [number for number in _PAPER["numbers"] if self.compares and what in number]
        of_experiment = [one for one in numbers if one.get("experiment") == self.experiment]
        of_any = [one for one in numbers if "experiment" not in one]
        for number in of_experiment or of_any:
            if self._is_of(number):
                return number[what]
        return None

    def _is_of(self, number: dict[str, Any]) -> bool:
        """Whether a number of the paper is for this cell's model, task and settings."""
        facts = number.keys() & {"dataset", "choices", "method", "engine"}
        return (
            all(number[fact] == getattr(self, fact) for fact in facts)
            and number.get("four_bit", False) == (self.quantize is not None)
            and number.get("settings", {}).items() <= self.settings.items()
            and self.model in _PAPER["models"][number["model"]]
        )


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
        run = printable(shorten(label or config["label"] or "", 60))
        tasks = config["tasks"]
        quantize = config.get("quantize")  # in a run of packed weights alone
        cells = [
            Cell(
                model=model,
                experiment=experiment,
                task=printable(task),
                name=printable(name),
                dataset=tasks[task]["dataset"],
                choices=tasks[task]["choices"],
                method=cell["method"],
                settings=cell["settings"],
                engine=cell["engine"],
                metrics={metric: cell[metric] for metric in _METRICS},
                timing={fact: raw["timing"][task][name][fact] for fact in _TIMING},
                differences=[d for d in raw["differences"][task] if d["a"] == name],
                comparable=config["full_run"] and config["as_in_paper"],
                parameters=_parameters(config["config"]),
                quantize=quantize,
                run=run,
            )
            for task, variants in raw["results"].items()
            for name, cell in variants.items()
        ]
        shown = {key: config[key] for key in _CONFIG}
        extra = {
            key: {printable(task): measured for task, measured in raw[key].items()}
            for key in find_experiment(experiment).extra
        }
        return cls(_label(model, quantize, run), experiment, shown, cells, extra, raw)


def and_averages(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, method by method, and after those of several tasks their mean, whose task and data
    set are "average". It has no intervals, and only for a method that all tasks have."""
    listed: list[Cell] = []
    tasks = {cell.task for cell in cells}
    for name in dict.fromkeys(cell.name for cell in cells):
        of_method = [cell for cell in cells if cell.name == name]
        listed += of_method
        if 1 < len(of_method) == len(tasks):
            columns = {key: [c.metrics[key] for c in of_method] for key in of_method[0].metrics}
            metrics: dict[str, Any] = {}
            for key, values in columns.items():
                metrics[key] = fmean(values) if all(isinstance(x, float) for x in values) else None
            metrics["questions"] = sum(columns["questions"])
            average = replace(of_method[0], task="average", dataset="average", choices=None)
            listed.append(replace(average, metrics=metrics, differences=[]))
    return listed


def tell_apart(runs: Sequence[Results]) -> list[Results]:
    """The runs, so that no name means two things. Where runs of one model differ in dtype, device,
    seeds or limit, their labels say so; where methods of one name differ in settings, their names
    give these settings."""
    return [_told_apart(run, [one for one in runs if one.model == run.model]) for run in runs]


def _told_apart(run: Results, same_model: Sequence[Results]) -> Results:
    facts = ("dtype", "device", "seeds", "limit")
    differ = [f for f in facts if any(one.config[f] != run.config[f] for one in same_model)]
    mark = ", ".join(f"{fact} {run.config[fact]}" for fact in differ)
    names = _distinct_names(run.cells, [cell for one in same_model for cell in one.cells])
    cells = []
    for cell in run.cells:
        differences = [
            d | {side: names.get((cell.task, d[side]), d[side]) for side in "ab"}
            for d in cell.differences
        ]
        name, label = names[cell.task, cell.name], ", ".join(filter(None, [cell.run, mark]))
        cells.append(replace(cell, name=name, run=label, differences=differences))
    return replace(run, model=", ".join(filter(None, [run.model, mark])), cells=cells)


def _distinct_names(cells: Sequence[Cell], others: Sequence[Cell]) -> dict[tuple[str, str], str]:
    """Names by task and name: with those settings in which a cell of the same task and name among
    the others differs."""
    differing = set()  # names of methods, each with a setting
    for cell in cells:
        for other in others:
            if (other.task, other.name) == (cell.task, cell.name):
                for setting, value in cell.used.items():
                    if other.used.get(setting) != value:
                        differing.add((cell.name, setting))
    names: dict[tuple[str, str], str] = {}
    for cell in cells:
        settings = typed({k: v for k, v in cell.used.items() if (cell.name, k) in differing})
        names[cell.task, cell.name] = f"{cell.name} ({settings})" if settings else cell.name
    return names


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
        if not folder.exists():
            raise InputError(f"{folder}: no such folder") from None
        reason = "no such file; finish the run with minise eval --resume"
    except KeyError as error:
        reason = f"{error} is missing, so it is damaged or of another version of minise; {again}"
    except (OSError, *DAMAGE) as error:
        reason = f"not readable as results ({one_line(error)}); {again}"
    raise InputError(f"{path}: {reason}")


def typed(settings: dict[str, Any]) -> str:
    """Settings as one types them after --method."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in settings.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _parameters(config: dict[str, Any]) -> int | None:
    """How many numbers the weights of a model of these facts hold. None for a model of another
    library, whose config has other facts."""
    if "hidden_size" not in config:
        return None
    D, heads, size = (config[f] for f in ("hidden_size", "num_attention_heads", "head_dim"))
    kv = 2 * config["num_key_value_heads"]
    attention = D * size * (2 * heads + kv) + config["qkv_bias"] * size * (heads + kv)
    norms = 2 * D + 2 * size * config.get("qk_norm", False)  # older runs do not name it
    layer = attention + 3 * D * config["intermediate_size"] + norms
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
