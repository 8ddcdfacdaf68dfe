"""`lm.verify` on models of the transformers library: which promises each family keeps."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import transformers

from minise import Question, SelfEnsemble, from_transformers
from minise.bridges.promises import Report
from minise.bridges.transformers_model import LibraryModel
from minise.checking.verify import verify
from minise.errors import Unsuited
from tests.support.bridges import make_lm, make_model, make_reader
from tools import bridge_table

IMPLEMENTATIONS = ("eager", "sdpa")
QUESTION = Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])


def report_on(lm: LibraryModel, **settings: Any) -> Report:
    return lm.verify(SelfEnsemble(group_size=2, trials=2).plan(lm, QUESTION), **settings)


def broken(report: Report) -> dict[str, str]:
    return {name: p.why for name, p in report.promises.items() if p.holds is False}


def exact(report: Report) -> list[str]:
    engines = report.engines.items()
    return [name for name, one in engines if not isinstance(one, str) and one["exact"]]


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_a_model_that_keeps_all_promises(family: str, attention: str) -> None:
    """Scrambled tokens change no bit, and derivatives are exactly 0, as in minise's own decoder."""
    report = report_on(make_lm(family, attention), gradients=True)
    assert report.passed
    assert exact(report) == ["dense", "tree"]
    assert all(promise.holds for promise in report.promises.values())
    assert report.influence.scrambled.equal
    assert report.influence.gradient_outside == 0.0
    assert report.influence.gradient_inside is not None
    assert report.influence.gradient_inside > 0.0
    assert report.attention == attention


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
@pytest.mark.parametrize("family", ["mistral", "gemma3_text"])
def test_a_window_is_skipped_where_a_4d_mask_is_given(family: str, attention: str) -> None:
    """minise puts it into the mask, by position, layer by layer: so both engines are exact."""
    report = report_on(make_lm(family, attention), gradients=True)
    assert list(broken(report)) == ["window"]
    assert "its window of 13 is skipped" in broken(report)["window"]
    assert not report.passed
    assert exact(report) == ["dense", "tree"]


def test_a_window_that_no_prompt_reaches_is_unknown() -> None:
    report = report_on(make_lm("mistral", sliding_window=600))
    assert report.promises["window"].holds is None
    assert "no prompt reaches its window of 600" in report.promises["window"].why
    assert report.passed


@pytest.mark.parametrize("attention", IMPLEMENTATIONS)
def test_without_a_mask_positions_that_start_over_separate_documents(attention: str) -> None:
    """So without a 4-D mask a packed question would be hidden from its groups. ALiBi has no
    position ids to see it by."""
    assert report_on(make_lm("qwen3", attention)).documents is True
    assert report_on(make_lm("mpt")).documents is False


def test_alibi_by_index_breaks_packing_and_not_the_cache() -> None:
    report = report_on(make_lm("mpt"))
    assert list(broken(report)) == ["positions"]
    assert "positions are by index" in broken(report)["positions"]
    assert exact(report) == ["tree"]


def test_alibi_of_a_2d_mask_fails_on_a_4d_one() -> None:
    report = report_on(make_lm("bloom"))
    assert list(broken(report)) == ["mask", "positions"]
    assert "the library fails" in broken(report)["mask"]
    assert exact(report) == ["tree"]


def test_a_window_by_index_breaks_packing() -> None:
    report = report_on(make_lm("gpt_neo"))
    assert broken(report) == {"positions": "its own window of 13 is by index"}
    assert exact(report) == ["tree"]


def test_learned_positions_by_index_break_packing() -> None:
    """A model that takes position ids and does not use them."""
    model = make_model("gpt2")
    table = model.transformer.wpe.forward
    model.transformer.wpe.forward = lambda ids: table(torch.arange(ids.shape[-1]).expand_as(ids))
    report = report_on(from_transformers(model, make_reader()))
    assert broken(report)["positions"] == "position ids change nothing; positions are by index"
    assert "mask" not in broken(report)
    assert "batch" not in broken(report)  # there the index is the position
    assert "cache" in broken(report)  # and here it starts over
    assert exact(report) == []


def test_a_leak_of_a_thousandth_through_the_mask_is_found() -> None:
    model = make_model("qwen3")
    attention = model.model.layers[1].self_attn
    real = attention.forward

    def leak(hidden_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        read, weights = real(hidden_states, *arguments, **named)
        return read + 1e-3 * hidden_states.mean(dim=1, keepdim=True), weights

    attention.forward = leak
    report = report_on(from_transformers(model, make_reader()))
    assert report.promises["mask"].holds is False


@pytest.mark.parametrize(
    ("share", "holds", "why"),
    [
        (1e-3, False, "a row depends on tokens that the mask hides"),
        (3e-7, True, "within rounding, though not bit for bit"),
    ],
)
def test_a_leak_that_only_packed_rows_have_is_judged_by_its_size(
    share: float, holds: bool, why: str
) -> None:
    """Each token also reads the mean of all before it, whatever the mask. Alone it is causal."""
    model = make_model("qwen3")
    attention = model.model.layers[1].self_attn
    real = attention.forward

    def leak(hidden_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        read, weights = real(hidden_states, *arguments, **named)
        before = hidden_states.cumsum(dim=1) / torch.arange(1, 1 + hidden_states.shape[1])[:, None]
        return read + share * before, weights

    attention.forward = leak
    promise = report_on(from_transformers(model, make_reader())).promises["mask"]
    assert (promise.holds, promise.why) == (holds, why)


def test_the_verify_of_our_own_decoder_refuses_it_in_one_line() -> None:
    lm = make_lm("qwen3")
    with pytest.raises(Unsuited, match="needs minise's own decoder"):
        verify(lm, SelfEnsemble(group_size=2, trials=2).plan(lm, QUESTION))


def test_rounding_does_not_break_a_promise_in_bfloat16() -> None:
    model = make_model("qwen3", "sdpa").to(torch.bfloat16)
    report = report_on(from_transformers(model, make_reader()))
    assert report.passed


def test_the_table_is_made_by_one_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Each family runs in a process of its own. Families that behave alike share a row."""
    reports = {name: bridge_table.in_process(name) for name in ("llama", "bart", "mpt")}
    rows = "\n".join(bridge_table.table(reports))
    assert "| `llama` | yes | yes | yes | yes | yes | yes | yes |  |" in rows
    assert "| `mpt` (eager only) | yes | **no** | yes | yes | yes | **no** | yes |" in rows
    assert "which minise does not ask: bart." in rows
    assert capfd.readouterr() == ("", "")


def test_the_table_has_every_family_of_the_installed_library() -> None:
    page = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text(encoding="utf-8")
    made_with = re.search(r"transformers (\d\S*\d)", page)
    assert made_with is not None
    if made_with[1] != transformers.__version__:
        pytest.skip(f"docs/bridges.md is of transformers {made_with[1]}")
    table = page[page.index("| families |") :].partition("\n## ")[0]
    assert set(re.findall(r"[\w-]+", table)) >= set(bridge_table.FAMILIES)
