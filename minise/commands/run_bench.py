"""`minise bench`: load or make the weights, time them, and print the table."""

from __future__ import annotations

import json
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
from minise.errors import printable
from minise.exact import machine
from minise.loading.config_json import config_from_dict
from minise.loading.placement import usable_device


def run(request: BenchRequest) -> int:
    loaded = _load(request)
    weights = request.model or f"random weights, {request.shape or 'the benchmark shape'}"
    where = f"{loaded.dtype}, {loaded.device}, {request.rounds} rounds"
    head = f"{request.workload}: {weights}, {where}"
    about: dict[str, Any] = {
        "workload": request.workload,
        "device": loaded.device,
        "dtype": loaded.dtype,
        "machine": machine.facts_and_threads(),
    }
    if request.workload == GENERATE:
        _time_writing(request, loaded, about, head)
    else:
        _time_engines(request, loaded, about, head)
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


def _time_writing(request: BenchRequest, loaded: Loaded, about: dict[str, Any], head: str) -> None:
    settings = request.rounds, request.seed, request.peers
    rows = generating.time_generation(loaded.lm, WORKLOADS["qasc"], *settings)
    if request.json:
        print(json.dumps(about | {"rows": [asdict(row) for row in rows]}))
    else:
        print(printable(head))
        print(generating.as_text(rows))


def _time_engines(request: BenchRequest, loaded: Loaded, about: dict[str, Any], head: str) -> None:
    lm, workload = loaded.lm, WORKLOADS[request.workload]
    settings = request.rounds, request.seed, request.peers
    timings = time_engines(lm, workload, *settings, request.tokens_per_pass or 0, request.free_rows)
    if request.json:
        print(json.dumps(about | asdict(timings)))
    else:
        print(printable(head))
        print(timings.as_text())
    if request.plot is not None:
        plot_growth(lm, workload, request.seed, request.rounds, timings, request.plot)
        if not request.json:
            print(f"written: {printable(str(request.plot))}")
