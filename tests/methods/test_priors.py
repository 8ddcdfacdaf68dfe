"""Priors of the labels: each method against its published definition, by hand on small numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from minise import InputError
from minise.methods.priors import PriDe
from tests.support.methods import saved


def log(*p: float) -> Tensor:
    """Logits of these probabilities, shifted: a constant must change nothing."""
    return torch.tensor(p, dtype=torch.float64).log() + 3


def as_cyclic(row: dict[str, Any]) -> dict[str, Any]:
    """Its two rotations, by label: (.8, .2) and (.6, .4)."""
    rotations = [([0, 1], [0.8, 0.2]), ([1, 0], [0.6, 0.4])]
    groups = [{"choices": order, "probabilities": p, "null": None} for order, p in rotations]
    p = [0.6, 0.4]  # choice 0: (.8 + .4) / 2
    return row | {"probabilities": p, "scores": p, "groups": groups, "tokens": 30}


class TestPriDe:
    def test_it_estimates_from_a_few_and_debiases_the_others(self) -> None:
        """The prior of one question is softmax of the mean log-probability by label:
        sqrt(.8 * .6) : sqrt(.2 * .4) = sqrt(6) : 1. So (.7, .3) becomes .7 : .3 sqrt(6)."""
        rows = [saved(i, log(0.7, 0.3).tolist(), seed) for seed in (0, 1) for i in range(40)]
        turned = list(map(as_cyclic, rows[::-1]))  # found by seed and id
        fitted = PriDe(share=0.05).fit({"standard": rows, "cyclic": turned})
        assert [(one["seed"], one["id"]) for one in fitted] == [(x["seed"], x["id"]) for x in rows]
        debiased = 0.7 / (0.7 + 0.3 * 6**0.5)
        chosen = []
        for seed in (0, 1):
            of_seed = [one for one in fitted if one["seed"] == seed]
            estimating = [one for one in of_seed if one["tokens"] == 30]
            assert [one["probabilities"] for one in estimating] == [[0.6, 0.4]] * 2
            others = [one for one in of_seed if one["tokens"] == 10]
            assert len(others) == 38
            assert all(one["probabilities"][0] == pytest.approx(debiased) for one in others)
            assert {one["prediction"] for one in others} == {1}
            chosen.append({one["id"] for one in estimating})
        assert chosen[0] != chosen[1]
        assert not {"logits", "groups", "seconds", "label"} & fitted[0].keys()

    @pytest.mark.parametrize("share", [0.0, 1.5])
    def test_an_impossible_share_is_refused(self, share: float) -> None:
        row = saved(0, log(0.7, 0.3).tolist())
        with pytest.raises(InputError, match=f"share={share}"):
            PriDe(share=share).fit({"standard": [row], "cyclic": [as_cyclic(row)]})

    def test_questions_of_several_sizes_are_refused(self) -> None:
        rows = [saved(0, log(0.7, 0.3).tolist()), saved(1, log(0.5, 0.3, 0.2).tolist())]
        with pytest.raises(InputError, match="2 to 3"):
            PriDe().fit({"standard": rows, "cyclic": rows})
