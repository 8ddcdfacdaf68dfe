"""The numbers of a comparison are what their names say, and each bound holds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.checking.comparison as comparison
import minise.checking.verify as verify_module
from minise import Decoder, LanguageModel, Plan, SelfEnsemble, pack, record
from minise.checking.comparison import Bounds, Difference
from minise.checking.verify import verify
from minise.exact import run as exact
from minise.layout import Layout
from tests.support.verified import BIRD, DTYPES, Models


class TestTheNumbers:
    """They are computed again from the definitions, with plain runs of the decoder."""

    def states(
        self, lm: LanguageModel, layout: Layout, forward: Callable[..., Tensor] = Decoder.forward
    ) -> list[Tensor]:
        """The states of every row after each layer, then after the final norm."""
        with record(lm.decoder) as recording:
            final = forward(lm.decoder, layout.tokens, layout.positions, layout.mask)
        return [*(recording.residual[i].squeeze(0) for i in sorted(recording.residual)), final]

    def alone(self, lm: LanguageModel, plan: Plan) -> list[list[Tensor]]:
        """The states of each prompt, and the logits at its end."""
        prompts = []
        for branch in plan.branches:
            states = self.states(lm, pack(plan.prefix, [branch]))
            prompts.append([*states, lm.decoder.logits(states[-1][-1:])])
        return prompts

    def size(self, rows: Tensor) -> Tensor:
        return rows.double().pow(2).mean(-1).sqrt()

    def test_label_logits_that_differ_in_a_bit_are_not_equal(
        self, model: Models, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where all hidden states and logits are equal: labels are read apart from them."""
        lm, plan = model("llama", torch.float32)
        real = comparison.label_logits

        def one_bit_off(lm: LanguageModel, plan: Plan, engine: str) -> list[Tensor]:
            first, *rest = real(lm, plan, engine)
            return [first.nextafter(first + 1) if engine == "tree" else first, *rest]

        monkeypatch.setattr(comparison, "label_logits", one_bit_off)
        runs = comparison.compare(lm, plan).runs
        assert (runs["dense"].equal, runs["tree"].equal) == (True, False)
        assert runs["tree"].relative_logits == 0 < runs["tree"].labels

    def test_an_ablation_is_compared_row_by_row(self, model: Models) -> None:
        lm, _ = model("llama", torch.float64)
        plan = SelfEnsemble(2, 4).plan(lm, BIRD)
        flat = pack(plan.prefix, plan.branches)
        wrong = flat.replace(positions=torch.arange(len(flat.tokens)))
        packed, alone = self.states(lm, wrong), self.alone(lm, plan)
        absolute, relative, probabilities, changed = [], [], [], []
        for prompt, path, separate in zip(plan.prompts, flat.paths(), alone, strict=True):
            rows = [*(layer[path] for layer in packed), lm.decoder.logits(packed[-1][path[-1:]])]
            pairs = list(zip(separate, rows, strict=True))
            absolute.append([float((a - b).abs().max()) for a, b in pairs])
            relative.append([float((self.size(a - b) / self.size(a)).max()) for a, b in pairs])
            p, q = (x[-1][0, prompt.label_ids].softmax(0) for x in (separate, rows))
            probabilities.append(float((p - q).abs().max()))
            changed.append(int(p.argmax()) != int(q.argmax()))
        assert 1 < sum(changed) < len(changed)
        *layers, logits = (max(column) for column in zip(*absolute, strict=True))
        *relative_layers, relative_logits = (max(column) for column in zip(*relative, strict=True))
        report = verify(lm, plan)
        difference = report.ablations["without_positions"]
        assert difference.layers == pytest.approx(layers, rel=1e-9)
        assert difference.logits == pytest.approx(logits, rel=1e-9)
        assert difference.relative_layers == pytest.approx(relative_layers, rel=1e-9)
        assert difference.relative_logits == pytest.approx(relative_logits, rel=1e-9)
        assert difference.probabilities == pytest.approx(max(probabilities), rel=1e-9)
        assert difference.changed == sum(changed) / len(changed)
        assert not difference.equal
        sizes = [torch.cat([self.size(x) for x in rows]) for rows in zip(*alone, strict=True)]
        ranges = [(float(x.min()), float(x.max())) for x in sizes]
        assert report.sizes == [pytest.approx(both, rel=1e-9) for both in ranges]

    @pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda dtype: str(dtype)[6:])
    def test_the_bounds_are_six_times_the_models_own_rounding(
        self, model: Models, dtype: torch.dtype
    ) -> None:
        """Each is FACTOR times how far the model is from itself in a wider dtype."""
        lm, plan = model("shipped", dtype)
        wide = replace(lm, decoder=copy.deepcopy(lm.decoder).double())
        largest = [0.0] * (lm.config.num_hidden_layers + 2)
        labels, relative_labels = 0.0, 0.0
        for branch, prompt in zip(plan.branches, plan.prompts, strict=True):
            layout = pack(plan.prefix, [branch])
            narrow, exactly = (self.states(x, layout, exact.forward) for x in (lm, wide))
            read, wide_read = (
                exact.logits(x.decoder, rows[-1][-comparison.READ_ROWS :]).double()
                for x, rows in ((lm, narrow), (wide, exactly))
            )
            pairs = [*zip(exactly, narrow, strict=True), (wide_read, read)]
            gaps = [self.size(a.double() - b.double()) / self.size(a) for a, b in pairs]
            largest_of_pair = [float(gap.max()) for gap in gaps]
            largest = [max(both) for both in zip(largest, largest_of_pair, strict=True)]
            off = (wide_read - read)[:, prompt.label_ids].abs()
            labels = max(labels, float(off.max()))
            part = off / self.size(wide_read)[:, None]
            relative_labels = max(relative_labels, float(part.max()))
        bounds, factor = verify(lm, plan).bounds, verify_module.FACTOR
        expected = [factor * x for x in (*largest, relative_labels)]
        assert bounds.listed == pytest.approx(expected)
        assert bounds.probabilities == pytest.approx(math.tanh(factor * labels / 2))
        assert bounds.relative


