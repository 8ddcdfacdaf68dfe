"""Models, plans and noise for the tests of `verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.checking.comparison as comparison
import minise.checking.verify as verify_module
from minise import LanguageModel, Plan, Question
from minise.checking.verify import Verification
from minise.grouping import Groups
from minise.prompt import Prompt

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHIPPED = Path(__file__).parents[2] / "weights" / "tiny-llama"
BIRD = Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])
# Three prompts of 32 tokens or less, a little longer than the windows of the tiny mistral.
SHORT = Plan(
    Question("?", ["a", "b", "c"]),
    Groups((((0, 1),), ((1, 2),), ((2, 0),))),
    list(range(30, 50)),
    [
        Prompt("", [*range(start, start + length)], [70, 80, 90])
        for start, length in ((60, 12), (100, 12), (61, 11))
    ],
)

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
each_model = pytest.mark.parametrize("name", ["shipped", "llama", "mistral"])
Models = Callable[[str, torch.dtype], tuple[LanguageModel, Plan]]


def rounding_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a device that sums in another order: in the packed engines, the outputs of attention
    and MLP are off by up to one unit of rounding. Equal bits are not promised."""
    real, generator = comparison.label_logits, torch.Generator().manual_seed(0)

    def noise(_: object, inputs: object, output: Tensor) -> Tensor:
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        unit = torch.rand(wide.shape, generator=generator, dtype=wide.dtype) * 2 - 1
        return (wide * (1 + torch.finfo(output.dtype).eps * unit)).to(output.dtype)

    def label_logits(lm: LanguageModel, plan: Plan, engine: str) -> list[Tensor]:
        layers: list[Any] = [] if engine == "separate" else list(lm.decoder.model.layers)
        layers = [getattr(layer, "layer", layer) for layer in layers]  # of a widened decoder
        parts = [part for layer in layers for part in (layer.self_attn, layer.mlp)]
        hooks = [part.register_forward_hook(noise) for part in parts]
        try:
            return real(lm, plan, engine)
        finally:
            for hook in hooks:
                hook.remove()

    monkeypatch.setattr(comparison, "label_logits", label_logits)
    promise_nothing(monkeypatch)


def promise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "is_refined", lambda decoder: False)


def agree(report: Verification) -> bool:
    """The verdict of the bounds alone, which do not look at bits."""
    return all(report.bounds.allow(difference) for difference in report.engines.values())
