"""Layers with a state or a convolution, which go by no mask: by which fields a class of the library
transformers could keep documents apart in them, and which layer of a model carries something over a
border: asked of the model that runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from minise.lab.packing.calls import Document
from minise.lab.packing.changes import replaced
from minise.lab.packing.formats import Finding
from minise.lab.packing.packing import Packing
from minise.lab.packing.rounding import distances
from minise.lab.recurrent.in_transformers import must_call

ROUNDING = 64  # units in the last place: more is no rounding, in the first layer that differs
NOTHING = "nothing"  # no field is handed on
BY_NOTHING = "its own code mixes what stands side by side"


@dataclass(frozen=True)
class Fields:
    """By which field a class could keep documents apart, in fast kernels. The library's own code
    goes by none. None: the class has no such part."""

    convolution: str | None
    state: str | None

    def __str__(self) -> str:
        parts = []
        for part, field in (("convolution", self.convolution), ("state", self.state)):
            if field is not None:
                parts.append(f"its {part} by {field}")
        return " and ".join(parts)


# What the library hands on to the function of each part: a test runs all of them.
TRANSFORMERS = "5.23.0"
BOTH_BY_SEQ_IDX = Fields("seq_idx", "seq_idx")
DELTA_NET = Fields("seq_idx", "cu_seqlens")
NEITHER = Fields(NOTHING, NOTHING)
OF_CLASSES = {
    "BambaForCausalLM": BOTH_BY_SEQ_IDX,
    "FalconH1ForCausalLM": BOTH_BY_SEQ_IDX,
    "GraniteMoeHybridForCausalLM": BOTH_BY_SEQ_IDX,
    "NemotronHForCausalLM": BOTH_BY_SEQ_IDX,
    "Zamba2ForCausalLM": BOTH_BY_SEQ_IDX,
    "OlmoHybridForCausalLM": DELTA_NET,
    "Qwen3NextForCausalLM": DELTA_NET,
    "Qwen3_5ForCausalLM": DELTA_NET,
    "Qwen3_5MoeForCausalLM": DELTA_NET,
    "Qwen4ExpForCausalLM": DELTA_NET,
    "KimiLinearForCausalLM": Fields("seq_idx", NOTHING),
    "ZambaForCausalLM": Fields("seq_idx", NOTHING),
    "Lfm2ForCausalLM": Fields("seq_idx", None),
    "Lfm2MoeForCausalLM": Fields("seq_idx", None),
    "Lfm3ForCausalLM": Fields("seq_idx", None),
    "InklingForCausalLM": Fields(NOTHING, None),
    "ZayaForCausalLM": Fields(NOTHING, None),
    "FalconMambaForCausalLM": NEITHER,
    "JambaForCausalLM": NEITHER,
    "MambaForCausalLM": NEITHER,
    "Mamba2ForCausalLM": NEITHER,
    "MiniMaxForCausalLM": Fields(None, NOTHING),
    "RecurrentGemmaForCausalLM": NEITHER,
}


def is_recurrent(model: Any) -> bool:
    """Whether it is of such a class, and has such layers: some configs have attention alone."""
    is_known = type(model).__name__ in OF_CLASSES
    return is_known and any(must_call(part) for part in model.modules())


def of_recurrent(name: str, p: Packing) -> tuple[list[Finding], list[str]]:
    """Why a row is not equal in a class of OF_CLASSES; or why that cannot be said, where fast
    kernels may go by it, which were not measured."""
    fields = OF_CLASSES[name]
    installed = version("transformers")
    if installed != TRANSFORMERS:
        of = f"transformers {TRANSFORMERS}, and {installed} is installed"
        return [], [f"by what {name} goes was read of {of}: run it (guard)"]
    if {fields.convolution, fields.state} - {None} <= p.fields.keys():
        what = f"{name} goes, {fields}, in fast kernels alone, which were not measured"
        return [], [f"{what}: run it (guard)"]
    words = f"{name} has layers that go by no mask and no positions: {BY_NOTHING}"
    mend = f"fast kernels go, {fields}: give these fields, and run it (guard)"
    if NOTHING in (fields.convolution, fields.state):
        mend = f"fast kernels go, {fields}: run each document alone"
    return [Finding(p.source or "position_ids", words, BY_NOTHING, 1, 1, mend)], []


# ---- what crosses a border


@torch.no_grad()
def layer_that_carries(
    module: nn.Module, call: dict[str, Any], alone: dict[str, Any], document: Document
) -> list[str]:
    """A line on the first layer that gives a document other numbers than alone, if it is one with a
    state or a convolution. What later layers give has gone through attention. Else none."""
    packed = outputs_of(module, call)
    for part, right in outputs_of(module, alone).items():
        moved = moved_tokens(right[0], packed.get(part), document)
        if moved:
            break
    else:
        return []
    name = part.rpartition(".")[0]
    layer = module.get_submodule(name)
    parts = must_call(layer)
    if not parts:
        return []
    crosses = "convolution reads" if "convolution" in parts else "state goes on"
    if len(parts) > 1:
        # What a convolution reads over a border goes on to all later tokens by the document's own
        # state. But it reads a few tokens, and only a state knows of those before them.
        far = call | {"input_ids": with_other_tokens(call["input_ids"], document, taps_of(layer))}
        right_there = packed[part][document.row, document.tokens]
        if moved_tokens(right_there, outputs_of(module, far)[part], document):
            crosses = "state goes on"
    tokens = f"{len(moved)} of its {len(document.tokens)} tokens moved, the last is {moved[-1]}"
    first = f"the first layer that differs is {name} ({type(layer).__name__})"
    return [f"{first}: its {crosses} over the border ({tokens})"]


def moved_tokens(right: Tensor, found: Tensor | None, document: Document) -> list[int]:
    """The places in a document of tokens whose numbers are not the right ones, within rounding."""
    if found is None:
        return []
    apart = distances(right.flatten(1), found[document.row, document.tokens].flatten(1))
    is_moved = apart > ROUNDING * torch.finfo(right.dtype).eps
    return is_moved.nonzero().flatten().tolist()


def taps_of(layer: nn.Module) -> int:
    return max(one.kernel_size[0] for one in layer.children() if isinstance(one, nn.Conv1d))


def with_other_tokens(ids: Tensor, document: Document, taps: int) -> Tensor:
    """The tokens of a call: other ones wherever neither the document stands nor a convolution of so
    many taps reads from it."""
    stays = torch.zeros_like(ids, dtype=torch.bool)
    for token in document.tokens:
        stays[document.row, max(0, token - taps + 1) : token + 1] = True
    return torch.where(stays, ids, replaced(ids))


def outputs_of(module: nn.Module, call: dict[str, Any]) -> dict[str, Tensor]:
    """What each part without parts of its own gives for (batch, T) tokens, in the order of a run;
    of one that is called twice the first."""
    found: dict[str, Tensor] = {}
    size = call["input_ids"].shape
    hooks = []
    for name, part in module.named_modules():

        def keep(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            if isinstance(output, Tensor) and output.shape[:2] == size and output.dim() > 2:
                found.setdefault(name, output)

        if not list(part.children()) and name:
            hooks.append(part.register_forward_hook(keep))
    try:
        module.forward(**call)
    finally:
        for hook in hooks:
            hook.remove()
    return found
