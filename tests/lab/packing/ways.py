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
ASKING = ("falcon", "gpt_neo", "gptj")  # modules that ask for the kernel when they are imported
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
    made = scores.float().softmax(dim=-1).to(v.dtype) @ values
    return made.transpose(1, 2).contiguous()  # as a kernel gives it


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
        made[start:end] = flash_attn_func(
            q[start:end][None],
            k[start_k:end_k][None],
            v[start_k:end_k][None],
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            softcap=softcap,
        )[0]
    return made


@contextmanager
def flash_kernel() -> Iterator[None]:
    """The stand-in, where the library asks for its kernel. It computes in float32, too: the library
    need not look for a dtype to cast to, which fails in layers without a linear part."""
    place = library.modeling_flash_attention_utils
    process = place._lazy_define_process_function(flash_attn_varlen_func)
    functions = (flash_attn_func, flash_attn_varlen_func, None, place._pad_input)
    found = ((*functions, place._unpad_input), (process, dict))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "lazy_import_flash_attention", lambda *names, **more: found)
        dtype = "transformers.integrations.flash_attention.get_target_dtype"
        patch.setattr(dtype, lambda query, module: None)
        for name in ASKING:
            function = f"transformers.models.{name}.modeling_{name}._flash_attention_forward"
            patch.setattr(function, place._flash_attention_forward, raising=False)
        yield


def set_attention(model: Any, kind: str) -> None:
    """Without the question whether the kernel is installed."""
    for module in model.modules():
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


def tiny(name: str, attention: str = "eager") -> Any:
    """A tiny model in float32, every parameter random. Some classes choose their layers by the
    attention when they are made. Raises what the library raises."""
    config = zoo.tiny_config(name)
    with torch.device("meta"):
        shape = library.AutoModelForCausalLM.from_config(config)
    parameters = sum(one.numel() for one in shape.parameters())
    if parameters > zoo.MOST_PARAMETERS:
        raise ValueError(f"{parameters:,} parameters")
    torch.manual_seed(0)

    def as_asked(self: Any, kind: str | None, *more: Any, **named: Any) -> str:
        """Without the question whether the kernel is installed."""
        return kind or "eager"

    with pytest.MonkeyPatch.context() as patch:
        place = library.PreTrainedModel
        patch.setattr(place, "_check_and_adjust_attn_implementation", as_asked)
        model = library.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    model = model.eval()
    draw = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        width = 0.3 if parameter.dim() > 1 else 0.1  # scores of attention that tell tokens apart
        parameter.data += width * torch.randn(parameter.shape, generator=draw)
    return model


def measured(name: str) -> tuple[str, list[str]]:
    """The name of a class, and by what it goes: "sdpa additive" and so on."""
    first = tiny(name)
    found = []
    with flash_kernel():
        for attention in attentions_of(first):
            try:
                model = tiny(name, attention)
            except Exception:  # whatever the library raises: the class refuses this attention
                continue
            for form in TRIED[attention]:
                if goes_by(model, attention, form):
                    found.append(f"{attention} {form}")
    return type(first).__name__, found


def attentions_of(model: Any) -> list[str]:
    """Those that its class has, of the ones that are tried."""
    has = {"eager": True, "sdpa": model._supports_sdpa}
    has["flash_attention_2"] = model._supports_flash_attn
    return [attention for attention in TRIED if has[attention]]


def table() -> dict[str, Any]:
    """By what each class goes, and by what with some of its configs alone: those that go by the
    same are one line."""
    measured_of: dict[str, list[list[str]]] = {}  # of each class: of each of its configs
    for name in zoo.names():
        try:
            made, found = measured(name)
        except Exception as error:  # of many kinds, of the library and of what it calls
            print(f"{name}: not built: {type(error).__name__} {' '.join(str(error).split())[:90]}")
            continue
        measured_of.setdefault(made, []).append(found)
    groups: dict[tuple[str, str], list[str]] = {}
    for made, configs in sorted(measured_of.items()):
        by_any = list(dict.fromkeys(way for found in configs for way in found))
        always = [way for way in by_any if all(way in found for found in configs)]
        sometimes = [way for way in by_any if way not in always]
        groups.setdefault((", ".join(always), ", ".join(sometimes)), []).append(made)
    rows = []
    for (by_all, by_some), names in sorted(groups.items(), key=lambda row: -len(row[1])):
        row: dict[str, Any] = {"goes_by": by_all.split(", ") if by_all else []}
        if by_some:
            row["some_configs_go_by"] = by_some.split(", ")
        rows.append(row | {"classes": names})
    return {"transformers": library.__version__, "measured": str(date.today()), "rows": rows}


if __name__ == "__main__":
    made = table()
    TABLE.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for row in made["rows"]:
        some = row.get("some_configs_go_by", [])
        print(len(row["classes"]), row["goes_by"], some, row["classes"][:9])
