"""On what a row depends that is equal by its fields: whether the model goes by them. Without a
model that is said as a condition; classes.py answers for one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minise.lab.packing.formats import Finding, depth_of, numbers
from minise.lab.packing.packing import Packing

AXES_NAME = "three axes of positions make no documents"


@dataclass(frozen=True)
class Condition:
    """words: what must hold. how: of which models it does, and by what calls."""

    words: str
    how: str


BY_RESTARTS = Condition(
    "the model goes by positions that start over",
    "transformers does in sdpa and eager, without an attention_mask and a cache (use_cache=False), "
    "and in flash attention, in one row whose documents begin at the same position; not all "
    "classes do: check(model=model, ...) knows them",
)
BY_BORDERS = Condition(
    "the model's kernels go by cu_seqlens",
    "flash attention does; sdpa and eager of transformers go by position_ids that start over, "
    "without a cache (use_cache=False): check(model=model, ...) knows what a model does",
)
BY_BOOL = Condition(
    "the model reads a bool mask as one",
    "eager attention of transformers adds it to the scores: give 0 and minus infinity there",
)
NO_WINDOW = Condition(
    "the model has no window shorter than a prompt",
    "transformers takes such a mask as it is, for all layers: it must hold the window that a "
    "prompt has alone, and window says how wide it is",
)
HOLD_ALL = ("bool", "additive", "BlockMask", "mask_mod")  # they must hold a window, too
OF_WAYS = {"restarts": BY_RESTARTS, "cu_seqlens": BY_BORDERS, "bool": BY_BOOL}


def way_of(p: Packing) -> str:
    """The form in which a row says its documents: "restarts", "cu_seqlens", "bool" or "additive"
    for a mask of a row for each query, or the field of another form; "" if it has only one prompt,
    and needs none."""
    if len(p.meant.ends) < 2:
        return ""
    if p.source != "attention_mask" or p.fields.get("mask_is") == "segments":
        return p.source or ""
    value = p.fields["attention_mask"]
    if hasattr(value, "mask_mod"):
        return "BlockMask"
    kind = p.fields.get("mask_is")
    is_additive = numbers("attention_mask", value).is_floating_point()
    return kind or ("additive" if is_additive else "bool")


def conditions_of(p: Packing) -> list[Condition]:
    """Of a row without a model."""
    way = way_of(p)
    conditions = []
    is_said = way == "bool" and "mask_is" in p.fields
    if way in OF_WAYS and not is_said:
        conditions.append(OF_WAYS[way])
    if way in HOLD_ALL and "window" not in p.fields:
        conditions.append(NO_WINDOW)
    return conditions


def judge_axes(p: Packing) -> Finding | None:
    """Models with three axes of positions (M-RoPE) make no documents of them: only where those of
    texts stand before them, as four."""
    if way_of(p) != "restarts" or len(p.positions) != 3:
        return None
    words = "models of transformers see one document: with three axes nothing says where it begins"
    mend = "give four axes, with the positions of texts before the others, or a block mask"
    return Finding("positions", f"{words}: {AXES_NAME}", AXES_NAME, p.T, p.T, mend)


def rows_of(fields: dict[str, Any]) -> int:
    """How many rows a call has."""
    rows = 1
    for name in ("input_ids", "position_ids"):
        value = fields.get(name)
        if depth_of(value) == 2:
            rows = max(rows, len(value) if value is not None else 1)
    return rows
