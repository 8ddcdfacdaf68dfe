"""Published packing bugs, rebuilt as rows for `minise check`: docs/zoo.md tells their stories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minise.checking.mistakes import CAUSAL, NOTHING

Row = dict[str, Any]  # the fields of docs/check.md, ready for JSON
GITHUB = "https://github.com/"
IDS = [5, 6, 7, 8, 9, 10]
TWO = {"documents": [3, 3], "input_ids": IDS}
RESTART = [0, 1, 2, 0, 1, 2]
FORK = {"trunk": 2, "branches": [2, 2], "input_ids": IDS}
FORKED = [0, 1, 2, 3, 2, 3]  # its positions
SHARED = [-1, 0, 1, 2, 1, 4]  # its parents
BORDER = "a label crosses a border"
RUN_ON = "positions run on, and do not start over with each document"
LOWEST = -3.4028234663852886e38  # what float32 libraries write for "hidden"


@dataclass(frozen=True)
class Bug:
    """wrong: the row as the bug makes it; fixed: as the fix does. names: the mistakes that must be
    named, in order. by_logits: whether logits of a rotary model show them too."""

    thread: str
    wrong: Row
    fixed: Row
    names: tuple[str, ...]
    by_logits: bool = True

    @property
    def link(self) -> str:
        return GITHUB + self.thread


def blocks(*lengths: int) -> list[list[bool]]:
    """The right mask of documents."""
    of = [i for i, length in enumerate(lengths) for _ in range(length)]
    T = range(len(of))
    return [[of[q] == of[k] and k <= q for k in T] for q in T]


def added(mask: list[list[bool]]) -> list[list[float]]:
    """The same, to be added to the scores."""
    return [[0.0 if shown else LOWEST for shown in row] for row in mask]


def windowed(T: int, window: int) -> list[list[bool]]:
    return [[0 <= q - k < window for k in range(T)] for q in range(T)]


def two_levels(flat: bool) -> list[list[bool]]:
    """The mask of a trunk P, then A with its leaves a and b, then B. flat: a token attends to the
    trunk and to its own stretch, as if A were not between P and a."""
    above = {"P": "P", "A": "PA", "a": "PAa", "b": "PAb", "B": "PB"}
    of = "PAAaabbBB"
    T = range(len(of))
    return [
        [k <= q and of[k] in (f"P{of[q]}" if flat else above[of[q]]) for k in T] for q in T
    ]  # fmt: skip


LEFT = {"documents": [4], "padding": "left", "input_ids": [0, 0, 5, 6, 7, 8]}
LEVELS = {"tree": [-1, 0, 1, 2, 3, 2, 5, 0, 7], "input_ids": [*range(5, 14)]}
DEPTHS = [0, 1, 2, 3, 4, 3, 4, 1, 2]
SIX = {
    "documents": [4, 3, 3, 8, 3, 1],
    "position_ids": [*range(4), *range(3), *range(3), *range(8), *range(3), 0],
}
SCORES = {"format": "sglang", "query": [5, 6], "items": [[7], [8, 9]], "delimiter": 3}

BUGS = {
    "nanovlm": Bug(
        "huggingface/nanoVLM/pull/204",
        TWO,
        {**TWO, "position_ids": RESTART, "segment_ids": [1, 1, 1, 2, 2, 2]},
        (CAUSAL, RUN_ON),
    ),
    "nanovlm, half mended": Bug(
        "huggingface/nanoVLM/pull/204",
        {**TWO, "position_ids": RESTART},
        {**TWO, "position_ids": RESTART, "attention_mask": blocks(3, 3)},
        (CAUSAL,),
    ),
    "transformers, a mask of ones": Bug(
        "huggingface/transformers/pull/46634",
        {**TWO, "format": "transformers", "position_ids": RESTART, "attention_mask": [1] * 6},
        {**TWO, "format": "transformers", "position_ids": RESTART},
        (CAUSAL,),
    ),
    "open-instruct": Bug(
        "allenai/open-instruct/issues/669",
        {**TWO, "position_ids": RESTART, "attention_mask": [1, 1, 1, 2, 2, 2]},
        {**TWO, "position_ids": RESTART, "segment_ids": [1, 1, 1, 2, 2, 2]},
        (CAUSAL,),
    ),
    "torchtitan, no end": Bug(
        "pytorch/torchtitan/issues/3130",
        {**TWO, "position_ids": RESTART, "segment_ids": [0] * 6},
        {**TWO, "position_ids": RESTART, "restarts": True},
        (CAUSAL,),
    ),
    "nanogpt": Bug(
        "karpathy/nanoGPT/issues/231",
        {"documents": [2, 3], "input_ids": [5, 4, 6, 7, 4]},
        {
            "documents": [2, 3],
            "input_ids": [5, 4, 6, 7, 4],
            "position_ids": [0, 1, 0, 1, 2],
            "cu_seqlens": [0, 2, 5],
        },
        (CAUSAL, RUN_ON),
    ),
    "art": Bug(
        "OpenPipe/ART/pull/666",
        {**FORK, "position_ids": FORKED},
        {**FORK, "position_ids": FORKED, "parents": SHARED},
        (CAUSAL,),
    ),
    "transformers, 4.38": Bug(
        "huggingface/transformers/issues/29525",
        {
            "trunk": 2,
            "branches": [1, 1, 1],
            "input_ids": [5, 6, 7, 8, 9],
            "position_ids": [0, 1, 2, 2, 2],
        },
        {
            "trunk": 2,
            "branches": [1, 1, 1],
            "input_ids": [5, 6, 7, 8, 9],
            "position_ids": [0, 1, 2, 2, 2],
            "parents": [-1, 0, 1, 1, 1],
        },
        (CAUSAL,),
    ),
    "flashinfer": Bug(
        "flashinfer-ai/flashinfer/pull/3434",
        {**SCORES, "attention": "causal"},
        SCORES,
        (f"{CAUSAL}, and padding may be attended to",),
    ),
    "verl": Bug(
        "verl-project/verl/pull/6689",
        {**LEVELS, "position_ids": DEPTHS, "attention_mask": two_levels(flat=True)},
        {**LEVELS, "position_ids": DEPTHS, "attention_mask": two_levels(flat=False)},
        ("the tree is read as one trunk and leaves: what is between them is hidden",),
    ),
    "llamafactory": Bug(
        "hiyouga/LlamaFactory/pull/7318",
        {**TWO, "attention_mask": blocks(3, 3)},
        {**TWO, "attention_mask": blocks(3, 3), "position_ids": RESTART},
        (RUN_ON,),
        by_logits=False,
    ),
    "transformers, 4.41": Bug(
        "huggingface/transformers/issues/32195",
        {
            **TWO,
            "position_ids": RESTART,
            "attention_mask": [[float(shown) for shown in row] for row in blocks(3, 3)],
        },
        {**TWO, "position_ids": RESTART, "attention_mask": added(blocks(3, 3))},
        (NOTHING,),
    ),
    "speculators": Bug(
        "vllm-project/speculators/pull/691",
        {
            **TWO,
            "position_ids": RESTART,
            "attention_mask": blocks(3, 3),
            "mask_is": "additive",
        },
        {**TWO, "position_ids": RESTART, "attention_mask": added(blocks(3, 3))},
        (NOTHING,),
    ),
    "llama 4": Bug(
        "huggingface/transformers/pull/38094",
        {
            **TWO,
            "position_ids": RESTART,
            "attention_mask": added(blocks(3, 3)),
            "mask_is": "bool",
        },
        {**TWO, "position_ids": RESTART, "attention_mask": added(blocks(3, 3))},
        ("the mask is inverted: it shows what it must hide",),
        by_logits=False,  # a first token that attends to nothing is NaN
    ),
    "transformers, three axes": Bug(
        "huggingface/transformers/pull/47342",
        {"documents": [4], "cu_seqlens": [0, 4, 8, 12]},
        {"documents": [4], "cu_seqlens": [0, 4]},
        ("cu_seqlens has a wrong total",),
        by_logits=False,
    ),
    "functionary": Bug(
        "MeetKai/functionary/issues/195",
        {**SIX, "cu_seqlens": [0, 19, 36]},
        {**SIX, "cu_seqlens": [0, 4, 7, 10, 18, 21, 22]},
        ("cu_seqlens has a wrong total", ""),
        by_logits=False,
    ),
    "areal": Bug(
        "areal-project/AReaL/issues/1103",
        {**TWO, "position_ids": RESTART, "cu_seqlens": [0, 3, 6, 6]},
        {**TWO, "position_ids": RESTART, "cu_seqlens": [0, 3, 6]},
        ("cu_seqlens has an empty document",),
        by_logits=False,
    ),
    "torchtitan, labels": Bug(
        "pytorch/torchtitan/pull/4075",
        {
            **TWO,
            "position_ids": RESTART,
            "cu_seqlens": [0, 3, 6],
            "labels": [6, 7, 8, 9, 10, -100],
            "labels_are": "shifted",
        },
        {
            **TWO,
            "position_ids": RESTART,
            "cu_seqlens": [0, 3, 6],
            "labels": [6, 7, -100, 9, 10, -100],
            "labels_are": "shifted",
        },
        (BORDER,),
        by_logits=False,
    ),
    "bionemo": Bug(
        "NVIDIA-BioNeMo/bionemo-recipes/pull/1449",
        {**TWO, "position_ids": RESTART, "cu_seqlens": [0, 3, 6], "labels": IDS},
        {
            **TWO,
            "position_ids": RESTART,
            "cu_seqlens": [0, 3, 6],
            "labels": [5, 6, 7, -100, 9, 10],
        },
        (BORDER,),
        by_logits=False,
    ),
    "transformers, windows": Bug(
        "huggingface/transformers/issues/39408",
        {"documents": [6], "input_ids": IDS, "window": 3, "attention_mask": windowed(6, 4)},
        {"documents": [6], "input_ids": IDS, "window": 3, "attention_mask": windowed(6, 3)},
        ("the window is one too wide",),
        by_logits=False,  # the tiny models have another window; tests/checking shows it
    ),
    "trl": Bug(
        "huggingface/trl/pull/6819",
        {**LEFT, "attention_mask": [0, 0, 1, 1, 1, 1]},
        {**LEFT, "attention_mask": [0, 0, 1, 1, 1, 1], "position_ids": [0, 0, 0, 1, 2, 3]},
        ("positions are by index: they count every token of the row",),
        by_logits=False,
    ),
    "automodel": Bug(
        "NVIDIA-NeMo/Automodel/pull/3704",
        {**LEFT, "attention_mask": [1] * 6, "position_ids": [0, 0, 0, 1, 2, 3]},
        {**LEFT, "attention_mask": [0, 0, 1, 1, 1, 1], "position_ids": [0, 0, 0, 1, 2, 3]},
        ("padding may be attended to",),
    ),
}
