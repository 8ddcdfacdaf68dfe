"""`verify` passes correct engines in every dtype, finds every planted fault, changes nothing."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import minise.verify.comparison as comparison
import minise.verify.verify as verify_module
from minise import InputError, LanguageModel, SelfEnsemble, pack
from minise.commands.options import QUESTION
from minise.equal_bits import run as exact
from minise.equal_bits.attention import Reader
from minise.layout import Layout, Tree
from minise.verify.comparison import Difference, influence, relative, widened
from minise.verify.recording import record
from minise.verify.verify import ABLATIONS, ENGINES, FACTOR, SAME, verify
from tests.support.tiny import ALL_FAMILIES, FAMILIES, load_tiny
from tests.verify.cases import BIRD, SHORT, Models, each_dtype, plan_of, rounding_noise
from tests.verify.planted import PLANTED, WINDOWED

PREFIX, BRANCHES = [0, 50, 60], [[70, 80], [90, 80], [70, 30]]
FLAT = pack(PREFIX, BRANCHES)
FEW = plan_of(PREFIX, BRANCHES, [70, 80, 90])


class TestCorrectEngines:
    @each_dtype
    @pytest.mark.parametrize("name", ["shipped", "llama", "mistral", "qwen2"])
    def test_are_the_same_in_float64_and_equal_bit_for_bit(
        self, model: Models, name: str, dtype: torch.dtype
    ) -> None:
        lm = model(name, dtype)
        shipped = name == "shipped"
        plan = SelfEnsemble(4 if shipped else 2, 1).plan(lm, QUESTION if shipped else BIRD)
        report = verify(lm, plan)
        assert report.passed, report.failure
        assert report.bitwise
        assert report.promised
        assert report.influence.equal
        assert report.influence.pairs > 0
        assert report.groups == len(plan.prompts)
        assert report.tokens == sum(len(plan.prefix) + len(b) for b in plan.branches)
        assert list(report.runs) == [*ENGINES, *ABLATIONS]
        for engine in ("dense", "tree"):  # label logits too: they are the same dot products
            assert report.runs[engine].absolute.tolist() == [0.0] * (
                lm.config.num_hidden_layers + 4
            )
        assert not report.runs["plain"].equal
        own = ["rounding"] * (dtype != torch.float64)
        assert list(report.wide) == [*ENGINES, *ABLATIONS, *own]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_leave_the_ablations_far_outside_the_float64_verdict(
        self, model: Models, dtype: torch.dtype
    ) -> None:
        """Also where rounding in the model's own dtype would hide them."""
        report = verify(model("llama", dtype), SHORT)
        if rounding := report.wide.get("rounding"):
            rounding.relative = torch.ones_like(rounding.relative)
        assert report.passed
        for name in ABLATIONS:
            assert not report.same(name)
            assert report.wide[name].most > 1e6 * SAME

    @each_dtype
    @pytest.mark.parametrize("name", ["shipped", "mistral"])
    def test_pass_on_another_device_that_rounds_in_another_way(
        self, model: Models, monkeypatch, name: str, dtype: torch.dtype
    ) -> None:
        lm = model(name, dtype)
        plan = SelfEnsemble(4 if name == "shipped" else 2, 1).plan(lm, BIRD)
        rounding_noise(monkeypatch)
        report = replace(verify(lm, plan), promised=False)
        assert report.passed, report.failure
        assert not report.bitwise
        assert "promised" in str(replace(report, promised=True).failure)
        assert "required" in str(replace(report, required=True).failure)

    def test_pass_with_a_huge_activation_on_the_first_token(self, model: Models, monkeypatch):
        """Published checkpoints have one. A fault is still found."""
        lm = model("llama", torch.bfloat16)
        lm.decoder.model.embed_tokens.weight.data[SHORT.prefix[0], 5] = 300
        assert verify(lm, SHORT).passed
        PLANTED["every group's positions are off by one"](monkeypatch)
        assert not verify(lm, SHORT).same("dense")

    def test_pass_with_a_single_group_that_has_no_other_to_depend_on(self, model: Models) -> None:
        lm = model("llama")
        report = verify(lm, SelfEnsemble(5, 1).plan(lm, BIRD))
        assert (report.groups, report.influence.pairs, report.passed) == (1, 0, True)


