"""Layers with a state or a convolution go by no mask: `guard` says which of the two crosses a
border, and `check` by which fields a class could keep documents apart."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import minise
from minise.lab.packing.judging import check
from minise.lab.packing.recurrent import NOTHING, OF_CLASSES, TRANSFORMERS
from minise.lab.recurrent.exchanged import FUNCTIONS, Pass
from minise.lab.recurrent.in_transformers import code_of
from minise.lab.recurrent.paths import paths_of
from minise.lab.serving.packable import RECURRENT
from minise.layout import causal_mask
from tests.lab.packing import ways
from tests.lab.serving import zoo

IDS = torch.randint(5, 280, (1, sum(ways.LENGTHS)), generator=torch.Generator().manual_seed(0))
OF = torch.arange(3).repeat_interleave(torch.tensor(ways.LENGTHS))
MASK = causal_mask(len(OF)) & (OF[:, None] == OF)
CONVOLUTION = "its convolution reads over the border"
STATE = "its state goes on over the border"
SCANS = ("torch_chunk_gated_delta_rule", "mamba2_chunk_scan", "mamba_selective_scan")
# Of the library's functions: of which part each is, and by which field its fast kernel goes.
READ = {
    "causal_conv1d_fn": ("convolution", "seq_idx"),
    "torch_chunk_gated_delta_rule": ("state", "cu_seqlens"),
    "chunk_kimi_delta_attention": ("state", "cu_seqlens"),
    "mamba2_chunk_scan": ("state", "seq_idx"),
    "mamba_selective_scan": ("state", "seq_idx"),
}
KERNELS = {"seq_idx": OF[None].int(), "cu_seq_lens_q": ways.ENDS}


def slow(name: str) -> Any:
    """States that fade slowly: with fast decay little crosses a border."""
    model = ways.tiny(name)
    for parameter, values in model.named_parameters():
        if parameter.endswith("A_log"):
            values.data -= 4
    return model


def found(model: Any, form: str) -> str:
    return found_in(model, ways.call_of(form, IDS))


def found_in(model: Any, call: dict[str, Any]) -> str:
    """What a guard says."""
    words: list[str] = []
    watch = minise.guard(model, lambda said, again: words.append(said))
    model(**call)
    watch.remove()
    return "".join(words)


def along_documents(new: Any, old: Any, *given: Any, **named: Any) -> Any:
    """Of a row; a document alone runs as ever."""
    if len(OF) not in given[0].shape:
        return old(*given, **named)
    return new(Pass(paths_of(MASK)), *given, **named)


def mend(model: Any, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these functions of the library read along the documents."""
    for code in code_of(model):
        for name in names:
            if hasattr(code, name):
                new = partial(along_documents, FUNCTIONS[name], getattr(code, name))
                monkeypatch.setattr(code, name, new)


@pytest.mark.parametrize("name", ["qwen3_5_text", "bamba"])
def test_whether_a_state_or_a_convolution_crosses_a_border_is_said(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = slow(name)
    both = found(model, "additive")
    assert STATE in both
    assert "the first layer that differs is model.layers.0." in both
    with monkeypatch.context() as patch:
        mend(model, SCANS, patch)
        only = found(model, "additive")
        assert CONVOLUTION in only
    with monkeypatch.context() as patch:
        mend(model, ("causal_conv1d_fn",), patch)
        assert STATE in found(model, "additive")
        mend(model, SCANS, patch)
        assert found(model, "additive") == ""


def test_other_layers_are_named_too_and_attention_is_not() -> None:
    for name, layer, words in (
        ("lfm2", "Lfm2ShortConv", CONVOLUTION),
        ("minimax", "MiniMaxLightningAttention", STATE),
        ("kimi_linear", "KimiLinearDeltaAttention", STATE),
    ):
        said = found(slow(name), "additive")
        assert layer in said
        assert words in said
    lost = ways.call_of("additive", IDS) | {"attention_mask": torch.ones_like(IDS)}
    said = found_in(ways.tiny("llama"), lost)
    assert "there is no block mask" in said
    assert "the first layer that differs" not in said


def test_check_says_by_which_fields_and_never_calls_such_a_row_equal() -> None:
    fields = {"documents": ways.LENGTHS, **ways.call_of("restarts", IDS), "restarts": True}
    for name, words in (
        ("qwen3_5_text", "its convolution by seq_idx and its state by cu_seqlens"),
        ("bamba", "its convolution by seq_idx and its state by seq_idx"),
        ("lfm2", "its convolution by seq_idx: give these fields"),
        ("kimi_linear", "its state by nothing: run each document alone"),
    ):
        model = ways.tiny(name)
        (finding,) = check(model=model, **fields).findings
        assert words in finding.mend
    report = check(model=ways.tiny("lfm2, attention only"), **fields)
    assert "layers that go by no mask" not in str(report)
    model = ways.tiny("qwen3_5_text")
    one = fields | {"restarts": None, "cu_seqlens": ways.ENDS}
    assert not check(model=model, **one).equal
    report = check(model=model, **one, seq_idx=OF)
    assert not report.equal
    assert report.findings == ()
    assert "in fast kernels alone, which were not measured: run it (guard)" in str(report)


def noting(
    old: Any, part: str, field: str, found: dict[str, str], *given: Any, **named: Any
) -> Any:
    """The library's function, without fields: it refuses them where no fast kernel is installed."""
    found[part] = field if named.get(field) is not None else NOTHING
    for name in ("seq_idx", "cu_seqlens"):
        named.pop(name, None)
    return old(*given, **named)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RECURRENT.split(), "qwen4_exp_text"])
def test_the_fields_are_those_that_reach_the_functions_of_the_library(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ways.library.__version__ != TRANSFORMERS:
        pytest.skip(f"the fields are of transformers {TRANSFORMERS}")
    if name not in zoo.names():
        pytest.skip("the installed library has no such model")
    model = ways.tiny(name)
    found: dict[str, str] = {}
    for code in code_of(model):
        for function, (part, field) in READ.items():
            if hasattr(code, function):
                old = getattr(code, function)
                monkeypatch.setattr(code, function, partial(noting, old, part, field, found))
    model(**ways.call_of("restarts", IDS), **KERNELS)
    fields = OF_CLASSES[type(model).__name__]
    assert found.get("convolution", NOTHING) == (fields.convolution or NOTHING)
    assert found.get("state", NOTHING) == (fields.state or NOTHING)
