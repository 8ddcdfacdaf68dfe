"""`verify` measures what it says, passes what is sound in every dtype, and can fail."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.checking.comparison as comparison
import minise.checking.influence as influence
import minise.checking.verify as verify_module
import minise.exact.attention as attention
from minise import (
    Decoder,
    InputError,
    LanguageModel,
    Plan,
    Question,
    SelfEnsemble,
    load,
    pack,
    record,
)
from minise.checking.comparison import Bounds, Difference
from minise.checking.traces import Apart
from minise.checking.verify import Verification, verify
from minise.commands.options import QUESTION
from minise.exact import run as exact
from minise.grouping import Groups
from minise.layout import Layout
from minise.prompt import Prompt
from tests.support.faults import FAULTS
from tests.support.planted import PLANTED, WINDOWED, everywhere
from tests.support.tiny import FAMILIES, load_tiny, write_checkpoint

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SHIPPED = Path(__file__).parents[2] / "weights" / "tiny-llama"
BIRD = Question("Which is a bird?", ["wren", "a trout", "oak", "the red ant", "quartz"])
# Three prompts of 32 tokens or less, a little longer than the windows of the tiny mistral.
SHORT = Plan(
    Question("?", ["a", "b", "c"]),
    Groups((((0, 1),), ((1, 2),), ((2, 0),))),
    list(range(30, 50)),
    [
        Prompt("", [*range(start, start + length)], [70, 80, 90])
        for start, length in ((60, 12), (100, 12), (61, 11))
    ],
)

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
each_model = pytest.mark.parametrize("name", ["shipped", "llama", "mistral"])
Models = Callable[[str, torch.dtype], tuple[LanguageModel, Plan]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A freshly loaded model of the name, and a plan with a few groups."""
    folders = {
        name: write_checkpoint(tmp_path_factory.mktemp(name), raw) for name, raw in FAMILIES.items()
    }

    def make(name: str, dtype: torch.dtype) -> tuple[LanguageModel, Plan]:
        lm = load(folders.get(name, SHIPPED), dtype=dtype)
        if name == "shipped":
            return lm, SelfEnsemble(4, 1).plan(lm, QUESTION)
        return lm, SelfEnsemble(2, 1).plan(lm, BIRD)

    return make


def plant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A fault of tests/support/faults.py in this process."""
    module_name, path, make = FAULTS[name]
    owner: Any = importlib.import_module(module_name)
    *parts, last = path.split(".")
    for part in parts:
        owner = getattr(owner, part)
    real = vars(owner)[last]
    if parts:
        monkeypatch.setattr(owner, last, make(real))
    else:
        everywhere(monkeypatch, real, make(real))


def rounding_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that sums in another order: in the packed engines what attention and MLP put out is
    wrong by up to one unit of rounding. Nothing is promised of its bits."""
    real, generator = comparison.label_logits, torch.Generator().manual_seed(0)

    def noise(_: object, given: object, output: Tensor) -> Tensor:
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        unit = torch.rand(wide.shape, generator=generator, dtype=wide.dtype) * 2 - 1
        return (wide * (1 + torch.finfo(output.dtype).eps * unit)).to(output.dtype)

    def label_logits(lm: LanguageModel, plan: Plan, engine: str) -> list[Tensor]:
        layers: list[Any] = [] if engine == "separate" else list(lm.decoder.model.layers)
        layers = [getattr(layer, "layer", layer) for layer in layers]  # of a widened decoder
        parts = [part for layer in layers for part in (layer.self_attn, layer.mlp)]
        hooks = [part.register_forward_hook(noise) for part in parts]
        try:
            return real(lm, plan, engine)
        finally:
            for hook in hooks:
                hook.remove()

    monkeypatch.setattr(comparison, "label_logits", label_logits)
    promise_nothing(monkeypatch)


def promise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "is_refined", lambda decoder: False)


def agree(report: Verification) -> bool:
    """The verdict of the bounds alone. They know nothing of equal bits."""
    return all(report.bounds.allow(difference) for difference in report.engines.values())