class TestAFaultFails:
    @pytest.mark.parametrize("fault", PLANTED)
    def test_of_one_engine_or_of_all_by_its_numbers_alone(
        self, model: Models, monkeypatch, fault: str
    ) -> None:
        """Without the check of influence, and on a device that promises no equal bits."""
        lm = model("mistral" if fault in WINDOWED else "llama", torch.bfloat16)
        monkeypatch.setattr(verify_module, "influence", lambda *given: Difference())
        PLANTED[fault](monkeypatch)
        report = replace(verify(lm, SHORT), promised=False)
        assert not all(map(report.same, ENGINES))
        assert "not the numbers of the separate runs" in str(report.failure)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_also_a_nan_in_one_row_of_one_engine(self, model: Models, monkeypatch, dtype) -> None:
        real, done = comparison.rows_of, []

        def with_a_nan(lm: LanguageModel, plan: Any, engine: str, *given: Any, **more: Any) -> Any:
            for rows in real(lm, plan, engine, *given, **more):
                if engine == "tree" and not done:
                    rows[-1] = rows[-1].index_fill(1, torch.tensor([7]), math.nan)
                    done.append(engine)
                yield rows

        monkeypatch.setattr(comparison, "rows_of", with_a_nan)
        assert not verify(model("llama", dtype), SHORT).passed

    def test_also_a_group_that_depends_on_another(self, model: Models) -> None:
        report = verify(model("llama"), SHORT)
        assert report.bitwise
        assert "depends on" in str(replace(report, influence=Difference(equal=False)).failure)

    def test_also_a_question_on_which_the_ablations_are_the_same(self, model: Models) -> None:
        blind = model("llama")
        blind.decoder.model.embed_tokens.weight.fill_(1.0)  # every token is the same
        assert "shows nothing" in str(verify(blind, SHORT).failure)

    def test_what_cannot_be_compared_is_refused(self, model: Models, monkeypatch) -> None:
        lm = model("llama")
        for prefix, part in ((SHORT.prefix * 1024, "positions for 1024"), ([10**6], "vocabulary")):
            with pytest.raises(InputError, match=part):
                verify(lm, replace(SHORT, prefix=prefix))
        lm.decoder.model.norm.weight.fill_(math.nan)
        with pytest.raises(InputError, match="overflow"):
            verify(lm, SHORT)
        monkeypatch.setattr("minise.checks.free_bytes", lambda: 1000)
        with pytest.raises(InputError, match="packed tokens need a mask"):
            verify(lm, SHORT)


class TestTheNumbers:
    """They are computed again from the definitions."""

    def states(self, lm: LanguageModel, layout: Layout) -> list[Tensor]:
        with record(lm.refined) as seen:
            exact.forward(lm.refined, layout.tokens, layout.positions, layout.mask)
        return [x[0] for x in (*seen.residual.values(), seen.final)]

    def size(self, rows: Tensor) -> Tensor:
        return rows.double().pow(2).mean(-1).sqrt()

    def test_an_ablation_is_compared_row_by_row(self, model: Models) -> None:
        lm = model("llama")
        plan = SelfEnsemble(2, 4).plan(lm, BIRD)
        flat = pack(plan.prefix, plan.branches)
        packed = self.states(lm, flat.replace(positions=torch.arange(len(flat.tokens))))
        apart, probabilities = [], []
        for prompt, path in zip(plan.prompts, flat.paths(), strict=True):
            separate = self.states(lm, pack(plan.prefix, [prompt.ids]))
            rows = [layer[path] for layer in packed]
            logits, other = (exact.logits(lm.refined, one[-1][-1:]) for one in (separate, rows))
            labels = [x[:, prompt.label_ids] for x in (logits, other)]
            pairs = [*zip(separate, rows, strict=True), labels, (logits, other)]
            apart.append(
                [
                    [float((a - b).abs().max()) for a, b in pairs],
                    [float((self.size(a - b) / self.size(a)).max()) for a, b in pairs],
                ]
            )
            probabilities.append([x[0].softmax(0) for x in labels])
        difference = verify(lm, plan).runs["without_positions"]
        absolute, parts = torch.tensor(apart, dtype=torch.float64).amax(0).tolist()
        most = max(float((p - q).abs().max()) for p, q in probabilities)
        assert difference.absolute.tolist() == pytest.approx([*absolute, most], rel=1e-9)
        assert difference.relative.tolist() == pytest.approx(parts, rel=1e-9)
        changed = sum(int(p.argmax()) != int(q.argmax()) for p, q in probabilities)
        assert 1 < difference.changed == changed < difference.pairs == len(plan.prompts)
        assert not difference.equal

    def test_rounding_is_that_of_the_separate_runs(self, model: Models) -> None:
        lm = model("shipped", torch.bfloat16)
        plan = SelfEnsemble(4, 1).plan(lm, QUESTION)
        wide = replace(lm, decoder=copy.deepcopy(lm.decoder).double())
        expected = [0.0] * (lm.config.num_hidden_layers + 1)
        for prompt in plan.prompts:
            layout = pack(plan.prefix, [prompt.ids])
            pairs = zip(self.states(wide, layout), self.states(lm, layout), strict=True)
            gaps = [float((self.size(a - b.double()) / self.size(a)).max()) for a, b in pairs]
            expected = [max(both) for both in zip(expected, gaps, strict=True)]
        report = verify(lm, plan)
        rounding = report.wide["rounding"]
        assert rounding.relative[:-2].tolist() == pytest.approx(expected)
        # A difference of more than FACTOR times that is not explained.
        allowed = rounding.relative = rounding.relative.clone()
        allowed[1] = report.runs["plain"].relative[1] / FACTOR
        assert report.same("plain")
        allowed[1] *= 0.99
        assert not report.same("plain")

    @pytest.mark.parametrize("wrong", [math.nan, math.inf])
    def test_nan_is_never_within_a_bound_and_no_bound_itself(self, model: Models, wrong) -> None:
        report = verify(model("llama", torch.bfloat16), FEW)
        for run in (report.runs["tree"], report.wide["tree"], report.wide["rounding"]):
            before, numbers = run.relative, run.relative.clone()
            numbers[1], run.relative = wrong, numbers
            assert not report.same("tree")
            run.relative = before
        assert report.same("tree")

    @pytest.mark.parametrize("family", ALL_FAMILIES)
    def test_a_widened_model_is_a_whole_copy_in_float64(self, model: Models, family: str) -> None:
        lm = model(family, torch.bfloat16)
        before = {name: x.clone() for name, x in lm.decoder.state_dict().items()}
        wide, whole = widened(lm), copy.deepcopy(lm.decoder).double()
        given = FLAT.tokens, FLAT.positions, FLAT.mask
        states = wide.decoder(*given)
        assert torch.equal(states, whole(*given))
        assert torch.equal(wide.decoder.logits(states), whole.logits(states))
        refined = replace(lm, decoder=whole).refined
        assert torch.equal(exact.forward(wide.refined, *given), exact.forward(refined, *given))
        assert all(torch.equal(x, before[name]) for name, x in lm.decoder.state_dict().items())

    def test_a_row_is_judged_at_its_own_size_and_the_largest_difference_kept(self) -> None:
        a = torch.tensor([[3.0, 4.0], [300.0, 400.0]], dtype=torch.float64)
        b = torch.tensor([[3.0, 3.0], [300.0, 390.0]], dtype=torch.float64)
        assert relative(a, b) == pytest.approx(0.2)  # 1 of 5, in the first row
        assert relative(a, a[:1]) == math.inf
        apart = Difference()
        apart.add([a, a, a], [a, b, a])
        apart.add([a, a, a], [a, a, a])
        assert (apart.absolute.tolist()[:3], apart.equal) == ([0.0, 10.0, 0.0], False)
        for rows in ([a * math.nan, a, a], [a, a, a]):
            apart.add([a, a, a], rows)
            assert math.isnan(apart.most)


