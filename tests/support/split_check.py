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


def streams(lm: LanguageModel, engine: str, plan: SelfEnsemble) -> list[Tensor]:
    """The residual stream after each layer, and the logits."""
    asked = plan.plan(lm, QUESTION)
    with record(lm.decoder) as seen:
        logits = branch_logits(lm, asked.prefix, asked.branches, engine)
    return [*seen.residual.values(), logits]


def apart(whole: LanguageModel, part: LanguageModel) -> dict[str, float]:
    plan = SelfEnsemble(3, 4)
    found = {}
    for engine in ENGINES:
        pairs = zip(streams(whole, engine, plan), streams(part, engine, plan), strict=True)
        found[engine] = max(float((a - b).abs().max()) for a, b in pairs)
    asked = plan.plan(whole, QUESTION)
    layout = pack(asked.prefix, asked.branches)
    a, b = (hidden_states(lm, layout) for lm in (whole, part))
    found["every token"] = float((a - b).abs().max())
    prompts = [asked.prefix + branch for branch in asked.branches[:3]]
    texts = [generate(lm, prompts, 12, stop=()) for lm in (whole, part)]
    found["generated"] = float(sum(x.tokens != y.tokens for x, y in zip(*texts, strict=True)))
    found["values"] = sum(p.numel() for p in part.decoder.parameters()) / sum(
        p.numel() for p in whole.decoder.parameters()
    )
    return found


def compare(width: int, folders: list[str]) -> None:
    """Process 0 prints a JSON object: for each folder how far the two are apart, by what was
    compared."""
    told = {}
    with torch.inference_mode(), joined(width) as world:
        for folder in folders:
            whole = load(folder, dtype=torch.float64)
            given = (folder, None, torch.float64, "cpu", None, False)
            lm, stored, placed = prepare(*given, share=world.share)
            part = replace(lm, decoder=read_weights(stored, placed.dtype, placed.device))
            told[folder] = apart(whole, part)
    if world.rank == 0:
        print(json.dumps(told))