class TestWhatIsSoundPasses:
    @each_dtype
    @each_model
    def test_it_is_equal_bit_for_bit(self, model: Models, name: str, dtype: torch.dtype) -> None:
        lm, plan = model(name, dtype)
        report = verify(lm, plan)
        assert report.passed
        assert report.bitwise
        assert report.influence.scrambled.equal
        assert report.influence.runs > 0
        assert report.groups == len(plan.prompts)
        assert report.tokens == sum(len(plan.prefix) + len(b) for b in plan.branches)
        assert report.promised
        assert list(report.engines) == ["dense", "tree", "plain"]
        assert list(report.wide) == [] if dtype == torch.float64 else list(report.engines)
        for engine in ("dense", "tree"):
            difference = report.engines[engine]
            assert difference.layers == [0.0] * (lm.config.num_hidden_layers + 1)
            assert difference.logits == difference.probabilities == difference.changed == 0
        for difference in (report.engines["plain"], *report.wide.values()):
            assert difference.prompts == report.groups
            assert all(map(math.isfinite, difference.layers))
            assert difference.logits < 1
        assert set(report.ablations) == {"without_mask", "without_positions"}
        for difference in report.ablations.values():
            assert max(difference.layers) > 1e-2
            assert difference.logits > 1e-3
            assert difference.probabilities > 1e-5

    @each_dtype
    @each_model
    def test_a_huge_activation_on_the_first_token(
        self, model: Models, monkeypatch, name: str, dtype: torch.dtype
    ) -> None:
        """As published checkpoints have. It must blind nothing and reject nothing."""
        lm, plan = model(name, dtype)
        lm.decoder.model.embed_tokens.weight.data[plan.prefix[0], 5] = 300
        assert verify(lm, plan).passed
        with monkeypatch.context() as planted:
            PLANTED["every group's positions are off by one"](planted)
            assert not agree(verify(lm, plan))
        rounding_noise(monkeypatch)
        report = verify(lm, plan)
        assert report.passed
        assert not report.bitwise

    @each_dtype
    @each_model
    def test_rounding_of_another_device(
        self, model: Models, monkeypatch, name: str, dtype: torch.dtype
    ) -> None:
        rounding_noise(monkeypatch)
        report = verify(*model(name, dtype))
        assert report.passed
        assert not report.bitwise
        assert all(x > 0 for d in report.engines.values() for x in d.layers)

    def test_whose_mask_would_not_fit_is_refused(self, model: Models, monkeypatch) -> None:
        lm, plan = model("llama", torch.float64)
        checked: list[int] = []
        monkeypatch.setattr(verify_module, "check_mask_fits", checked.append)
        verify(lm, plan)
        assert checked == [plan.tokens("dense")]
        monkeypatch.undo()
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
        with pytest.raises(InputError, match="packed tokens need a mask"):
            verify(lm, plan)

    def test_a_single_group_passes_on_its_engines_alone(self, model: Models) -> None:
        lm, _ = model("llama", torch.float64)
        report = verify(lm, SelfEnsemble(5, 1).plan(lm, BIRD))
        assert report.groups == 1
        assert report.influence.runs == 0
        assert report.passed


