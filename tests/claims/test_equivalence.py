"""The paper's claim (end of Section 4.2): the packed pass equals the separate runs, token by token.

All in float64, where only rounding separates the two: hidden states within 1e-10, probabilities
within 1e-12. The families' windows are shorter than a prompt, so that they bite.
"""

from __future__ import annotations

import pytest
import torch

from minise import LanguageModel, Layout, Plan, Question, SelfEnsemble, pack, record, self_ensemble
from minise.layout import causal_mask
from tests.support.tiny import ALL_FAMILIES, load_tiny

HIDDEN, PROBABILITY = 1e-10, 1e-12
# (group size, trials) for the five choices of the fixture: m = 1, K not divisible by m, m = K,
# m > K; a single trial and many.
SPLITS = [(1, 1), (2, 1), (2, 8), (3, 5), (4, 12), (5, 1), (5, 6), (9, 2)]


def plan(lm: LanguageModel, question: Question, size: int, trials: int) -> Plan:
    return SelfEnsemble(size, trials).plan(lm, question)


def states(lm: LanguageModel, *inputs: torch.Tensor) -> torch.Tensor:
    """Embedding excluded: each layer's output and the final norm's, (layers + 1, T, D)."""
    with record(lm.decoder) as recording:
        final = lm.decoder(*inputs)
    return torch.stack(
        [*(recording.residual[layer][0] for layer in range(len(recording.residual))), final]
    )


def alone(lm: LanguageModel, prompt: list[int]) -> torch.Tensor:
    T = len(prompt)
    return states(lm, torch.tensor(prompt), torch.arange(T), causal_mask(T))


def packed(lm: LanguageModel, layout: Layout) -> torch.Tensor:
    return states(lm, layout.tokens, layout.positions, layout.mask)


@pytest.mark.parametrize(("size", "trials"), SPLITS)
@pytest.mark.parametrize("tree", [False, True], ids=["dense", "tree"])
def test_every_hidden_state_of_every_token_of_every_group(
    lm: LanguageModel, question: Question, size: int, trials: int, tree: bool
) -> None:
    group_plan = plan(lm, question, size, trials)
    layout = pack(group_plan.prefix, group_plan.branches, tree=tree)
    together = packed(lm, layout)
    for number, branch in enumerate(group_plan.branches):
        prompt = group_plan.prefix + branch
        rows = layout.paths()[number]
        assert layout.tokens[rows].tolist() == prompt
        assert (together[:, rows] - alone(lm, prompt)).abs().max() <= HIDDEN


@pytest.mark.parametrize(("size", "trials"), SPLITS)
@pytest.mark.parametrize("null_option", [True, False])
def test_every_engine_gives_the_same_probabilities(
    lm: LanguageModel, question: Question, size: int, trials: int, null_option: bool
) -> None:
    answers = {
        engine: self_ensemble(lm, question, size, trials, engine=engine, null_option=null_option)
        for engine in ("separate", "dense", "tree")
    }
    reference = answers.pop("separate")
    for answer in answers.values():
        assert answer.prediction == reference.prediction
        assert (answer.scores - reference.scores).abs().max() <= PROBABILITY
        for a, b in zip(answer.groups, reference.groups, strict=True):
            assert a.choices == b.choices
            assert (a.probabilities - b.probabilities).abs().max() <= PROBABILITY


@pytest.mark.parametrize("tree", [False, True], ids=["dense", "tree"])
def test_the_order_of_groups_does_not_matter(
    lm: LanguageModel, question: Question, tree: bool
) -> None:
    group_plan = plan(lm, question, 2, 6)
    order = torch.randperm(len(group_plan.branches), generator=torch.Generator().manual_seed(0))
    layout = pack(group_plan.prefix, group_plan.branches, tree=tree)
    shuffled = pack(group_plan.prefix, [group_plan.branches[i] for i in order], tree=tree)
    before, after = packed(lm, layout), packed(lm, shuffled)
    for place, number in enumerate(order.tolist()):
        difference = before[:, layout.paths()[number]] - after[:, shuffled.paths()[place]]
        assert difference.abs().max() <= HIDDEN


@pytest.mark.parametrize("tree", [False, True], ids=["dense", "tree"])
def test_another_groups_text_does_not_matter(
    lm: LanguageModel, question: Question, tree: bool
) -> None:
    group_plan = plan(lm, question, 2, 4)
    rewritten = [list(branch) for branch in group_plan.branches]
    rewritten[2] = [(token * 7 + 3) % lm.config.vocab_size for token in rewritten[2]] + [50, 60]
    layout = pack(group_plan.prefix, group_plan.branches, tree=tree)
    other = pack(group_plan.prefix, rewritten, tree=tree)
    before, after = packed(lm, layout), packed(lm, other)
    for number in range(len(rewritten)):
        rows, others = layout.paths()[number], other.paths()[number]
        if number == 2:
            assert (before[:, rows[-1]] - after[:, others[-1]]).abs().max() > 1e-2
        else:
            assert (before[:, rows] - after[:, others]).abs().max() <= HIDDEN


def test_the_check_can_see(lm: LanguageModel, question: Question) -> None:
    """Without the mask, without re-encoding, or with one cell of the mask wrong, states of the last
    group differ by far more than the tolerance."""
    group_plan = plan(lm, question, 2, 3)
    layout = pack(group_plan.prefix, group_plan.branches)
    T, rows = len(layout.tokens), layout.paths()[-1]
    expected = alone(lm, group_plan.prefix + group_plan.branches[-1])
    leak = layout.mask.clone()
    leak[-2, len(group_plan.prefix) + 3] = True  # one token of the first group, at a near position
    for name, wrong in {
        "no mask": layout.replace(mask=causal_mask(T)),
        "no re-encoding": layout.replace(positions=torch.arange(T)),
        "one leaking cell": layout.replace(mask=leak),
    }.items():
        difference = (packed(lm, wrong)[:, rows] - expected).abs().max()
        if name == "one leaking cell" and lm.config.model_type != "llama":
            continue  # that token lies outside the others' windows
        assert difference > 1e-4, name


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_the_windows_of_these_models_bite(family: str, tmp_path, question: Question) -> None:
    raw = ALL_FAMILIES[family]
    windowed = load_tiny(tmp_path / "windowed", raw)
    full = load_tiny(tmp_path / "full", {**raw, "sliding_window": None})
    a, b = self_ensemble(windowed, question), self_ensemble(full, question)
    assert (a.scores - b.scores).abs().max() > 1e-3


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_in_every_dtype_the_engines_are_equal_to_the_last_bit(
    tmp_path, question: Question, family: str, dtype: torch.dtype
) -> None:
    lm = load_tiny(tmp_path, ALL_FAMILIES[family], dtype=dtype)
    separate, dense, tree = (
        self_ensemble(lm, question, engine=engine) for engine in ("separate", "dense", "tree")
    )
    for packed in (dense, tree):
        assert torch.equal(packed.probabilities, separate.probabilities)
        for a, b in zip(packed.groups, separate.groups, strict=True):
            assert torch.equal(a.probabilities, b.probabilities)
            assert a.null == b.null
