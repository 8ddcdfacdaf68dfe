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
from minise import InputError, LocalModel, pack, record
from minise.attention import Chunk
from minise.commands.options import QUESTION
from minise.engines import ENGINES
from minise.layout import Layout
from minise.verify.comparison import (
    Difference,
    Rows,
    in_float64,
    influence,
    one_prompt,
    relative,
    rows_of,
)
from minise.verify.verify import ABLATIONS, FACTOR, PACKED, SAME, verify
from tests.reference.support.tiny import ALL_FAMILIES, FAMILIES, load_tiny
from tests.reference.verify.cases import (
    BIRD,
    DTYPES,
    SHORT,
    Models,
    each_dtype,
    fails_by_numbers,
    group_prompts,
    prompts_of,
    rounding_noise,
)
from tests.reference.verify.planted import PLANTED, WINDOWED

PREFIX, BRANCHES = [0, 50, 60], [[70, 80], [90, 80], [70, 30]]
FLAT = pack(PREFIX, BRANCHES)
FEW = prompts_of(PREFIX, BRANCHES, [70, 80, 90])
RUNS = [*PACKED, *ABLATIONS]


class Leaking:
    """A decoder that is not ours: a part of what it says is said without the mask."""

    def __init__(self, decoder: Any, size: float) -> None:
        self.decoder, self.size = decoder, size
        self.logits, self.device, self.dtype = decoder.logits, decoder.device, decoder.dtype

    def __call__(self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Any = None) -> Tensor:
        right = self.decoder(tokens, positions, mask, rows)
        causal = torch.ones_like(mask).tril()
        return right + self.size * (self.decoder(tokens, positions, causal, rows) - right)


class Late:
    """A decoder that is not ours. Of several prompts in a row it runs the last `late` positions too
    late, from its tenth token on."""

    def __init__(self, decoder: Any, late: int) -> None:
        self.decoder, self.late = decoder, late
        self.logits, self.device, self.dtype = decoder.logits, decoder.device, decoder.dtype

    def __call__(self, tokens: Tensor, positions: Tensor, mask: Tensor, rows: Any = None) -> Tensor:
        positions = positions.clone()
        if len(tokens) > 33:  # no prompt alone has so many
            positions[-11:] += self.late
        return self.decoder(tokens, positions, mask, rows)


class TestCorrectEngines:
    def test_have_label_logits_that_can_be_compared_wherever_the_model_runs(
        self, model: Models
    ) -> None:
        lm = model("llama", torch.bfloat16)
        prompt = one_prompt(SHORT, 0)
        for rows in rows_of(lm, prompt, "separate"):
            assert (rows.labels.dtype, rows.labels.device.type) == (torch.float64, "cpu")

    @pytest.mark.parametrize(
        ("name", "dtype"),
        [
            *(("shipped", dtype) for dtype in DTYPES),
            *((family, torch.bfloat16) for family in ("llama", "mistral", "qwen2")),
        ],
    )
    def test_are_the_same_up_to_rounding(
        self, model: Models, name: str, dtype: torch.dtype
    ) -> None:
        lm = model(name, dtype)
        shipped = name == "shipped"
        prompts = group_prompts(lm, QUESTION if shipped else BIRD, 4 if shipped else 2, 1)
        report = verify(lm, prompts)
        assert report.passed, report.failure
        assert not report.equal_bits
        assert report.influence.pairs > 0
        assert report.groups == len(prompts.branches)
        assert report.tokens == sum(len(prompts.prefix) + len(b) for b in prompts.branches)
        assert list(report.runs) == RUNS
        own = ["rounding"] * (dtype != torch.float64)
        assert list(report.wide) == [*RUNS, *own]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_leave_the_ablations_far_outside_the_float64_verdict(
        self, model: Models, dtype: torch.dtype
    ) -> None:
        """Also where rounding in the model's own dtype would hide them."""
        report = verify(model("llama", dtype), SHORT)
        if rounding := report.wide.get("rounding"):
            rounding.relative.states = torch.ones_like(rounding.relative.states)
            rounding.relative.labels = rounding.relative.logits = torch.tensor(1.0)
        assert report.passed
        for name in ABLATIONS:
            assert not report.same(name)
            assert report.wide[name].most > 1e6 * SAME

    @each_dtype
    def test_pass_on_another_device_that_rounds_in_another_way(
        self, model: Models, monkeypatch, dtype: torch.dtype
    ) -> None:
        """But not where equal bits are promised: tests/lab/equal_bits."""
        lm = model("mistral", dtype)
        prompts = group_prompts(lm, BIRD, 2, 1)
        rounding_noise(monkeypatch)
        report = verify(lm, prompts)
        assert not report.bitwise
        assert report.passed, report.failure

    def test_pass_with_a_huge_activation_on_the_first_token(self, model: Models, monkeypatch):
        """Published checkpoints have one. A fault is still found."""
        lm = model("llama", torch.bfloat16)
        lm.decoder.model.embed_tokens.weight.data[SHORT.prefix[0], 5] = 300
        assert verify(lm, SHORT).passed
        PLANTED["every group's positions are off by one"](monkeypatch)
        assert not verify(lm, SHORT).same("packed")

    def test_pass_with_a_single_group_that_has_no_other_to_depend_on(self, model: Models) -> None:
        lm = model("llama")
        report = verify(lm, group_prompts(lm, BIRD, 5, 1))
        assert (report.groups, report.influence.pairs, report.passed) == (1, 0, True)


