"""The data of a page: they are what the layouts, the engines and the answers give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minise import InputError, LanguageModel, Question, pack, record, self_ensemble, standard
from minise.engines import run_alone
from minise.exact.machine import in_words
from minise.explaining.collect import (
    MOST_BYTES,
    MOST_TOKENS,
    checked_plan,
    explain_data,
    what_fits,
)
from minise.explaining.data import Data
from minise.explaining.page import explain
from minise.method import SelfEnsemble
from minise.prompt import LABELS
from tests.support.browser import SETTINGS
from tests.support.tiny import FAMILIES, load_tiny


def test_the_pages_answers_are_those_of_the_library(lm, page, bird) -> None:
    data, answer = page.data, self_ensemble(lm, bird, **SETTINGS)
    plan = SelfEnsemble(2, 3).plan(lm, bird, 4)
    for shown, group in zip(data["groups"], answer.groups, strict=True):
        assert tuple(shown["choices"]) == group.choices
        assert shown["probabilities"] == pytest.approx(group.probabilities.tolist(), abs=1e-6)
        assert shown["null"] == pytest.approx(group.null, abs=1e-6)
    assert [data["shared"] + group["prompt"] for group in data["groups"]] == [
        prompt.text for prompt in plan.prompts
    ]
    ensemble = data["self_ensemble"]
    assert ensemble["prediction"] == answer.prediction
    assert ensemble["running"][-1] == pytest.approx(answer.scores.tolist(), abs=1e-6)
    assert ensemble["errors"][0] is None  # one trial has no spread
    sums = np.arange(4)[:, None] * np.array([[0.0] * 5, *ensemble["running"]])
    errors = np.diff(sums, axis=0).std(axis=0, ddof=1) / 3**0.5  # over the trials
    assert ensemble["errors"][-1] == pytest.approx(errors.tolist(), abs=1e-5)
    other = standard(lm, bird)
    assert data["others"]["standard"]["prediction"] == other.prediction
    probabilities = data["others"]["standard"]["probabilities"]
    assert probabilities == pytest.approx(other.probabilities.tolist(), abs=1e-6)
    assert set(data["others"]) == {"standard", "cyclic"}


def test_a_page_names_the_model_the_question_and_the_settings(lm, page, bird) -> None:
    windows = sorted({window for window in lm.config.sliding_windows if window is not None})
    facts = {
        **{"model": lm.name, "dtype": "float64", "device": "cpu", "machine": in_words()},
        **{"layers": lm.config.num_hidden_layers, "windows": windows},
        **{"query_heads": 4, "heads": 4, "detail": "full", "left_out": []},
        **{"question": bird.text, "choices": list(bird.choices), "answer": 0, "labels": LABELS},
        **{"group_size": 2, "trials": 3, "seed": 4, "complete": False},
    }
    assert {name: page.data[name] for name in facts} == facts
    trials = SelfEnsemble(2, 3).plan(lm, bird, 4).groups.trials
    of_groups = [number for number, trial in enumerate(trials) for _ in trial]
    assert [group["trial"] for group in page.data["groups"]] == of_groups
    assert page.data["shown"] == len(of_groups)


def test_packed_equals_separate_and_the_ablations_do_not(lm, page) -> None:
    data, L = page.data, lm.config.num_hidden_layers
    packed, ends = data["packed"], data["packed"]["ends"]
    assert data["bitwise"] == {
        **{"dense": True, "tree": True},
        **{"without_mask": False, "without_positions": False, "without_both": False},
    }
    assert all(v.shape == (len(packed["texts"]), L + 1) for v in data["equality"].values())
    assert not data["equality"]["dense"].any()
    tree = data["equality"]["tree"]
    assert not tree[:, : L - 1].any()
    assert not tree[ends].any()  # its top layer has no other rows
    assert np.isnan(np.delete(tree, ends, axis=0)[:, L - 1 :]).all()
    before = [row for row, group in enumerate(packed["groups"]) if group <= 0]
    later = [row for row, group in enumerate(packed["groups"]) if group > 0]
    for ablation in ("without_mask", "without_positions", "without_both"):
        differences = data["equality"][ablation]
        # Only the question is before the first group. Equal, up to the rounding of float64.
        assert differences[before].max() < 1e-12
        assert differences[later, L].min() > 1e-4


def test_the_pages_attention_is_that_of_the_model(lm, page, bird) -> None:
    plan = SelfEnsemble(2, 3).plan(lm, bird, 4)
    tree = pack(plan.prefix, plan.branches, tree=True)
    L, H = lm.config.num_hidden_layers, lm.config.num_attention_heads
    flat = page.data["attention"]
    starts = np.cumsum([0, *(L * H * (p + 1) for p in page.data["tree"]["positions"])])
    assert len(flat) == starts[-1]
    for group in (0, 4):
        with record(lm.refined, attention=True) as recording:
            run_alone(lm, plan.prefix + plan.branches[group])
        for position, row in enumerate(tree.paths()[group]):
            shown = flat[starts[row] : starts[row + 1]].reshape(L, H, position + 1) / 255
            real = np.stack(
                [recording.attention[i][0, :, position, : position + 1] for i in range(L)]
            )
            assert np.abs(shown - real).max() <= 0.5 / 255 + 1e-9


def test_the_readout_of_the_last_layer_is_the_groups_answer(lm, page) -> None:
    for group in page.data["groups"]:
        assert len(group["lens"]) == lm.config.num_hidden_layers
        assert all(sum(row) == pytest.approx(1, abs=1e-5) for row in group["lens"])
        assert group["lens"][-1] == pytest.approx(
            [*group["probabilities"], group["null"]], abs=1e-6
        )
        assert group["lens"][0] != group["lens"][-1]


def test_all_ordered_groups_are_one_trial_without_a_standard_error(lm) -> None:
    page = explain(lm, Question("Which is a bird?", ["wren", "oak", "zinc"]), 2, grouping="exact")
    assert page.data["self_ensemble"]["errors"] == [None]
    assert "is asked, in" in page.html


def test_with_more_choices_than_labels_standard_inference_is_left_out(lm) -> None:
    many = Question("Which is the third?", [f"number {n}" for n in range(30)])
    page = explain(lm, many, group_size=3, trials=1)
    assert "labels" in page.data["others"]["standard"]["left_out"]
    assert page.html.count(page.data["others"]["standard"]["left_out"]) > 2
    assert "Left out: standard: 30 choices" in page.html


# Large models and many groups.


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """As many layers as an 8B model. The size of a page with the heads' mean depends on
    nothing else."""
    raw = {**FAMILIES["llama"], "num_hidden_layers": 32}
    return load_tiny(tmp_path_factory.mktemp("deep"), raw, dtype=torch.float32)


def test_a_large_models_page_is_below_5_mb_and_says_what_it_leaves_out(deep) -> None:
    long = Question("Which of these is a bird, if any?", ["wren", "oak", "trout", "zinc"] * 2)
    page = explain(deep, long, trials=18)
    assert len(page.data["packed"]["texts"]) > 1000
    assert page.data["detail"] == "low"
    assert page.data["heads"] == 1
    assert len(page.html.encode()) < 5_000_000
    assert "mean over the 4 heads" in page.html
    assert page.data["shown"] < 36
    assert f"show {page.data['shown']} of the 36 groups" in page.html
    assert len(page.data["self_ensemble"]["running"]) == 18  # the answer is whole


def test_full_detail_keeps_every_head(lm, bird) -> None:
    low = explain(lm, bird, **SETTINGS, detail="low").data
    assert (low["detail"], low["heads"]) == ("low", 1)
    assert low["left_out"] == [
        "Attention is the mean over the 4 heads. With full detail the file holds every head, and "
        "is larger."
    ]
    full = explain(lm, bird, **SETTINGS).data
    assert full["detail"] == "full"
    assert len(full["attention"]) == 4 * len(low["attention"])


def bytes_of(data: Data, groups: int, heads: int) -> int:
    """Of equality and attention, for the first groups and this many heads; without the ablations'
    attention and the last of their runs, which are counted apart."""
    packed, rows = data["packed"]["ends"][groups - 1] + 1, max(data["tree"]["ends"][:groups]) + 1
    equality = sum(run[:packed].nbytes for run in four_runs(data))
    positions = data["tree"]["positions"][:rows]
    return equality + data["layers"] * heads * sum(position + 1 for position in positions)


def four_runs(data: Data) -> list[np.ndarray]:
    return [run for name, run in data["equality"].items() if name != "without_both"]


def test_as_many_groups_are_shown_as_fit_to_the_byte_and_to_the_token(
    lm, page, bird, monkeypatch
) -> None:
    """And every head, where no detail is asked for, if all of them fit."""
    data, plan = page.data, SelfEnsemble(2, 3).plan(lm, bird, 4)
    G, H = len(plan.prompts), lm.config.num_attention_heads
    sizes = [data["attention"].nbytes, *(run.nbytes for run in four_runs(data))]
    assert bytes_of(data, G, H) == sum(sizes)

    def fits(name: str, most: int, detail: str | None) -> tuple[str, int]:
        monkeypatch.setattr(f"minise.explaining.collect.{name}", most)
        return what_fits(lm, plan, detail)

    for groups in (2, 5, G):
        exact = bytes_of(data, groups, 1)
        assert fits("MOST_BYTES", exact, "low") == ("low", groups)
        assert fits("MOST_BYTES", exact - 1, "low") == ("low", groups - 1)
        assert fits("MOST_BYTES", exact, "full") == ("full", G)
    every_head = bytes_of(data, G, H)
    assert fits("MOST_BYTES", every_head, None) == ("full", G)
    assert fits("MOST_BYTES", every_head - 1, None) == ("low", G)
    for groups in (2, 5, G):
        exact = data["packed"]["ends"][groups - 1] + 1
        for detail in ("low", "full"):
            assert fits("MOST_TOKENS", exact, detail) == (detail, groups)
            assert fits("MOST_TOKENS", exact - 1, detail) == (detail, groups - 1)
    assert (MOST_TOKENS, MOST_BYTES) == (2000, 3_200_000)


def test_over_1000_groups_are_refused(lm) -> None:
    two = Question("Which is a bird?", ["wren", "oak"])
    assert len(checked_plan(lm, SelfEnsemble(2, 1000), two, 0).prompts) == 1000
    with pytest.raises(InputError, match="1,001 groups are too many for a page"):
        checked_plan(lm, SelfEnsemble(2, 1001), two, 0)


def test_a_trial_too_long_for_the_picture_is_refused(tmp_path) -> None:
    long = {**FAMILIES["llama"], "max_position_embeddings": 4096}
    lm = load_tiny(tmp_path, long)
    question = Question("x" * 2500, ["wren", "oak"])
    with pytest.raises(InputError, match=r"^one prompt has 2,\d{3} tokens, too many for a page; "):
        explain(lm, question)


def test_an_unknown_detail_is_refused(lm, bird) -> None:
    with pytest.raises(InputError, match='detail "medium" is unknown; use one of low, full'):
        explain_data(lm, SelfEnsemble(2, 1), bird, detail="medium")
