"""PINE: importance by loops, and no effect of the order in which segments come."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minise import LanguageModel, Question
from minise import ask as ask_method
from minise.engines import hidden_states
from minise.methods.pine import ByImportance, Pine
from tests.methods.test_rotor import LAID_OUT, THREE
from tests.support.reordered import text_log_probability


def by_importance(t: int, owner: list[int], q: Tensor, k: Tensor) -> list[int]:
    """The choices, nearest first, for token t in one head."""
    C, own = max(owner), owner[t]

    def mean_weights(reader: int) -> dict[int, float]:
        columns = [u for u, one in enumerate(owner) if 0 <= one < C and one != own]
        raw = [math.exp(float(q[reader] @ k[u]) / math.sqrt(len(k[u]))) for u in columns]
        return {
            j: sum(e for e, u in zip(raw, columns, strict=True) if owner[u] == j)
            / sum(raw)
            / owner.count(j)
            for j in range(C)
        }

    readers = [r for r, one in enumerate(owner) if one == own] if own < C else [t]
    each = [mean_weights(reader) for reader in readers]
    importance = {j: sum(one[j] for one in each) for j in range(C)}
    importance[own] = math.inf
    return sorted(range(C), key=lambda j: -importance[j])


def test_the_answer_equals_a_second_implementation(lm: LanguageModel) -> None:
    log_p = [text_log_probability(lm, THREE, one, by_importance, LAID_OUT) for one in THREE.choices]
    answer = ask_method(lm, Pine(), THREE)
    expected = torch.tensor(log_p, dtype=torch.float64).softmax(0)
    torch.testing.assert_close(answer.probabilities, expected, rtol=0, atol=1e-6)


def test_importance_by_hand() -> None:
    """One head, h = 1, choices of 1, 1 and 2 tokens with keys 1.5, 3 and (0, 2); one token of the
    cue. With q = 1 the means are 4.5, 20.1 and (1 + 7.4) / 2 = 4.2 (by sums the third would be
    before the first), so 1, 0, 2 from near to far. With q = -1 they are 0.22, 0.05 and 0.57: 2, 0,
    1. A choice is nearest to itself, then come the others in this order."""
    owner = torch.tensor([-1, 0, 1, 2, 2, 3])
    empty = torch.empty(0)
    layout = ByImportance(empty, empty, empty, empty, owner, torch.tensor([1, 1, 2]))
    k = torch.tensor([9.0, 1.5, 3, 0, 2, 9])[:, None, None]
    for q, of_cue, of_first, of_third in (
        (1.0, [1, 0, 2], [0, 1, 2], [2, 1, 0]),
        (-1.0, [2, 0, 1], [0, 2, 1], [2, 0, 1]),
    ):
        (order,) = layout.nearest(torch.full((6, 1, 1), q), k).tolist()
        assert order[5] == of_cue
        assert order[1] == of_first
        assert order[3] == order[4] == of_third


def test_segments_in_another_order_of_the_sequence_give_the_same_states(lm: LanguageModel) -> None:
    """Not only because minise lays them out by their token ids."""
    layout = Pine().plan(lm, Question("Which one flies?", ["eel", "a cat", "an owl"])).layout
    assert isinstance(layout, ByImportance)
    rows = [row for i in (-1, 2, 0, 1, 3) for row in (layout.owner == i).nonzero().flatten()]
    new = torch.stack(rows)
    names = torch.tensor([1, 2, 0, 3, -1])  # of the owners 0, 1, 2, 3 and -1
    turned = ByImportance(
        layout.tokens[new],
        layout.positions[new],
        layout.mask[new][:, new],
        layout.ends,
        names[layout.owner[new]],
        layout.lengths[[2, 0, 1]],
    )
    with torch.no_grad():
        states, others = hidden_states(lm, layout), hidden_states(lm, turned)
    torch.testing.assert_close(others, states[new], rtol=0, atol=1e-9)