class TestAFaultFails:
    @pytest.mark.parametrize("fault", PLANTED)
    def test_of_one_engine_or_of_all_by_its_numbers_alone(
        self, model: Models, monkeypatch, fault: str
    ) -> None:
        """Without the check of influence."""
        name = "mistral" if fault in WINDOWED else "llama"
        lm = model(name, torch.bfloat16)
        monkeypatch.setattr(verify_module, "influence", lambda *given: Difference())
        PLANTED[fault](monkeypatch)
        report = verify(lm, SHORT)
        fails_by_numbers(report)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_also_a_nan_in_one_row_of_one_engine(self, model: Models, monkeypatch, dtype) -> None:
        real, done = comparison.rows_of, []

        def with_a_nan(lm: LocalModel, prompts: Any, engine: str, *given: Any) -> Any:
            for rows in real(lm, prompts, engine, *given):
                if engine == "tree" and not done:
                    done.append(engine)
                    logits = rows.logits.index_fill(1, torch.tensor([7]), math.nan)
                    rows = replace(rows, logits=logits)
                yield rows

        monkeypatch.setattr(verify_module, "rows_of", with_a_nan)
        assert not verify(model("llama", dtype), SHORT).passed
        assert done

    def test_also_a_group_that_depends_on_another(self, model: Models) -> None:
        report = verify(model("llama"), SHORT)
        moved = Difference(equal=False)
        moved.relative.labels = torch.tensor(1e-9)
        assert "depends on" in str(replace(report, influence=moved).failure)

    def test_also_a_decoder_of_ones_own_that_leaks_a_little(self, model: Models) -> None:
        """A tenth of the difference without the mask once passed in all dtypes, later 5% in
        bfloat16 and 0.03% in float32."""
        leaks = {
            torch.float64: 1e-4,
            torch.float32: 3e-4,
            torch.bfloat16: 5e-2,
            torch.float16: 1e-2,
        }
        for dtype, leak in leaks.items():
            lm = model("llama", dtype)
            for size, passes in ((0.0, True), (leak, False)):
                other = replace(lm, decoder=Leaking(lm.decoder, size))
                assert verify(other, SHORT).passed == passes

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_also_a_decoder_of_ones_own_with_a_fault_that_no_token_shows(
        self, model: Models, dtype: torch.dtype
    ) -> None:
        """No group reads another: what is wrong is where a branch stands, or what a mask weighs."""
        lm = model("llama", dtype)
        assert verify(replace(lm, decoder=Late(lm.decoder, 0)), SHORT).passed
        report = verify(replace(lm, decoder=Late(lm.decoder, 1)), SHORT)
        assert "not the numbers of the separate runs" in str(report.failure)

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
        monkeypatch.setattr("minise.memory.free_bytes", lambda: 1000)
        with pytest.raises(InputError, match="packed tokens need a mask"):
            verify(model("llama"), SHORT)