class TestTheNumbersAreWhatTheySay:
    """Computed again from the definitions, with plain runs of the decoder."""

    def states(
        self, lm: LanguageModel, layout: Layout, forward: Callable[..., Tensor] = Decoder.forward
    ) -> list[Tensor]:
        """Of every row after each layer, then after the final norm."""
        with record(lm.decoder) as seen:
            final = forward(lm.decoder, layout.tokens, layout.positions, layout.mask)
        return [*(seen.residual[layer].squeeze(0) for layer in sorted(seen.residual)), final]

    def alone(self, lm: LanguageModel, plan: Plan) -> list[list[Tensor]]:
        """The states of each prompt, and the logits at its end."""
        found = []
        for branch in plan.branches:
            states = self.states(lm, pack(plan.prefix, [branch]))
            found.append([*states, lm.decoder.logits(states[-1][-1:])])
        return found

    def size(self, rows: Tensor) -> Tensor:
        return rows.double().pow(2).mean(-1).sqrt()

    def test_of_an_ablation(self, model: Models) -> None:
        lm, _ = model("llama", torch.float64)
        plan = SelfEnsemble(2, 4).plan(lm, BIRD)
        flat = pack(plan.prefix, plan.branches)
        wrong = flat.replace(positions=torch.arange(len(flat.tokens)))
        packed, alone = self.states(lm, wrong), self.alone(lm, plan)
        absolute, relative, probabilities, changed = [], [], [], []
        for prompt, path, theirs in zip(plan.prompts, flat.paths(), alone, strict=True):
            mine = [*(layer[path] for layer in packed), lm.decoder.logits(packed[-1][path[-1:]])]
            pairs = list(zip(theirs, mine, strict=True))
            absolute.append([float((a - b).abs().max()) for a, b in pairs])
            relative.append([float((self.size(a - b) / self.size(a)).max()) for a, b in pairs])
            p, q = (x[-1][0, prompt.label_ids].softmax(0) for x in (theirs, mine))
            probabilities.append(float((p - q).abs().max()))
            changed.append(int(p.argmax()) != int(q.argmax()))
        assert 1 < sum(changed) < len(changed)
        *layers, logits = (max(column) for column in zip(*absolute, strict=True))
        *relative_layers, relative_logits = (max(column) for column in zip(*relative, strict=True))
        report = verify(lm, plan)
        found = report.ablations["without_positions"]
        assert found.layers == pytest.approx(layers, rel=1e-9)
        assert found.logits == pytest.approx(logits, rel=1e-9)
        assert found.relative_layers == pytest.approx(relative_layers, rel=1e-9)
        assert found.relative_logits == pytest.approx(relative_logits, rel=1e-9)
        assert found.probabilities == pytest.approx(max(probabilities), rel=1e-9)
        assert found.changed == sum(changed) / len(changed)
        assert not found.equal
        sizes = [torch.cat([self.size(x) for x in rows]) for rows in zip(*alone, strict=True)]
        ranges = [(float(x.min()), float(x.max())) for x in sizes]
        assert report.sizes == [pytest.approx(both, rel=1e-9) for both in ranges]

    @pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda dtype: str(dtype)[6:])
    def test_of_the_bounds(self, model: Models, dtype: torch.dtype) -> None:
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
            apart = [float(gap.max()) for gap in gaps]
            largest = [max(both) for both in zip(largest, apart, strict=True)]
            off = (wide_read - read)[:, prompt.label_ids].abs()
            labels = max(labels, float(off.max()))
            part = off / self.size(wide_read)[:, None]
            relative_labels = max(relative_labels, float(part.max()))
        bounds, factor = verify(lm, plan).bounds, verify_module.FACTOR
        expected = [factor * x for x in (*largest, relative_labels)]
        assert bounds.listed == pytest.approx(expected)
        assert bounds.probabilities == pytest.approx(math.tanh(factor * labels / 2))
        assert bounds.relative


