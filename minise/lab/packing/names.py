"""What the collators of other libraries call the fields of `check`: a batch is taken as it is.

A name of another library is one line of NAMES, if it is a field, or of NOT_JUDGED, if no border
depends on it. What is in neither, and is no field, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minise.lab.packing.formats import ANY, depth_of, integers, need

NAMES = {
    "tokens": "input_ids",  # Megatron too
    "positions": "position_ids",  # torchtitan too
    "mask": "attention_mask",
    # transformers and trl
    "cu_seq_lens_q": "cu_seqlens",
    "cu_seq_lens_k": "cu_seqlens_k",
    "max_length_q": "max_seqlen",
    "max_length_k": "max_seqlen_k",
    "shift_labels": "labels",
    # Megatron
    "cu_seqlens_q": "cu_seqlens",
    "cu_seqlens_kv": "cu_seqlens_k",
    "max_seqlen_q": "max_seqlen",
    "max_seqlen_kv": "max_seqlen_k",
    # torchtitan
    "input": "input_ids",
    "cu_seq_q": "cu_seqlens",
    "cu_seq_k": "cu_seqlens_k",
    "max_q": "max_seqlen",
    "max_k": "max_seqlen_k",
}
# Beside `cu_seqlens_q_padded`, which is where the documents stand, the borders without padding say
# only how long they are.
NAMES_PADDED = NAMES | {
    "cu_seqlens_q_padded": "cu_seqlens",
    "cu_seqlens_kv_padded": "cu_seqlens_k",
    "cu_seqlens_q": "cu_seqlens_unpadded",
    "cu_seqlens_kv": "cu_seqlens_unpadded_k",
}
# How many numbers of such borders count, behind which a table is filled up (NeMo).
COUNTS = {
    "cu_seqlens_argmin": "cu_seqlens",
    "cu_seqlens_unpadded_argmin": "cu_seqlens_unpadded",
}
# Beside these, labels[i] is the target of token i: so do Megatron and torchtitan, and the last name
# says it.
SHIFTED = ("loss_mask", "input", "shift_labels")
NOT_JUDGED = {
    # transformers and trl
    *("num_items_in_batch", "return_dict", "output_hidden_states", "logits_to_keep"),
    *("output_router_logits", "fused_lm_head", "completion_mask", "assistant_masks"),
    *("seq_lengths", "length", "special_tokens_mask"),
    *("ref_chosen_logps", "ref_rejected_logps", "margin"),
    # Megatron and NeMo
    *("qkv_format", "total_tokens", "token_count"),
}


@dataclass(frozen=True)
class NamedBatch:
    """A batch of a collator by the names of `check`. use_cache: as it is given, or None. notes:
    what is not judged, and what the names said."""

    fields: dict[str, Any]
    use_cache: bool | None
    notes: tuple[str, ...]


def by_our_names(batch: Mapping[str, Any]) -> NamedBatch:
    """A batch by the names of fields. None counts as not given, and `packed_seq_params` as what it
    holds. Raises InputError for two names of one field."""
    given = {name: value for name, value in batch.items() if value is not None}
    use_cache = given.pop("use_cache", None)
    parameters = given.pop("packed_seq_params", None)
    if parameters is not None:  # a dataclass of Megatron
        for name, value in vars(parameters).items():
            if value is not None:
                given[name] = value
    names = NAMES_PADDED if "cu_seqlens_q_padded" in given else NAMES

    fields: dict[str, Any] = {}
    given_by: dict[str, str] = {}  # of each field: the name that it is given by
    not_judged = []
    for name, value in given.items():
        if name in NOT_JUDGED:
            not_judged.append(name)
        elif name not in COUNTS:
            field = names.get(name, name)
            both = f"{given_by.get(field)} and {name} are two names of one field; give one of them"
            need(field not in given_by, both)
            given_by[field] = name
            fields[field] = value
    for name, field in COUNTS.items():
        if name in given and field in fields:
            count = int(integers(name, given[name], [1]))
            fields[field] = integers(field, fields[field], ANY)[:count]
    if "cu_seqlens_unpadded" in fields and depth_of(fields.get("documents")) == 1:
        places = integers("cu_seqlens", fields.get("cu_seqlens", ()), ANY).diff()
        if len(places) == len(fields["documents"]):
            fields.setdefault("padded", places)

    notes = []
    with_cache = "use_cache: with a cache transformers goes by no restarts; give False"
    need(not (use_cache is True and fields.get("restarts") is True), with_cache)
    if "labels" not in fields and fields.pop("loss_mask", None) is not None:
        not_judged.append("loss_mask")
    if not_judged:
        notes.append(f"not judged: {', '.join(not_judged)}; no border depends on them")
    shifted = [name for name in SHIFTED if name in given]
    if shifted and "labels" in fields and "labels_are" not in fields:
        fields["labels_are"] = "shifted"
        read = f"labels: read as shifted, as they are beside {shifted[0]}"
        notes.append(f"{read}; labels_are says otherwise")
    return NamedBatch(fields, use_cache, tuple(notes))
