"""Run by each process of test_tensor_parallel.py: a split decoder beside the whole one."""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import Tensor

from minise import LanguageModel, Question, SelfEnsemble, generate, load, record
from minise.engines import branch_logits, hidden_states
from minise.layout import pack
from minise.loading.checkpoint import prepare, read_weights
from minise.loading.parallel import joined
from minise.names import ENGINES

QUESTION = Question("Which one flies?", ["eel", "cat", "owl", "ant", "yak", "trout"], answer=2)


def streams(lm: LanguageModel, engine: str, method: SelfEnsemble) -> list[Tensor]:
    """The residual stream after each layer, and the logits."""
    plan = method.plan(lm, QUESTION)
    with record(lm.decoder) as trace:
        logits = branch_logits(lm, plan.prefix, plan.branches, engine)
    return [*trace.residual.values(), logits]


def differences_of(whole: LanguageModel, part: LanguageModel) -> dict[str, float]:
    method = SelfEnsemble(3, 4)
    differences = {}
    for engine in ENGINES:
        pairs = zip(streams(whole, engine, method), streams(part, engine, method), strict=True)
        differences[engine] = max(float((a - b).abs().max()) for a, b in pairs)
    plan = method.plan(whole, QUESTION)
    layout = pack(plan.prefix, plan.branches)
    a, b = (hidden_states(lm, layout) for lm in (whole, part))
    differences["every token"] = float((a - b).abs().max())
    prompts = [plan.prefix + branch for branch in plan.branches[:3]]
    texts = [generate(lm, prompts, 12, stop=()) for lm in (whole, part)]
    differences["generated"] = float(sum(x.tokens != y.tokens for x, y in zip(*texts, strict=True)))
    differences["values"] = sum(p.numel() for p in part.decoder.parameters()) / sum(
        p.numel() for p in whole.decoder.parameters()
    )
    return differences


def compare(width: int, folders: list[str]) -> None:
    """Process 0 prints a JSON object: for each folder the largest differences, by what was
    compared."""
    report = {}
    with torch.inference_mode(), joined(width) as world:
        for folder in folders:
            whole = load(folder, dtype=torch.float64)
            arguments = (folder, None, torch.float64, "cpu", None)
            lm, stored, placed = prepare(*arguments, share=world.share)
            part = replace(lm, decoder=read_weights(stored, placed.dtype, placed.device))
            report[folder] = differences_of(whole, part)
    if world.rank == 0:
        print(json.dumps(report))
