"""Equal bits on kernels that no machine here has: planted ones, which sum in another order for
another number of rows (hostile.py). So the promise does not rest on the kernels of the machine on
which it was written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minise import (
    Decoder,
    LanguageModel,
    Question,
    SelfEnsemble,
    branch_logits,
    generate,
    load,
    self_ensemble,
)
from minise.engines import run_alone
from minise.exact import run as exact
from minise.exact.layers import FixedSiLU
from minise.exact.probe import Shape, measure, numbers_for
from minise.layout import causal_mask
from minise.method import label_logits
from minise.rounds import pass_logits
from minise.writing.generation import _Branches
from tests.support.hostile import KERNELS, ClassOf, linear_by, plant
from tests.support.tiny import FAMILIES, write_checkpoint

ENGINES = ("separate", "dense", "tree")
PAIRS = [(dtype, name) for dtype, kernels in KERNELS.items() for name in kernels]
# Each family in each dtype, and the one with most facts on the worst kernel.
FAMILY = {pair: "qwen2" if pair[1] == "no two alike" else "llama" for pair in PAIRS}
FAMILY |= {pair: "mistral" for pair in PAIRS if pair[1] == "two threads"}
LENGTHS = (1, 5, 20, 33, 64, 70)
# How far `plain`, which sums as each call of the kernel likes, may be from the other engines.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2.0}


@dataclass(frozen=True)
class Planted:
    """A kernel in its place, and a model that was loaded on it."""

    dtype: torch.dtype
    class_of: ClassOf
    folder: Path
    lm: LanguageModel


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return {family: write_checkpoint(folder / family, raw) for family, raw in FAMILIES.items()}


@pytest.fixture(scope="class", params=PAIRS, ids=lambda p: f"{str(p[0])[6:]}, {p[1]}")
def planted(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Planted]:
    dtype, name = request.param
    class_of = KERNELS[dtype][name]
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant(monkeypatch, class_of)
        folder = folders[FAMILY[request.param]]
        yield Planted(dtype, class_of, folder, load(folder, dtype=dtype))


def prompts(seed: int, most: int = 5) -> tuple[list[int], list[list[int]]]:
    """A prefix, and branches that begin with parts of one another."""
    draw = random.Random(seed)

    def word() -> list[int]:
        return draw.choices(range(50, 53), k=draw.choice(LENGTHS))

    prefix, branches = word(), [word()]
    while len(branches) < most:
        branches.append(branches[-1][: draw.randrange(len(branches[-1]) + 1)] + word())
    return prefix, branches


@pytest.mark.parametrize(("dtype", "name"), PAIRS)
def test_the_kernels_are_hostile(dtype: torch.dtype, name: str) -> None:
    """In calls of one number of rows they repeat themselves and are blind to a row's place and
    neighbours. Another class gives other bits, with plain random numbers."""
    class_of = KERNELS[dtype][name]
    linear, draw = linear_by(class_of), torch.Generator().manual_seed(0)
    weight, row = (torch.randn(n, 48, generator=draw).to(dtype) for n in (32, 1))
    by_number: dict[int, Tensor] = {}
    for rows in (1, 2, 5, 8, 16, 31, 64, 100, 160, 192, 256, 320, 400, 640):
        one = [
            linear(
                torch.randn(rows, 48, generator=draw).to(dtype).index_copy(0, place, row), weight
            )
            for place in (torch.tensor([0]), torch.tensor([rows // 2]), torch.tensor([rows - 1]))
        ]
        results = [one[0][0], one[1][rows // 2], one[2][rows - 1]]
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
        number = class_of(rows)
        assert torch.equal(by_number.setdefault(number, results[0]), results[0])
    distinct = list(by_number.values())
    assert len(distinct) >= 2
    for i, bits in enumerate(distinct):
        assert not any(torch.equal(bits, other) for other in distinct[:i])
        assert (bits.double() - F.linear(row.double(), weight.double())[0]).abs().max() < 0.5


class TestPlanted:
    """Models that are loaded where a hostile kernel is already in place."""

    def test_what_is_promised_fails_on_them_without_the_refinement(self, planted: Planted) -> None:
        """The layers of the definition, driven by the same engines: the bits differ. So the tests
        below can see what they look for."""
        decoder = Decoder(planted.lm.config).to(planted.dtype).requires_grad_(False)
        decoder.load_state_dict(planted.lm.decoder.state_dict())
        bare = replace(planted.lm, decoder=decoder)
        # A short prompt, and more than 192 tokens in all.
        word = random.Random(0).choices(range(50, 280), k=200)
        case = word[:2], [word[2:6], word[6:70], word[70:135], word[135:]]
        expected = branch_logits(bare, *case, "separate")
        for engine in ("dense", "tree"):
            assert not torch.equal(branch_logits(bare, *case, engine), expected)

    def test_the_engines_agree_to_the_last_bit(self, planted: Planted) -> None:
        """And with any division into passes, and with other questions in the pass; `plain` agrees
        within rounding."""
        lm = planted.lm
        (prefix, branches), other = prompts(1, 4), prompts(2, 2)
        expected = branch_logits(lm, prefix, branches, "separate")
        assert expected.isfinite().all()
        beside = branch_logits(lm, *other, "separate")
        whole = [start + branch for start, each in ((prefix, branches), other) for branch in each]
        for engine in ("dense", "tree"):
            assert torch.equal(branch_logits(lm, prefix, branches, engine), expected)
            assert torch.equal(branch_logits(lm, [], whole, engine), torch.cat([expected, beside]))
        parts = [branch_logits(lm, prefix, part) for part in (branches[:2], branches[2:])]
        assert torch.equal(torch.cat(parts), expected)
        plain = branch_logits(lm, prefix, branches, "plain")
        assert (plain - expected).abs().max() <= ROUNDING[planted.dtype]

    def test_a_logit_among_other_columns_and_rows(self, planted: Planted) -> None:
        lm, (prefix, branches) = planted.lm, prompts(3)
        columns = random.Random(0).sample(range(288), k=70)
        together = branch_logits(lm, prefix, branches, columns=columns)
        for engine in ENGINES:
            alone = branch_logits(lm, prefix, branches[:1], engine, columns=columns[5:6])
            assert torch.equal(alone[0, 0], together[0, 5])

    def test_a_batch_gives_each_item_what_it_has_alone(self, planted: Planted) -> None:
        decoder, draw = planted.lm.decoder, torch.Generator().manual_seed(1)
        tokens = torch.randint(50, 280, (2, 3, 21), generator=draw)
        positions = torch.arange(21) + torch.tensor([0, 9, 40])[:, None]
        mask = causal_mask(21)
        together = exact.forward(decoder, tokens, positions, mask)
        for i in range(2):
            for j in range(3):
                alone = exact.forward(decoder, tokens[i, j], positions[j], mask)
                assert torch.equal(together[i, j], alone)

    def test_a_token_that_comes_alone_has_the_bits_of_a_whole_run(self, planted: Planted) -> None:
        """Prompts that grow side by side, one of them over the end of a block."""
        lm, draw = planted.lm, random.Random(4)
        ids = [draw.choices(range(50, 280), k=k) for k in (3, 40, 62)]
        ids.append(ids[2][:50])
        tree = _Branches(lm.decoder)
        hidden = tree.start(ids)
        for _ in range(4):
            whole = torch.stack([run_alone(lm, prompt)[-1] for prompt in ids])
            assert torch.equal(hidden, whole)
            assert torch.equal(
                exact.logits(lm.decoder, hidden[1:]), exact.logits(lm.decoder, whole)[1:]
            )
            new = draw.choices(range(50, 280), k=len(ids))
            ids = [[*prompt, token] for prompt, token in zip(ids, new, strict=True)]
            hidden = tree.step(new)

    def test_what_is_written_does_not_depend_on_what_is_written_beside_it(
        self, planted: Planted
    ) -> None:
        prefix, branches = prompts(5, 3)
        ids = [prefix + branch for branch in branches]
        settings = {"max_new_tokens": 3, "temperature": 1.0, "stop": []}
        together = generate(planted.lm, ids, **settings)
        assert together == [generate(planted.lm, [one], **settings)[0] for one in ids]

    def test_an_answer_does_not_depend_on_engine_or_passes(
        self, planted: Planted, question: Question
    ) -> None:
        lm = planted.lm
        answers = [
            self_ensemble(lm, question, group_size=3, trials=1, engine=engine) for engine in ENGINES
        ]
        for answer in answers[1:]:
            assert torch.equal(answer.probabilities, answers[0].probabilities)
            assert torch.equal(answer.scores, answers[0].scores)
        plans = [SelfEnsemble(3, 1).plan(lm, question, seed) for seed in range(2)]
        by_itself = [label_logits(lm, plan) for plan in plans]
        for together, rows in zip(pass_logits(lm, plans, "tree"), by_itself, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(together, rows, strict=True))

    def test_layers_in_4_bits(self, planted: Planted) -> None:
        lm = load(planted.folder, dtype=planted.dtype, quantize="nf4")
        case = prompts(6)
        expected = branch_logits(lm, *case, "separate")
        for engine in ("dense", "tree"):
            assert torch.equal(branch_logits(lm, *case, engine), expected)

    def test_the_numbers_of_rows_are_of_one_class(self, planted: Planted) -> None:
        shape = Shape(32, 48, False, planted.dtype, torch.get_num_threads())
        assert len({planted.class_of(number) for number in numbers_for(shape)}) == 1


@pytest.mark.parametrize(("dtype", "name"), PAIRS)
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 16), (32, 32), (48, 32), (32, 48)])
def test_the_probe_joins_no_two_classes(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, name: str, inputs: int, outputs: int
) -> None:
    """Not even for layers so small that few values tell them apart, with all numbers of rows."""
    monkeypatch.setattr("minise.exact.probe.computes_16_bits", lambda: True)
    class_of = KERNELS[dtype][name]
    plant(monkeypatch, class_of)
    for numbers in measure(Shape(inputs, outputs, False, dtype, 1)):
        assert len(set(map(class_of, numbers))) == 1


@pytest.mark.parametrize("dtype", KERNELS)
def test_a_kernel_that_changes_after_loading(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """As the number of threads may: its numbers of rows are found anew."""
    lm, case = load(folders["llama"], dtype=dtype), prompts(7)
    before = branch_logits(lm, *case, "separate")
    for name, class_of in KERNELS[dtype].items():
        with monkeypatch.context() as patched:
            plant(patched, class_of)
            expected = branch_logits(lm, *case, "separate")
            assert not torch.equal(expected, before), name
            for engine in ("dense", "tree"):
                assert torch.equal(branch_logits(lm, *case, engine), expected), name
    assert torch.equal(branch_logits(lm, *case, "tree"), before)


class TestActivation:
    """Values that do not fill a vector at the end of a tensor, or of a thread's part of it, may be
    computed in another way. With odd widths a row's values come to lie there or not."""

    ROWS = (1, 2, 3, 8, 100, 131, 800, 1016, 2440, 4681)

    def moved(
        self, width: int, dtype: torch.dtype, compute: Callable[[Tensor], Tensor]
    ) -> list[int]:
        """The numbers of rows in which some row has other bits than alone."""
        draw = torch.Generator().manual_seed(0)
        row = (3 * torch.randn(1, width, generator=draw)).to(dtype)
        alone = compute(row)
        return [
            rows
            for rows in self.ROWS
            if not torch.equal(compute(row.repeat(rows, 1)), alone.expand(rows, -1))
        ]

    @pytest.mark.parametrize("threads", [1, 2, 3, 4])
    def test_a_row_at_any_place(self, threads: int) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
                for width in (7, 41, 129):
                    assert self.moved(width, dtype, FixedSiLU()) == []
        finally:
            torch.set_num_threads(threads)

    def test_a_kernel_with_another_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The last elements that do not fill a vector of 16 are rounded up; so are those of each
        part of 8,192, as if threads had shared it."""

        def silu(x: Tensor) -> Tensor:
            out, flat = torch.empty_like(x), x.reshape(-1)
            for whole, piece in zip(out.view(-1).split(40000), flat.split(40000), strict=True):
                whole[:] = piece.sigmoid() * piece
                end = len(piece) - len(piece) % 16
                whole[end:] = whole[end:].nextafter(torch.tensor(9.0))
            return out

        monkeypatch.setattr(F, "silu", silu)
        assert self.moved(41, torch.float32, F.silu) != []
        assert self.moved(41, torch.float32, FixedSiLU()) == []
