"""Models, plans and noise for the tests of this room."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.verify.comparison as comparison
from minise import LanguageModel, Plan, Question
from minise.grouping import Groups
from minise.prompt import Prompt

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHIPPED = Path(__file__).parents[2] / "weights" / "tiny-llama"
BIRD = Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
Models = Callable[[str, torch.dtype], LanguageModel]


def plan_of(prefix: list[int], branches: list[list[int]], labels: list[int]) -> Plan:
    written = [Prompt("", branch, labels) for branch in branches]
    groups = Groups(tuple(((0, 1),) for _ in branches))
    return Plan(Question("?", ["a", "b", "c"]), groups, prefix, written)


# Three prompts of 32 tokens or less, a little longer than the windows of the tiny mistral.
SHORT = plan_of(
    [*range(30, 50)], [[*range(60, 72)], [*range(100, 112)], [*range(61, 72)]], [70, 80, 90]
)
# Branches that begin alike, and labels in no order.
SHARED = plan_of(
    [*range(30, 36)],
    [[*range(60, 72)], [*range(60, 67), *range(100, 106)], [61, *range(120, 129)]],
    [3, 1, 2],
)


def rounding_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a device that sums in another order: in the packed engines, the outputs of attention
    and MLP are off by up to one unit of rounding."""
    real, generator = comparison.label_logits, torch.Generator().manual_seed(0)

    def noise(_: object, inputs: object, output: Tensor) -> Tensor:
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        unit = torch.rand(wide.shape, generator=generator, dtype=wide.dtype) * 2 - 1
        return (wide * (1 + torch.finfo(output.dtype).eps * unit)).to(output.dtype)

    def label_logits(lm: LanguageModel, plan: Plan, engine: str) -> list[Tensor]:
        if engine == "separate":
            return real(lm, plan, engine)
        decoder = lm.decoder if engine == "plain" else lm.refined
        layers: list[Any] = [getattr(layer, "narrow", [layer])[0] for layer in decoder.model.layers]
        parts = [part for layer in layers for part in (layer.self_attn, layer.mlp)]
        hooks = [part.register_forward_hook(noise) for part in parts]
        try:
            return real(lm, plan, engine)
        finally:
            for hook in hooks:
                hook.remove()

    monkeypatch.setattr(comparison, "label_logits", label_logits)