class TestTheNumbers:
    """They are computed again from the definitions."""

    def states(self, lm: LocalModel, layout: Layout) -> list[Tensor]:
        """After each layer (T, D), but of the ends after the top layer and the norm."""
        with record(lm.decoder) as seen:
            lm.decoder(layout.tokens, layout.positions, layout.mask, layout.ends)
        return [x[0] for x in (*seen.residual.values(), seen.final)]

    def size(self, rows: Tensor) -> Tensor:
        return rows.double().pow(2).mean(-1).sqrt()

    def test_an_ablation_is_compared_row_by_row(self, model: Models) -> None:
        lm = model("llama")
        prompts = group_prompts(lm, BIRD, 2, 4)
        flat = pack(prompts.prefix, prompts.branches)
        in_order = torch.arange(len(flat.tokens))
        packed = self.states(lm, replace(flat, positions=in_order))
        apart, probabilities = [], []
        for group, path in enumerate(flat.paths()):
            branch, label_ids = prompts.branches[group], prompts.label_ids[group]
            separate = self.states(lm, pack(prompts.prefix, [branch]))
            rows = [layer[path] for layer in packed[:-2]]
            rows += [layer[group : group + 1] for layer in packed[-2:]]
            logits, other = (lm.decoder.logits(one[-1]) for one in (separate, rows))
            labels = [lm.decoder.logits(one[-1])[..., label_ids] for one in (separate, rows)]
            pairs = [*zip(separate, rows, strict=True), labels, (logits, other)]
            apart.append(
                [
                    [float((a - b).abs().max()) for a, b in pairs],
                    [float((self.size(a - b) / self.size(a)).max()) for a, b in pairs],
                ]
            )
            probabilities.append([x[0].softmax(0) for x in labels])
        difference = verify(lm, prompts).runs["without-positions"]
        absolute, parts = torch.tensor(apart, dtype=torch.float64).amax(0).tolist()
        most = max(float((p - q).abs().max()) for p, q in probabilities)
        assert difference.absolute.every.tolist() == pytest.approx(absolute, rel=1e-9)
        assert difference.relative.every.tolist() == pytest.approx(parts, rel=1e-9)
        assert float(difference.probabilities) == pytest.approx(most, rel=1e-9)
        changed = sum(int(p.argmax()) != int(q.argmax()) for p, q in probabilities)
        assert 1 < difference.changed == changed < difference.pairs == len(prompts.branches)
        assert not difference.equal

    def test_rounding_is_that_of_the_separate_runs(self, model: Models) -> None:
        lm = model("shipped", torch.bfloat16)
        prompts = group_prompts(lm, QUESTION, 4, 1)
        wide = replace(lm, decoder=copy.deepcopy(lm.decoder).double())
        expected = [0.0] * (lm.config.num_hidden_layers + 1)
        for branch in prompts.branches:
            layout = pack(prompts.prefix, [branch])
            pairs = zip(self.states(wide, layout), self.states(lm, layout), strict=True)
            gaps = [float((self.size(a - b.double()) / self.size(a)).max()) for a, b in pairs]
            expected = [max(both) for both in zip(expected, gaps, strict=True)]
        report = verify(lm, prompts)
        rounding = report.wide["rounding"].relative
        assert rounding.states.tolist() == pytest.approx(expected)
        # A difference of more than FACTOR times that is not explained.
        rounding.states = rounding.states.clone()
        rounding.states[1] = report.runs["tree"].relative.states[1] / FACTOR
        assert report.same("tree")
        rounding.states[1] *= 0.99
        assert not report.same("tree")

    @pytest.mark.parametrize("wrong", [math.nan, math.inf])
    def test_nan_is_never_within_a_bound_and_no_bound_itself(self, model: Models, wrong) -> None:
        report = verify(model("llama", torch.bfloat16), FEW)
        for run in (report.runs["tree"], report.wide["tree"], report.wide["rounding"]):
            before = run.relative.states
            numbers = before.clone()
            numbers[1] = wrong
            run.relative.states = numbers
            assert not report.same("tree")
            run.relative.states = before
        assert report.same("tree")

    @pytest.mark.parametrize("family", ALL_FAMILIES)
    def test_a_model_in_float64_is_a_whole_copy_in_float64(
        self, model: Models, family: str
    ) -> None:
        lm = model(family, torch.bfloat16)
        before = {name: x.clone() for name, x in lm.decoder.state_dict().items()}
        whole = copy.deepcopy(lm.decoder).double()
        given = FLAT.tokens, FLAT.positions, FLAT.mask
        with in_float64(lm.decoder):
            assert lm.decoder.dtype == torch.float64
            states = lm.decoder(*given)
            assert torch.equal(states, whole(*given))
            assert torch.equal(lm.decoder.logits(states), whole.logits(states))
        assert lm.decoder.dtype == torch.bfloat16
        assert all(torch.equal(x, before[name]) for name, x in lm.decoder.state_dict().items())

    def test_a_row_is_judged_at_its_own_size_and_the_largest_difference_kept(self) -> None:
        a = torch.tensor([[3.0, 4.0], [300.0, 400.0]], dtype=torch.float64)
        b = torch.tensor([[3.0, 3.0], [300.0, 390.0]], dtype=torch.float64)
        assert relative(a, b) == pytest.approx(0.2)  # 1 of 5, in the first row
        assert relative(a, a[:1]) == math.inf
        apart = Difference()
        apart.add(Rows([a], a, a), Rows([a], b, a))
        apart.add(Rows([a], a, a), Rows([a], a, a))
        assert (apart.absolute.every.tolist(), apart.equal) == ([0.0, 10.0, 0.0], False)
        apart.add(Rows([a], a, a), Rows([a[:1]], a, a))
        assert float(apart.absolute.states) == math.inf
        for rows in (Rows([a * math.nan], a, a), Rows([a], a, a)):
            apart.add(Rows([a], a, a), rows)
            assert math.isnan(apart.most)