class TestBounds:
    def difference(self, **changed: Any) -> Difference:
        fields = {"layers": [9.0, 9.0], "logits": 9.0, "labels": 9.0, "probabilities": 0.01}
        relative = {"relative_layers": [0.1, 0.2], "relative_logits": 0.3, "relative_labels": 0.4}
        rest = {"changed": 0.0, "equal": False, "prompts": 2}
        return Difference(**{**fields, **relative, **rest, **changed})

    def test_layers_logits_and_probabilities_have_separate_bounds(self) -> None:
        bounds = Bounds([0.1, 0.2], 0.3, 0.4, 0.01)
        assert bounds.allow(self.difference())
        assert not bounds.allow(self.difference(relative_layers=[0.11, 0.0]))
        assert not bounds.allow(self.difference(relative_layers=[0.0, 0.21]))
        assert not bounds.allow(self.difference(relative_logits=0.31))
        assert not bounds.allow(self.difference(relative_labels=0.41))
        assert not bounds.allow(self.difference(probabilities=0.02))

    def test_a_tolerance_is_an_absolute_bound_for_all_numbers(self, model: Models) -> None:
        report = verify(*model("llama", torch.bfloat16), tolerance=0.5)
        assert report.bounds == Bounds([0.5] * 4, 0.5, 0.5, 0.5, relative=False)
        assert report.wide_bounds == report.bounds
        assert report.tolerance == 0.5
        within = {"logits": 0.0, "labels": 0.5}
        assert not report.bounds.allow(self.difference(layers=[0.4, 0.4, 0.4, 0.6], **within))
        assert report.bounds.allow(self.difference(layers=[0.4, 0.4, 0.4, 0.5], **within))

    @pytest.mark.parametrize("wrong", [math.nan, math.inf])
    def test_nan_is_never_within_a_bound(self, wrong: float) -> None:
        bounds = Bounds([math.inf, 1.0], 1.0, 1.0, 1.0)
        assert not bounds.allow(self.difference())
        bounds = Bounds([1.0, 1.0], 1.0, 1.0, 1.0)
        assert bounds.allow(self.difference())
        assert not bounds.allow(self.difference(relative_layers=[0.0, wrong]))
        assert not bounds.allow(self.difference(relative_logits=wrong))
        assert not bounds.allow(self.difference(relative_labels=wrong))
        assert not bounds.allow(self.difference(probabilities=wrong))

    def test_float64_has_fixed_bounds(self, model: Models) -> None:
        report = verify(*model("llama", torch.float64))
        assert report.bounds == report.wide_bounds == Bounds([1e-10] * 4, 1e-10, 1e-10, 1e-10)

    def test_bounds_of_other_dtypes_follow_their_rounding(self, model: Models) -> None:
        of = {d: verify(*model("shipped", d)).bounds for d in DTYPES[1:]}
        for dtype, bounds in of.items():
            eps = torch.finfo(dtype).eps
            for bound in bounds.listed:
                assert eps < bound < 100 * eps