class TestInfluence:
    def test_every_scrambled_token_really_changes(self, tmp_path) -> None:
        """With a vocabulary of 8 tokens, a plain random draw would often repeat the token."""
        lm = load_tiny(tmp_path, {**FAMILIES["llama"], "vocab_size": 8})
        plan = plan_of([1, 2], [[i % 8, 3 * i % 8] for i in range(12)], [3, 1, 2])
        runs: list[Tensor] = []
        embedding = lm.refined.model.embed_tokens
        with embedding.register_forward_hook(lambda _, given, __: runs.append(given[0][0])):
            assert influence(lm, plan).pairs == 12  # every second group, in two engines
        paths = pack(plan.prefix, plan.branches).paths()[::2]
        kept = [(tokens == runs[0]).nonzero().flatten().tolist() for tokens in runs[1:7]]
        assert kept == paths


T = len(FLAT.tokens)
ROWS = [x if x % 4 == 3 else pytest.param(x, marks=pytest.mark.slow) for x in range(T)]


@pytest.mark.parametrize("row", ROWS)
def test_every_wrong_cell_of_a_mask_is_found(model: Models, monkeypatch, row: int) -> None:
    """A cell that shows one group to another, or a group to the prefix, is found by scrambling
    alone; any cell by `verify`."""
    lm = model("llama")
    owner = [-1] * len(PREFIX) + [g for g, branch in enumerate(BRANCHES) for _ in branch]
    assert verify(lm, FEW).passed
    for column in range(T):
        if row == column:
            continue
        wrong = FLAT.mask.clone()
        wrong[row, column] = ~wrong[row, column]
        with monkeypatch.context() as patch:
            patch.setattr(Tree, "mask", property(lambda self, wrong=wrong: wrong))
            if owner[column] not in (-1, owner[row]):
                assert not influence(lm, FEW).equal
            assert not verify(lm, FEW).passed


@pytest.mark.parametrize("after", [0, 4, 30, 60])
def test_nothing_of_the_model_changes_after_a_run_or_a_failure(
    model: Models, monkeypatch, after: int
) -> None:
    lm = model("llama", torch.bfloat16)
    real, left = Reader.attend, [after]

    def state() -> list[Any]:
        modules = [*lm.decoder.modules(), *lm.refined.modules()]
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules]
        return [hooks, [(p.data_ptr(), p.dtype, p.grad) for p in lm.decoder.parameters()]]

    def attend(self: Any, *arguments: Any) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("the device is lost")
        return real(self, *arguments)

    before = state()
    monkeypatch.setattr(Reader, "attend", attend)
    if after:
        with pytest.raises(RuntimeError, match="lost"):
            verify(lm, SHORT)
    else:
        assert verify(lm, SHORT).passed
    assert state() == before