class TestInfluence:
    def test_every_scrambled_token_really_changes(self, tmp_path) -> None:
        """With a vocabulary of 8 tokens, a plain random draw would often repeat the token."""
        lm = load_tiny(tmp_path, {**FAMILIES["llama"], "vocab_size": 8})
        branches = [[i % 8, 3 * i % 8] for i in range(12)]
        prompts = prompts_of([1, 2], branches, [3, 1, 2])
        runs: list[Tensor] = []
        embedding = lm.decoder.model.embed_tokens
        with embedding.register_forward_hook(lambda _, given, __: runs.append(given[0][0])):
            assert influence(lm, prompts).pairs == 12  # every second group, in two engines
        paths = pack(prompts.prefix, prompts.branches).paths()[::2]
        kept = [(tokens == runs[0]).nonzero().flatten().tolist() for tokens in runs[1:7]]
        assert kept == paths


T = len(FLAT.tokens)
ROWS = [x if x % 4 == 3 else pytest.param(x, marks=pytest.mark.slow) for x in range(T)]


@pytest.mark.parametrize("row", ROWS)
def test_every_wrong_cell_of_a_mask_is_found(model: Models, monkeypatch, row: int) -> None:
    """A cell that shows one group to another, or a group to the prefix, is found by scrambling
    alone; any cell by `verify`, without a definition."""
    lm = replace(model("llama"), definition=None)
    owner = [-1] * len(PREFIX) + [g for g, branch in enumerate(BRANCHES) for _ in branch]
    assert verify(lm, FEW).passed
    for column in range(T):
        if row == column:
            continue
        wrong = FLAT.mask.clone()
        wrong[row, column] = ~wrong[row, column]
        with monkeypatch.context() as patch:
            real = vars(Layout)["mask"]
            # The tree has fewer rows, and stays as it is.
            mask = lambda self, wrong=wrong, real=real: (  # noqa: E731
                wrong if len(self.tokens) == len(wrong) else real.func(self)
            )
            patch.setattr(Layout, "mask", property(mask))
            if owner[column] not in (-1, owner[row]):
                found = influence(lm, FEW)
                assert not found.equal
                assert found.most > SAME
            assert not verify(lm, FEW).passed


@pytest.mark.parametrize("after", [0, 4, 30, 60])
def test_nothing_of_the_model_changes_after_a_run_or_a_failure(
    model: Models, monkeypatch, after: int
) -> None:
    lm = model("llama", torch.bfloat16)
    real, left = Chunk.read, [after]
    engines = dict(ENGINES)

    def state() -> list[Any]:
        hooks = [
            len(module._forward_hooks) + len(module._forward_pre_hooks)
            for module in lm.decoder.modules()
        ]
        parameters = [(p.data_ptr(), p.dtype, p.grad) for p in lm.decoder.parameters()]
        return [hooks, parameters, set(vars(lm.decoder))]

    def read(self: Any, *arguments: Any) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("the device is lost")
        return real(self, *arguments)

    before = state()
    monkeypatch.setattr(Chunk, "read", read)
    if after:
        with pytest.raises(RuntimeError, match="lost"):
            verify(lm, SHORT)
    else:
        assert verify(lm, SHORT).passed
    assert state() == before
    assert engines == ENGINES
