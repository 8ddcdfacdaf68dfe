"""The paper's claim (end of Section 4.2): the packed pass equals the separate runs, token by token.

All in float64, where only rounding separates the two: hidden states within 1e-10. The families'
windows are shorter than a prompt, so that they bite.
"""

from pathlib import Path

import pytest
import torch

from minise import LocalModel, Prompts, Question, SelfEnsemble, pack, record, self_ensemble
from minise.layout import causal_mask
from tests.reference.support.tiny import ALL_FAMILIES, load_tiny

HIDDEN = 1e-10
# (group size, trials) for the five choices of the fixture: m = 1, K not divisible by m, m = K,
# m > K; a single trial and many.
SPLITS = [(1, 1), (2, 8), (3, 5), (5, 2), (9, 1)]


def group_prompts(lm: LocalModel, question: Question, size: int, trials: int) -> Prompts:
    _, prompts = SelfEnsemble(size, trials).prompts(lm, question)
    return prompts


def states(lm: LocalModel, *inputs: torch.Tensor) -> torch.Tensor:
    """Each layer's output and the final norm's, (layers + 1, T, D)."""
    with record(lm.decoder) as recording:
        final = lm.decoder(*inputs)
    layers = [recording.residual[layer][0] for layer in range(len(recording.residual))]
    return torch.stack([*layers, final])


def alone(lm: LocalModel, prompt: list[int]) -> torch.Tensor:
    T = len(prompt)
    return states(lm, torch.tensor(prompt), torch.arange(T), causal_mask(T))


@pytest.mark.parametrize(("size", "trials"), SPLITS)
@pytest.mark.parametrize("tree", [False, True], ids=["packed", "tree"])
def test_every_hidden_state_of_every_token_of_every_group(
    lm: LocalModel, question: Question, size: int, trials: int, tree: bool
) -> None:
    prompts = group_prompts(lm, question, size, trials)
    layout = pack(prompts.prefix, prompts.branches, tree=tree)
    together = states(lm, layout.tokens, layout.positions, layout.mask)
    for rows, branch in zip(layout.paths(), prompts.branches, strict=True):
        prompt = prompts.prefix + branch
        assert layout.tokens[rows].tolist() == prompt
        assert (together[:, rows] - alone(lm, prompt)).abs().max() <= HIDDEN


def test_the_check_can_see(lm: LocalModel, question: Question) -> None:
    """Without the mask, without re-encoding, or with one cell of the mask wrong, states of the last
    group differ by far more than the tolerance."""
    prompts = group_prompts(lm, question, 2, 3)
    layout = pack(prompts.prefix, prompts.branches)
    T, rows = len(layout.tokens), layout.paths()[-1]
    expected = alone(lm, prompts.prefix + prompts.branches[-1])
    leak = layout.mask.clone()
    leak[-2, len(prompts.prefix) + 3] = True  # one token of the first group, at a near position
    wrong = [(layout.positions, causal_mask(T)), (torch.arange(T), layout.mask)]
    if lm.config.model_type == "llama":  # that token lies outside the others' windows
        wrong.append((layout.positions, leak))
    for positions, mask in wrong:
        found = states(lm, layout.tokens, positions, mask)
        assert (found[:, rows] - expected).abs().max() > 1e-4


@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3"])
def test_the_windows_of_these_models_bite(family: str, tmp_path: Path, question: Question) -> None:
    raw = ALL_FAMILIES[family]
    windowed = load_tiny(tmp_path / "windowed", raw)
    full = load_tiny(tmp_path / "full", {**raw, "sliding_window": None})
    a, b = self_ensemble(windowed, question), self_ensemble(full, question)
    assert (a.scores - b.scores).abs().max() > 1e-3
