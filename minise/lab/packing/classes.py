"""Does this model of the library transformers go by a packed row in this form? By a table of its
classes, its config, its attention, and the row's cache, axes and first positions.

The table, classes.json, was measured with tiny models of one version of the library: a slow test
makes it anew (tests/lab/packing/ways.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from minise.lab.packing.conditions import way_of
from minise.lab.packing.formats import Finding, need
from minise.lab.packing.packing import Packing
from minise.lab.packing.recurrent import is_recurrent, of_recurrent

TABLE = Path(__file__).with_name("classes.json")
FLASH = "flash_attention_2"
ATTENTIONS = ("sdpa", "eager", FLASH)  # that were measured
FORMS = ("restarts", "cu_seqlens", "additive", "bool")
OTHER_FLASH = ("flash_attention_3", "flash_attention_4")
ARGUMENTS = ("cu_seqlens", "cu_seqlens_k", "max_seqlen", "max_seqlen_k")
NOT_BY_IT = "the model does not go by it"
GROWING = ("dynamic", "longrope")  # whose angles follow the longest prompt of a row


@dataclass(frozen=True)
class Call:
    """What is known of the call beside the fields of a row. use_cache: as it is given, or None.
    rows: of the batch."""

    use_cache: bool | None
    rows: int


@dataclass
class OfModel:
    """What becomes of a row in a model. findings: why it is not equal. doubts: why that cannot be
    said."""

    findings: list[Finding]
    doubts: list[str]


@dataclass(frozen=True)
class Ways:
    """By what a class goes, such as {"sdpa additive"}; and by what with some of its configs."""

    always: frozenset[str]
    sometimes: frozenset[str]


@dataclass(frozen=True)
class Table:
    """classes: by their names. transformers: the version in which they were measured."""

    classes: dict[str, Ways]
    transformers: str


@cache
def table() -> Table:
    read = json.loads(TABLE.read_text("utf-8"))
    classes = {}
    for row in read["rows"]:
        ways = Ways(frozenset(row["goes_by"]), frozenset(row.get("some_configs_go_by", [])))
        for name in row["classes"]:
            classes[name] = ways
    return Table(classes, read["transformers"])


def of_model(p: Packing, model: Any, call: Call) -> OfModel:
    """Raises InputError for a model that is none of the library's."""
    found = OfModel([], [])
    way = way_of(p)
    if not way:
        return found
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    if hasattr(model, "get_base_model"):  # and peft
        model = model.get_base_model()
    if is_recurrent(model):
        return OfModel(*of_recurrent(type(model).__name__, p))
    config: Any = getattr(model, "config", None)
    attention: Any = getattr(config, "_attn_implementation", None)
    need(attention, "model: is none of transformers with a config; leave it out, or run it (guard)")
    if attention in OTHER_FLASH:
        attention = FLASH

    name = type(model).__name__
    known = table()
    installed = version("transformers")
    ways = known.classes.get(name)
    read_as = read_by(p, way, attention)
    wanted = f"{attention} {read_as}"
    doubt = ""
    if ways is None:
        doubt = f"{name} is not in the table of classes (docs/check.md)"
    elif installed != known.transformers:
        of = f"transformers {known.transformers}, and {installed} is installed"
        doubt = f"the table of classes is of {of}"
    elif attention not in ATTENTIONS:
        doubt = f"{name} was not measured in {attention}"
    elif read_as not in FORMS:
        doubt = f"{name} was not measured with {way}"
    elif wanted in ways.sometimes:
        doubt = f"some configs of {name} go by {words_of(read_as)} in {attention}, others do not"
    if ways is None or doubt:
        found.doubts.append(f"{doubt}: run it (guard)")
        return found

    what = p.source or "position_ids"
    if wanted not in ways.always:
        words = f"{name} in {attention} does not go by {words_of(read_as)}: {NOT_BY_IT}"
        by = ", ".join(sorted(ways.always)) or "none"
        mend = f"measured with transformers {installed}, it goes by: {by}"
        found.findings.append(Finding(what, words, NOT_BY_IT, 1, 1, mend))
        return found
    for words, mend in of_call(p, read_as, attention, model, call):
        found.findings.append(Finding(what, f"{words}: {NOT_BY_IT}", NOT_BY_IT, 1, 1, mend))
    found.doubts += of_config(p, read_as, config.get_text_config())
    return found


def read_by(p: Packing, way: str, attention: str) -> str:
    """By what a model goes that is given this form: sdpa and eager do not read cu_seqlens, flash
    attention reads it if all four arguments are there; else the positions count."""
    if way != "cu_seqlens":
        return way
    has_all = all(name in p.fields for name in ARGUMENTS)
    return way if attention == FLASH and has_all else "restarts"


def words_of(read_as: str) -> str:
    if read_as == "restarts":
        return "positions that start over"
    if read_as == "cu_seqlens":
        return "cu_seq_lens_q"
    return f"a mask of a row for each query that is {read_as}"


def of_call(
    p: Packing, read_as: str, attention: str, model: Any, call: Call
) -> Iterator[tuple[str, str]]:
    """What in a call keeps a model from what its class goes by: words, and how to mend it."""
    if attention == FLASH and call.rows > 1 and read_as in ("restarts", "cu_seqlens"):
        yield (
            f"flash attention makes documents of one row, and the batch has {call.rows}",
            "put all documents into one row",
        )
    if read_as != "restarts":
        return
    if attention != FLASH and has_cache(model, call):
        yield "with a cache the library sees one document", "give use_cache=False"
    firsts = p.positions[0][p.real & (p.meant.parents < 0)]
    if attention == FLASH and (firsts != p.positions[0].min()).any():
        yield (
            "flash attention lets documents begin at the smallest position of the row alone",
            "let each begin at 0, or give cu_seq_lens_q and the three beside it",
        )
    if attention != FLASH and p.source == "cu_seqlens":
        steps = p.positions[0].diff() != 1
        begins = (p.meant.parents < 0)[1:]
        if (steps != begins)[p.real[1:]].any():
            yield (
                f"{attention} does not read cu_seqlens, and the positions show other documents",
                "let the positions of each document start over at 0",
            )


def has_cache(model: Any, call: Call) -> bool:
    """Whether a call makes a cache: as it says, or as the config does, but not in training with
    gradient checkpointing."""
    if call.use_cache is not None:
        return call.use_cache
    parts = model.modules()
    if model.training and any(getattr(part, "gradient_checkpointing", False) for part in parts):
        return False
    return bool(getattr(model.config.get_text_config(), "use_cache", True))


def of_config(p: Packing, read_as: str, config: Any) -> Iterator[str]:
    """What in a config could make a document alone another than a packed one."""
    longest = int(p.meant.positions.max()) + 1
    is_given_mask = read_as in ("additive", "bool")
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention"])
    is_off = getattr(config, "use_sliding_window", True) is False
    is_held = p.fields.get("window") == window and kinds == {"sliding_attention"}
    if is_given_mask and window and not is_off and not is_held and longest > window:
        yield (
            f"the config has a window of {window}, and a document has {longest:,} tokens: the "
            "library takes the mask as it is, for all layers, and alone it may add the window"
        )
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk and longest > chunk:
        yield f"the config has chunks of {chunk}, and a document has {longest:,} tokens"
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
    if rope.get("rope_type") in GROWING and longest > original:
        yield (
            f"{rope['rope_type']} rotates by the longest prompt of a row, and a document has "
            f"{longest:,} tokens, more than {original:,}"
        )
