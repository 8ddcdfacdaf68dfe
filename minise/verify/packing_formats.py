"""Check a packed row in the format of another library: `minise.check`.

Each reader turns what a library hands to a model into the fields of checking/packing.py, by that
library's own rules of who may attend to whom. Sources: docs/check.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from minise.checking.packing import read
from minise.checking.packing_check import Report, explain, judge
from minise.engines import LanguageModel
from minise.errors import InputError, one_line, quote

Fields = dict[str, Any]


def check(
    *,
    format: str | None = None,
    lm: LanguageModel | None = None,
    logits: Any = None,
    tolerance: float | None = None,
    **fields: Any,
) -> Report:
    """Whether a packed row is equal to separate runs of its documents or branches, and what is
    wrong if not. `print(report)` says it in words; report.findings has it in parts.

    fields: what was meant, and what a model is given, as docs/check.md lists; with `format`, one of
    FORMATS, what that library hands over. Values are lists, arrays or tensors; a leading batch
    dimension of 1 is allowed; None counts as not given. logits: (T, V), of this row by the model
    `lm`, which runs each prompt alone to compare. tolerance: for these, as a part of a row's size.
    Raises InputError for fields that are malformed or contradict each other.
    """
    if format is not None:
        if not isinstance(format, str) or format not in FORMATS:
            raise InputError(f"format {quote(format)} is unknown; use one of {', '.join(FORMATS)}")
        try:
            fields = FORMATS[format](fields)
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
            what = f"no {error} is there" if isinstance(error, KeyError) else one_line(error)
            raise InputError(f"not the format of {format} ({what}); see docs/check.md") from None
    if (lm is None) != (logits is None):
        raise InputError("logits and the model that they are of go together; give both, or none")
    packing = read(fields, numbers_only=logits is not None)
    report = judge(packing)
    if lm is None:
        return report
    findings = (*report.findings, *explain(packing, lm, logits, tolerance))
    return replace(report, findings=findings)


def flattened(batch: Mapping[str, Any]) -> Fields:
    """transformers: a DataCollatorWithFlattening's batch, or any row for a model of that library.

    Its borders are cu_seq_lens_q. Without them, positions that do not follow one another are, but
    only with neither an attention_mask nor a cache: use_cache is False here unless it is given, but
    True in a call of a model that does not say it."""
    fields = dict(batch)
    borders, cached = fields.pop("cu_seq_lens_q", None), fields.pop("use_cache", False)
    for name in ("cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"):
        fields.pop(name, None)
    if borders is not None:
        fields["cu_seqlens"] = borders
    elif fields.get("attention_mask") is None and fields.get("position_ids") is not None:
        fields["restarts"] = not cached
    return fields


def trl(batch: Mapping[str, Any]) -> Fields:
    """TRL: packing and padding_free as transformers; packing="tree" with the `offsets` and
    `parents` of its TreeLayout, whose segments hang on the ends of others."""
    if "offsets" not in batch:
        return flattened(batch)
    fields = dict(batch)
    offsets, above = _list(fields.pop("offsets")), _list(fields.pop("parents"))
    parents: list[int] = []
    for segment, parent in enumerate(above):
        first, end = offsets[segment], offsets[segment + 1]
        parents += [offsets[parent + 1] - 1 if parent >= 0 else -1, *range(first, end - 1)]
    return {**fields, "parents": parents}


def verl(batch: Mapping[str, Any]) -> Fields:
    """verl with use_remove_padding: a padded batch (B, S) of input_ids, attention_mask and
    position_ids. Its real tokens become one row without a mask; the documents are its rows."""
    mask = torch.as_tensor(batch["attention_mask"]) != 0
    kept = {name: torch.as_tensor(batch[name])[mask] for name in ("input_ids", "position_ids")}
    rest = {name: batch[name] for name in batch if name not in (*kept, "attention_mask")}
    return flattened({"documents": mask.sum(dim=1).tolist(), **rest, **kept})


def sglang(batch: Mapping[str, Any]) -> Fields:
    """SGLang's multi-item scoring: query, items and the delimiter, as token ids. A delimiter stands
    before each item and at the end. No item may attend to one, and each goes on from the query.

    token_pos_in_items (0 at a delimiter), prefix_len and positions are computed as SGLang does, if
    they are not given; attention "causal" is a kernel that ignores them."""
    query, items, mark = (
        _list(batch["query"]),
        [_list(x) for x in batch["items"]],
        batch["delimiter"],
    )
    ids, tree = [*query], [*range(-1, len(query) - 1)]
    for item in items:
        first = len(ids) + 1
        ids += [mark, *item]
        tree += [-2, *([len(query) - 1, *range(first, first + len(item) - 1)] if item else [])]
    counted = [place for item in items for place in range(len(item) + 1)] + [0]
    place = torch.as_tensor(batch.get("token_pos_in_items", counted))
    prefix = int(batch.get("prefix_len", len(query)))
    positions = torch.cat([torch.arange(prefix), prefix + place - 1])

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = q < k + torch.cat([torch.zeros(prefix, dtype=place.dtype), place])[q]
        return (k <= q) & ((q < prefix) | (k < prefix) | near)

    fields: Fields = {"input_ids": [*ids, mark], "tree": [*tree, -2]}
    fields["position_ids"] = batch.get("positions", positions)
    return fields if batch.get("attention") == "causal" else {**fields, "mask_mod": mask_mod}


def _list(value: Any) -> list[int]:
    numbers: list[int] = torch.as_tensor(value).flatten().tolist()
    return numbers


FORMATS: dict[str, Callable[[Mapping[str, Any]], Fields]] = {
    "transformers": flattened,
    "trl": trl,
    "verl": verl,
    "sglang": sglang,
}
