"""`minise bench`: load or make the weights, time them, and print the table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from minise.bench import generating
from minise.bench.measure import empty_decoder, random_model, time_engines
from minise.bench.plot import plot_growth
from minise.bench.shapes import BENCH_SHAPE, PUBLISHED
from minise.bench.workloads import WORKLOADS
from minise.commands.bench import GENERATE, BenchRequest
from minise.commands.model import Loaded, load_model, set_threads, values_of
from minise.commands.options import ModelRequest
from minise.commands.written import near
from minise.errors import printable
from minise.exact import machine
from minise.files import json_text
from minise.loading.config_json import config_from_dict
from minise.loading.placement import usable_device


def run(request: BenchRequest) -> int:
    loaded = _load(request)
    lm, settings = loaded.lm, (request.rounds, request.seed, request.peers)
    if request.workload == GENERATE:
        rows = generating.time_generation(lm, WORKLOADS["qasc"], *settings)
        _show(request, loaded, {"rows": [asdict(row) for row in rows]}, generating.as_text(rows))
        return 0
    workload, more = WORKLOADS[request.workload], (request.tokens_per_pass or 0, request.free_rows)
    timings = time_engines(lm, workload, *settings, *more)
    report = asdict(timings)
    if not request.json:  # the table first: the plot takes long
        _show(request, loaded, report, timings.as_text())
    if request.plot is not None:
        sizes = (workload, request.seed, request.rounds)
        report["growth"] = plot_growth(lm, *sizes, timings, request.plot)
    if request.json:
        _show(request, loaded, report, "")
    elif request.plot is not None:
        print(f"written: {near(request.plot)}")
    return 0


def _load(request: BenchRequest) -> Loaded:
    """The model of --model, or one with random weights."""
    if request.model is not None:
        where = request.dtype, request.device, request.threads
        return load_model(ModelRequest(request.model, request.revision, *where))
    shape = BENCH_SHAPE if request.shape is None else PUBLISHED[request.shape]
    dtype, device = getattr(torch, request.dtype), usable_device(request.device)
    empty = empty_decoder(config_from_dict(shape), dtype)
    set_threads(request.threads, values_of(empty))
    return Loaded(random_model(shape, dtype, device), request.dtype, request.device)


def _show(request: BenchRequest, loaded: Loaded, report: dict[str, Any], table: str) -> None:
    """Print what was measured: the report as a JSON object, or the table."""
    if request.json:
        about = {
            "workload": request.workload,
            "device": loaded.device,
            "dtype": loaded.dtype,
            "machine": machine.facts_and_threads(),
        }
        print(json_text(about | report))
        return
    weights = request.model or f"random weights, {request.shape or 'the benchmark shape'}"
    where = f"{loaded.dtype}, {loaded.device}, {request.rounds} rounds"
    print(printable(f"{request.workload}: {weights}, {where}"))
    print(table)
