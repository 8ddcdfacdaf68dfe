"""Models, prompts and noise for the tests of this room."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from minise import LanguageModel, LocalModel, Prompts, Question, SelfEnsemble
from minise.engines import ENGINES, Engine
from minise.verify.comparison import ABLATIONS, PACKED
from minise.verify.verify import Verification

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHIPPED = Path(__file__).parents[3] / "weights" / "tiny-llama"
BIRD = Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


class Models(Protocol):
    """Loads a model of a name: a tiny random one of a family, or "shipped"."""

    def __call__(
        self, name: str, dtype: torch.dtype = torch.float64, equal_bits: bool = False
    ) -> LocalModel: ...


def fails_by_numbers(report: Verification) -> None:
    """By those of the decoder beside its definition, or of the packed runs beside the separate
    ones, and this is said."""
    are_same = all(map(report.same, PACKED))
    is_defined = all(held.passed for held in report.held)
    assert not (are_same and is_defined)
    wanted = "not its definition" if not is_defined else "not the numbers of the separate runs"
    assert wanted in str(report.failure)


def prompts_of(prefix: list[int], branches: list[list[int]], labels: list[int]) -> Prompts:
    return Prompts(prefix, branches, [labels] * len(branches))


def group_prompts(lm: LanguageModel, question: Question, size: int, trials: int) -> Prompts:
    _, prompts = SelfEnsemble(size, trials).prompts(lm, question)
    return prompts


# Three prompts of 32 tokens or less, a little longer than the windows of the tiny mistral.
SHORT = prompts_of(
    [*range(30, 50)], [[*range(60, 72)], [*range(100, 112)], [*range(61, 72)]], [70, 80, 90]
)
# Branches that begin alike, and labels in no order.
SHARED = prompts_of(
    [*range(30, 36)],
    [[*range(60, 72)], [*range(60, 67), *range(100, 106)], [61, *range(120, 129)]],
    [3, 1, 2],
)


def during(name: str, change: Callable[[Any], Callable[[], None]]) -> Engine:
    """The engine of this name. `change(decoder)` is done to its decoder while it runs, and what it
    returns is done at the end."""
    real = ENGINES[name]

    def engine(decoder: Any, prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> Tensor:
        undo = change(getattr(decoder, "decoder", decoder))  # of one that reads other tokens
        try:
            return real(decoder, prefix, branches)
        finally:
            undo()

    return engine


def rounding_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as a device that sums in another order: in the packed engines, the outputs of attention
    and MLP are off by up to one unit of rounding."""
    generator = torch.Generator().manual_seed(0)

    def noise(_: object, inputs: object, output: Tensor) -> Tensor:
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        unit = torch.rand(wide.shape, generator=generator, dtype=wide.dtype) * 2 - 1
        return (wide * (1 + torch.finfo(output.dtype).eps * unit)).to(output.dtype)

    def add_noise(decoder: Any) -> Callable[[], None]:
        hooks = []
        for layer in decoder.model.layers:
            (narrow,) = getattr(layer, "narrow", [layer])
            for part in (narrow.self_attn, narrow.mlp):
                hooks.append(part.register_forward_hook(noise))

        def undo() -> None:
            for hook in hooks:
                hook.remove()

        return undo

    for name in (*PACKED, *ABLATIONS):
        monkeypatch.setitem(ENGINES, name, during(name, add_noise))