class TestWhatIsWrongFails:
    @each_dtype
    @pytest.mark.parametrize(
        ("name", "fault"),
        [
            ("shipped", "positions not re-encoded"),
            ("llama", "positions not re-encoded"),
            ("shipped", "no block mask"),
            ("llama", "no block mask"),
            ("shipped", "the paper's misprinted index_j"),
            ("llama", "the paper's misprinted index_j"),
            ("llama", "a flat layout that merges"),
            ("mistral", "windows by index"),
            ("mistral", "a tree that forgets windows"),
            ("shipped", "a tree that reads what comes after"),
            ("llama", "a tree that reads what comes after"),
        ],
    )
    def test_a_fault_of_the_suite(
        self, model: Models, monkeypatch, name: str, fault: str, dtype: torch.dtype
    ) -> None:
        lm, plan = model(name, dtype)
        plant(monkeypatch, fault)
        report = verify(lm, plan)
        assert not report.passed
        assert not agree(report)

    @each_dtype
    @pytest.mark.parametrize("fault", PLANTED)
    def test_a_small_fault_of_one_engine_or_of_all(
        self, model: Models, monkeypatch, fault: str, dtype: torch.dtype
    ) -> None:
        """Without the certificate, and also on a device that promises no equal bits."""
        lm, _ = model("mistral" if fault in WINDOWED else "llama", dtype)
        nothing = influence.Influence(0, Apart())
        monkeypatch.setattr(verify_module, "influence", lambda *given, **named: nothing)
        PLANTED[fault](monkeypatch)
        report = verify(lm, SHORT)
        assert not report.passed
        elsewhere = replace(report, promised=False)
        assert not (elsewhere.engines_agree and elsewhere.engines_agree_in_float64)

    @each_dtype
    @pytest.mark.parametrize("name", ["llama", "mistral", "qwen2"])
    def test_none_of_them_is_seen_where_none_is(
        self, model: Models, name: str, dtype: torch.dtype
    ) -> None:
        assert verify(model(name, dtype)[0], SHORT).passed

    @each_dtype
    def test_a_nan_in_the_weights(self, model: Models, dtype: torch.dtype) -> None:
        lm, plan = model("llama", dtype)
        lm.decoder.model.layers[1].mlp.down_proj.weight.data[0, 0] = math.nan
        with pytest.raises(InputError, match="overflow"):
            verify(lm, plan)

    @each_dtype
    @pytest.mark.parametrize("tolerance", [None, 1e30])
    def test_a_nan_in_one_row_of_an_engine(
        self, model: Models, monkeypatch, dtype: torch.dtype, tolerance: float | None
    ) -> None:
        lm, plan = model("llama", dtype)
        real, done = LanguageModel.logits, []

        def spoiled(self: LanguageModel, ends: Tensor, columns: Tensor | None = None) -> Tensor:
            found = real(self, ends, columns).clone()
            if columns is None and not done:  # the first engine's
                found[1, 7] = math.nan
                done.append(found)
            return found

        monkeypatch.setattr(LanguageModel, "logits", spoiled)
        assert not verify(lm, plan, tolerance).passed
        assert done

    def test_a_model_that_cannot_tell(self, tmp_path: Path, question: Question) -> None:
        """If the ablations agree too, agreement of the engines shows nothing."""
        blind = load_tiny(tmp_path, FAMILIES["llama"])
        blind.decoder.model.embed_tokens.weight.fill_(1.0)  # every token is the same
        report = verify(blind, SelfEnsemble(2, 1).plan(blind, question))
        assert report.engines_agree
        assert not report.ablations_differ
        assert not report.passed

    def test_a_certificate_that_does_not_hold(self, model: Models, monkeypatch) -> None:
        """Equal engines are not enough."""
        lm, plan = model("llama", torch.float64)
        real = verify_module.influence

        def leaky(*given: Any, **named: Any) -> influence.Influence:
            found = real(*given, **named)
            found.scrambled.equal = False
            return found

        monkeypatch.setattr(verify_module, "influence", leaky)
        report = verify(lm, plan)
        assert report.bitwise
        assert not report.passed


