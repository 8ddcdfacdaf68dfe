"""`verify` measures what it says, and can fail."""

from __future__ import annotations

from minise import LanguageModel, Plan, Question, SelfEnsemble, Tree, verify
from tests.tiny import FAMILIES, load_tiny


def plan(lm: LanguageModel, question: Question, size: int = 2, trials: int = 3) -> Plan:
    return SelfEnsemble(size, trials).plan(lm, question)


def test_packed_equals_separate_and_the_ablations_do_not(
    lm: LanguageModel, question: Question
) -> None:
    p = plan(lm, question)
    report = verify.verify(lm, p)
    assert report.passed
    assert report.tolerance == 1e-10
    assert report.groups == 9
    assert report.tokens == sum(len(p.prefix) + len(b) for b in p.branches)
    assert set(report.engines) == {"dense", "tree"}
    for difference in report.engines.values():
        assert len(difference.layers) == lm.config.num_hidden_layers + 1
        assert max(difference.layers) <= 1e-10
        assert difference.logits <= 1e-10
        assert difference.probabilities <= 1e-12
        assert difference.changed == 0
    assert set(report.ablations) == {"without_mask", "without_positions"}
    for difference in report.ablations.values():
        assert max(difference.layers) > 1e-2
        assert difference.logits > 1e-3
        assert difference.probabilities > 1e-4


def test_one_wrong_position_fails_it(lm, question, monkeypatch) -> None:
    real = verify.pack

    def shifted(prefix: list[int], branches: list[list[int]], tree: bool = False) -> Tree:
        layout = real(prefix, branches, tree)
        if prefix:
            layout.positions[-1] += 1
        return layout

    monkeypatch.setattr(verify, "pack", shifted)
    assert not verify.verify(lm, plan(lm, question)).passed


def test_a_model_that_cannot_tell_fails_it(tmp_path, question) -> None:
    """If the ablations agree too, agreement of the engines shows nothing."""
    blind = load_tiny(tmp_path, FAMILIES["llama"])
    blind.decoder.model.embed_tokens.weight.zero_()  # every hidden state is then zero
    report = verify.verify(blind, plan(blind, question))
    assert all(difference.within(0.0) for difference in report.engines.values())
    assert not report.passed


def test_a_single_group_passes_on_its_engines_alone(lm, question) -> None:
    report = verify.verify(lm, plan(lm, question, size=5, trials=1))
    assert report.groups == 1
    assert report.passed


def test_a_nan_is_never_within(lm) -> None:
    nan = verify.Difference([0.0], float("nan"), 0.0, 0.0)
    assert not nan.within(1e9)
