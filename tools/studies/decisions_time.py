"""CPU seconds of a request with many questions on one text, by several ways in turn.

    python -m tools.studies.decisions_time REQUESTS FOLDER DTYPE MODEL

writes decided/time-MODEL.json after each method. REQUESTS: of JevBench (decisions.py). Of them are
made a state of 500 tokens and 20 questions on it, which `standard` asks by every way;
and some are asked as they are, by each method.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from minise import LocalModel, Prompts, load
from minise.lab.data.typed import read_questions
from minise.lab.decisions import Together, method_named
from minise.loading.machine import processor
from minise.verify.recording import own_decoder
from tools.bench.peers import kept_question, transformers_model
from tools.studies.decisions import RECORDS, lines

METHODS = ("standard", "presence", "self-ensemble(trials=5)", "cyclic")
TOKENS = 500  # of the state
QUESTIONS = 20
ROUNDS = 5
EVERY = 94  # of the suite's requests, one in so many

Request = dict[str, Any]


def write_times(requests: Path, folder: str, dtype: str, name: str) -> None:
    torch.set_num_threads(1)
    lm = load(folder, dtype=dtype)
    assert isinstance(lm, LocalModel)
    model = transformers_model(folder, own_decoder(lm))
    given = [json.loads(line) for line in lines(requests)]
    found: dict[str, Any] = {"cpu": processor(), "model": Path(folder).name, "dtype": dtype}
    for method in METHODS:
        taken: dict[str, Any] = {}
        if method == "standard":
            prompts = prompts_of(lm, method, large_request(lm, given))
            ways: dict[str, Callable[[], Any]] = {}
            for engine in ("tree", "packed", "separate"):
                ways[engine] = partial(lm.with_engine(engine).logits, prompts)
            ways |= kept_question(model, prompts)
            taken = {"prompts": len(prompts.branches), "seconds": in_turn(ways, ROUNDS)}
        of_suite = []
        for request in given[::EVERY]:
            run = partial(lm.logits, prompts_of(lm, method, request))
            of_suite.append(cpu_seconds(run))
        taken["suite"] = round(mean(of_suite), 3)
        found[method.partition("(")[0]] = taken
        (RECORDS / f"time-{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(method, json.dumps(taken), flush=True)


def prompts_of(lm: LocalModel, method: str, request: Request) -> Prompts:
    questions = read_questions(request["state"], request["questions"])
    _, prompts = Together(method_named(method, {})).prompts(lm, questions)
    return prompts


def large_request(lm: LocalModel, given: Sequence[Request]) -> Request:
    """Texts of the suite, of TOKENS in all, and the first questions on them."""
    text = ""
    questions: dict[str, Any] = {}
    seen = set()
    for request in given:
        ids = lm.tokenizer.encode([text])[0]
        if len(ids) >= TOKENS and len(questions) >= QUESTIONS:
            break
        if request["state"] not in seen:
            seen.add(request["state"])
            text += request["state"] + "\n\n"
        for id, asked in request["questions"].items():
            questions.setdefault(id, asked)
    state = lm.tokenizer.decode(ids[:TOKENS])
    return {"state": state, "questions": dict(list(questions.items())[:QUESTIONS])}


def cpu_seconds(run: Callable[[], Any]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


@torch.inference_mode()
def in_turn(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median CPU seconds of each way, all ways in each round, after a round that is not
    counted."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + rounds):
        for name, run in ways.items():
            taken[name].append(cpu_seconds(run))
    return {name: round(median(seconds[1:]), 3) for name, seconds in taken.items()}


if __name__ == "__main__":
    write_times(Path(sys.argv[1]), *sys.argv[2:])