class TestBounds:
    def difference(self, **changed: Any) -> Difference:
        fields = {"layers": [9.0, 9.0], "logits": 9.0, "labels": 9.0, "probabilities": 0.01}
        relative = {"relative_layers": [0.1, 0.2], "relative_logits": 0.3, "relative_labels": 0.4}
        rest = {"changed": 0.0, "equal": False, "prompts": 2}
        return Difference(**{**fields, **relative, **rest, **changed})

    def test_each_layer_logits_and_probabilities_have_their_own(self) -> None:
        bounds = Bounds([0.1, 0.2], 0.3, 0.4, 0.01)
        assert bounds.allow(self.difference())
        assert not bounds.allow(self.difference(relative_layers=[0.11, 0.0]))
        assert not bounds.allow(self.difference(relative_layers=[0.0, 0.21]))
        assert not bounds.allow(self.difference(relative_logits=0.31))
        assert not bounds.allow(self.difference(relative_labels=0.41))
        assert not bounds.allow(self.difference(probabilities=0.02))

    def test_a_tolerance_is_absolute_and_holds_for_everything(self, model: Models) -> None:
        report = verify(*model("llama", torch.bfloat16), tolerance=0.5)
        assert report.bounds == Bounds([0.5] * 4, 0.5, 0.5, 0.5, relative=False)
        assert report.wide_bounds == report.bounds
        assert report.tolerance == 0.5
        within = {"logits": 0.0, "labels": 0.5}
        assert not report.bounds.allow(self.difference(layers=[0.4, 0.4, 0.4, 0.6], **within))
        assert report.bounds.allow(self.difference(layers=[0.4, 0.4, 0.4, 0.5], **within))

    @pytest.mark.parametrize("wrong", [math.nan, math.inf])
    def test_what_is_not_a_number_is_never_within(self, wrong: float) -> None:
        bounds = Bounds([math.inf, 1.0], 1.0, 1.0, 1.0)
        assert not bounds.allow(self.difference())
        bounds = Bounds([1.0, 1.0], 1.0, 1.0, 1.0)
        assert bounds.allow(self.difference())
        assert not bounds.allow(self.difference(relative_layers=[0.0, wrong]))
        assert not bounds.allow(self.difference(relative_logits=wrong))
        assert not bounds.allow(self.difference(relative_labels=wrong))
        assert not bounds.allow(self.difference(probabilities=wrong))

    def test_float64_has_fixed_ones(self, model: Models) -> None:
        report = verify(*model("llama", torch.float64))
        assert report.bounds == report.wide_bounds == Bounds([1e-10] * 4, 1e-10, 1e-10, 1e-10)

    def test_others_follow_the_rounding_of_the_dtype(self, model: Models) -> None:
        of = {d: verify(*model("shipped", d)).bounds for d in DTYPES[1:]}
        for dtype, bounds in of.items():
            eps = torch.finfo(dtype).eps
            for bound in bounds.listed:
                assert eps < bound < 100 * eps


class TestRefusals:
    """Before any run of the model."""

    @pytest.fixture
    def asked(self, model: Models, monkeypatch: pytest.MonkeyPatch) -> tuple[LanguageModel, Plan]:
        lm, plan = model("llama", torch.float64)
        monkeypatch.setattr(lm.decoder, "run", None)
        return lm, plan

    def test_a_mask_that_does_not_fit(self, asked: tuple[LanguageModel, Plan], monkeypatch) -> None:
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
        with pytest.raises(InputError, match="packed tokens need a mask"):
            verify(*asked)

    def test_bits_of_another_library(self, asked: tuple[LanguageModel, Plan]) -> None:
        lm, plan = asked
        lm.__dict__["verify"] = None
        with pytest.raises(InputError, match="nothing promises the bits of another library"):
            verify(lm, plan, require_bits=True)

    def test_a_prompt_beyond_the_models_positions(self, asked: tuple[LanguageModel, Plan]) -> None:
        lm, plan = asked
        longer = replace(plan, prefix=plan.prefix * lm.config.max_position_embeddings)
        with pytest.raises(InputError, match="has positions for 1024"):
            verify(lm, longer)


class TestItLeavesNothingBehind:
    def state(self, lm: LanguageModel) -> list[Any]:
        modules = list(lm.decoder.modules())
        return [
            "run" in vars(lm.decoder),
            [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules],
            [(p.data_ptr(), p.dtype, p.requires_grad, p.grad) for p in lm.decoder.parameters()],
        ]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_after_a_run(self, model: Models, dtype: torch.dtype) -> None:
        lm, plan = model("llama", dtype)
        before = self.state(lm)
        weights = {name: x.clone() for name, x in lm.decoder.state_dict().items()}
        assert verify(lm, plan, gradients=True).passed
        assert self.state(lm) == before
        for name, x in lm.decoder.state_dict().items():
            assert torch.equal(x, weights[name])

    @pytest.mark.parametrize("calls", [1, 5, 9, 13, 20])
    def test_after_a_failure_midway(self, model: Models, monkeypatch, calls: int) -> None:
        lm, plan = model("llama", torch.bfloat16)
        before, real, left = self.state(lm), attention.Reader.attend, [3 * calls]

        def attend(self: Any, *given: Any) -> Tensor:
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("the device is lost")
            return real(self, *given)

        monkeypatch.setattr("minise.exact.attention.Reader.attend", attend)
        with pytest.raises(RuntimeError, match="lost"):
            verify(lm, plan, gradients=True)
        assert self.state(lm) == before
