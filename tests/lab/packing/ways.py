"""By what the causal classes of the library transformers go: tiny random models of all that can be
built, in each of its attentions, on packed rows in each form, beside the documents alone.

    python -m tests.lab.packing.ways

writes the table of the installed version, minise/lab/packing/classes.json, and prints what could
not be built. A slow test makes it anew and compares. Flash attention is the library's own code over
a stand-in for the kernel, which computes by its definition: causal in each document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import pytest
import torch
from torch import Tensor

from minise.lab.packing.classes import TABLE
from minise.layout import causal_mask
from tests.lab.serving import zoo

library = pytest.importorskip("transformers", reason="the extra [parity] is missing")
LENGTHS = [7, 5, 9]
ENDS = torch.tensor([0, 7, 12, 21], dtype=torch.int32)
MOST = 1e-3  # of a token's logits: rounding of float32 is below, a leak above
# Of each attention: the forms that are tried.
TRIED = {
    "sdpa": ("additive", "bool", "restarts"),
    "eager": ("additive", "bool", "restarts"),
    "flash_attention_2": ("restarts", "cu_seqlens"),
}


# ---- flash attention


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """(batch, T, heads, head_dim), as the kernel of this name defines it."""
    heads = q.shape[2] // k.shape[2]
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    keys = keys.repeat_interleave(heads, dim=1)
    values = values.repeat_interleave(heads, dim=1)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = queries @ keys.transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    places = torch.arange(k.shape[1])
    back = places[-q.shape[1] :, None] - places
    shown = back >= 0 if causal else torch.ones_like(back, dtype=torch.bool)
    if window_size[0] >= 0:
        shown &= back <= window_size[0]
    scores = scores.masked_fill(~shown, float("-inf"))
    return (scores.float().softmax(dim=-1).to(v.dtype) @ values).transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """(all tokens, heads, head_dim): the other function on each document alone."""
    made = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=v.dtype)
    borders = zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False)
    for start, end, start_k, end_k in borders:
        one = (q[start:end], k[start_k:end_k], v[start_k:end_k])
        batch = [x[None] for x in one]
        more = (softmax_scale, causal, window_size, softcap)
        made[start:end] = flash_attn_func(*batch, 0.0, *more)[0]
    return made


@contextmanager
def flash_kernel() -> Iterator[None]:
    """The stand-in, where the library asks for its kernel."""
    place = library.modeling_flash_attention_utils
    process = place._lazy_define_process_function(flash_attn_varlen_func)
    functions = (flash_attn_func, flash_attn_varlen_func, None, place._pad_input)
    found = ((*functions, place._unpad_input), (process, dict))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "lazy_import_flash_attention", lambda *names, **more: found)
        yield


def set_attention(model: Any, kind: str) -> None:
    """Without the question whether the kernel is installed."""
    for module in [model, *model.modules()]:
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal"):
            module.config._attn_implementation_internal = kind


# ---- the forms


def call_of(form: str, ids: Tensor) -> dict[str, Any]:
    """A packed row of three documents in this form."""
    T = ids.shape[1]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    of = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    mask = (causal_mask(T) & (of[:, None] == of))[None, None]
    call: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    if form == "additive":
        call["attention_mask"] = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    elif form == "bool":
        call["attention_mask"] = mask
    elif form == "cu_seqlens":
        longest = max(LENGTHS)
        call |= {"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS}
        call |= {"max_length_q": longest, "max_length_k": longest}
    return call


def alone(run: Callable[..., Tensor], ids: Tensor) -> Tensor:
    """The logits of all documents, each run alone."""
    parts = [run(input_ids=part, use_cache=False) for part in ids.split(LENGTHS, dim=1)]
    return torch.cat(parts, dim=1)


def goes_by(model: Any, attention: str, form: str) -> bool:
    """Whether a packed row in this form is equal to the documents alone."""
    ids = torch.randint(5, 280, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def run(**call: Any) -> Tensor:
        return model(**call).logits.double()

    set_attention(model, attention)
    try:
        right = alone(run, ids)
        packed = run(**call_of(form, ids))
    except Exception:  # whatever the library raises: it does not take the form
        return False
    apart = (packed - right).norm(dim=-1) / right.norm(dim=-1)
    return bool((apart < MOST).all())


def tiny(name: str) -> Any:
    """A tiny model in float32, every parameter random. Raises what the library raises."""
    config = zoo.tiny_config(name)
    with torch.device("meta"):
        shape = library.AutoModelForCausalLM.from_config(config)
    parameters = sum(one.numel() for one in shape.parameters())
    if parameters > zoo.MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters")
    torch.manual_seed(0)
    model = library.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        width = 0.3 if parameter.dim() > 1 else 0.1  # scores of attention that tell tokens apart
        parameter.data += width * torch.randn(parameter.shape, generator=draw)
    return model


def measured(name: str) -> tuple[str, list[str]]:
    """The name of a class, and by what it goes: "sdpa additive" and so on."""
    model = tiny(name)
    has = {"eager": True, "sdpa": model._supports_sdpa}
    has["flash_attention_2"] = model._supports_flash_attn
    found = []
    with flash_kernel():
        for attention, forms in TRIED.items():
            for form in forms:
                if has[attention] and goes_by(model, attention, form):
                    found.append(f"{attention} {form}")
    return type(model).__name__, found


def table() -> dict[str, Any]:
    """By what each class goes: those that go by the same are one line."""
    classes: dict[str, list[str]] = {}
    for name in zoo.names():
        try:
            made, found = measured(name)
        except Exception as error:  # of many kinds, of the library and of what it calls
            print(f"{name}: not built: {type(error).__name__} {' '.join(str(error).split())[:90]}")
            continue
        # Of several configs of a class: what all of them go by.
        classes[made] = [one for one in classes.get(made, found) if one in found]
    groups: dict[str, list[str]] = {}
    for made, found in sorted(classes.items()):
        groups.setdefault(", ".join(found), []).append(made)
    rows = []
    for found, names in sorted(groups.items(), key=lambda row: -len(row[1])):
        rows.append({"goes_by": found.split(", ") if found else [], "classes": names})
    return {"transformers": library.__version__, "measured": str(date.today()), "rows": rows}


if __name__ == "__main__":
    made = table()
    TABLE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for row in made["rows"]:
        print(len(row["classes"]), row["goes_by"], row["classes"][:9])
