"""The ablations of a page: their answers, readouts and attention are those of such runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minise import pack, record
from minise.engines import layout_ends, read_logits
from minise.explaining.ablations import ablated_layouts, first_trials, groups_that_fit
from minise.explaining.page import explain
from minise.grouping import Groups
from minise.method import SelfEnsemble

NAMES = ("without_mask", "without_positions", "without_both")


@pytest.fixture(scope="module")
def plan(lm, bird):
    return SelfEnsemble(2, 3).plan(lm, bird, 4)


@pytest.mark.parametrize("name", NAMES)
def test_an_ablations_answers_are_those_of_its_run(lm, page, plan, name: str) -> None:
    """And differ from the right ones, but for the first group, which has none before it."""
    flat, shown = pack(plan.prefix, plan.branches), page.data["ablations"][name]
    layout, K = ablated_layouts(flat)[name], len(page.data["choices"])
    scores, counts = torch.zeros(K).double(), torch.zeros(K)
    logits = read_logits(lm, layout_ends(lm, layout)).double()
    for number, (prompt, group) in enumerate(zip(plan.prompts, plan.groups.flat, strict=True)):
        row = logits[number, prompt.label_ids].softmax(dim=-1)
        assert shown["probabilities"][number] == pytest.approx(row[:-1].tolist(), abs=1e-6)
        assert shown["nulls"][number] == pytest.approx(float(row[-1]), abs=1e-6)
        assert shown["lens"][number][-1] == pytest.approx(row.tolist(), abs=1e-6)
        scores[list(group)] += row[:-1]
        counts[list(group)] += 1
        own = page.data["groups"][number]["probabilities"]
        assert (shown["probabilities"][number] == pytest.approx(own, abs=1e-6)) == (number == 0)
    answer = shown["self_ensemble"]
    assert answer["running"][-1] == pytest.approx((scores / counts).tolist(), abs=1e-6)
    assert answer["prediction"] == int((scores / counts).argmax())


@pytest.mark.parametrize("name", NAMES)
def test_an_ablations_attention_is_that_of_its_run(lm, page, plan, name: str) -> None:
    """Of the whole run, though only its first rows were run for it."""
    layout = ablated_layouts(pack(plan.prefix, plan.branches))[name]
    shown, T = page.data["ablations"][name], len(layout.tokens)
    rows = shown["rows"]
    assert page.data["packed"]["ends"][1] < rows < T
    with record(lm.refined, attention=True) as recording:
        read_logits(lm, layout_ends(lm, layout))
    weights = torch.stack([recording.attention[i][0] for i in sorted(recording.attention)])
    expected = [weights[:, :, row, layout.mask[row]].flatten() for row in range(rows)]
    assert np.abs(shown["attention"] / 255 - torch.cat(expected).numpy()).max() < 0.51 / 255


def test_attention_is_recorded_for_as_many_groups_as_fit_to_the_byte(page, plan) -> None:
    flat, data = pack(plan.prefix, plan.branches), page.data
    taken = sum(data["ablations"][name]["attention"].nbytes for name in NAMES)
    rows = data["ablations"]["without_mask"]["rows"]
    groups = data["packed"]["ends"].index(rows - 1) + 1
    for most, fit in ((taken, groups), (taken - 1, groups - 1)):
        assert groups_that_fit(flat, data["layers"], data["heads"], most) == fit


def test_where_no_groups_attention_fits_the_page_says_so(lm, bird, monkeypatch) -> None:
    monkeypatch.setattr("minise.explaining.collect.MOST_ABLATED", 100)
    data = explain(lm, bird, group_size=2, trials=1).data
    assert [data["ablations"][name]["attention"] for name in NAMES] == [None] * 3
    assert data["left_out"] == [
        "Without mask or positions, attention is left out: it takes too much."
    ]


def test_an_ablations_answer_counts_the_trials_that_are_shown_whole() -> None:
    trials = (((0, 1), (2, 3)), ((1, 3), (0, 2)))
    groups = Groups(trials, weights=(1.0, 2.0, 3.0, 4.0))
    assert first_trials(groups, 4) == groups
    assert first_trials(groups, 3) == Groups(trials[:1], (1.0, 2.0))
    assert first_trials(groups, 1).trials == ()
