"""Equal bits on kernels that no machine here has: planted ones, which sum in another order for
another number of rows (hostile.py). So the promise does not rest on the kernels of the machine on
which it was written.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minise import LocalModel, Question, SelfEnsemble, branch_logits, generate, load
from minise.lab.equal_bits.layers import silu as fixed_silu
from minise.lab.equal_bits.probe import Shape, measure, numbers_for
from minise.lab.evaluation.pipeline import join
from minise.lab.writing import generation
from minise.layout import causal_mask
from tests.lab.support.hostile import KERNELS, ClassOf, linear_by, plant
from tests.reference.support.tiny import FAMILIES, write_checkpoint

PAIRS = [(dtype, name) for dtype, kernels in KERNELS.items() for name in kernels]
# The family with most facts on the worst kernel.
FAMILY = {"no two alike": "qwen2", "two threads": "mistral"}
LENGTHS = (1, 5, 20, 33, 64, 70)
# How far the plain decoder, which sums as each call of the kernel likes, may be from equal bits.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 2.0}


@dataclass(frozen=True)
class Planted:
    """A kernel in its place, and a model that was loaded on it: with equal bits, and plain."""

    class_of: ClassOf
    folder: Path
    lm: LocalModel
    plain: LocalModel


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return {family: write_checkpoint(folder / family, raw) for family, raw in FAMILIES.items()}


@pytest.fixture(scope="class", params=PAIRS, ids=lambda p: f"{str(p[0])[6:]}, {p[1]}")
def planted(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Planted]:
    dtype, name = request.param
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant(monkeypatch, KERNELS[dtype][name])
        folder = folders[FAMILY.get(name, "llama")]
        lm, plain = (load(folder, dtype=dtype, equal_bits=equal) for equal in (True, False))
        assert isinstance(lm, LocalModel)
        assert isinstance(plain, LocalModel)
        yield Planted(KERNELS[dtype][name], folder, lm, plain)


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
    """In calls of one number of rows they are blind to a row's place and neighbours. Another class
    gives other bits, with plain random numbers."""
    class_of, draw = KERNELS[dtype][name], torch.Generator().manual_seed(0)
    weight, row = (torch.randn(n, 48, generator=draw).to(dtype) for n in (32, 1))
    by_class: dict[int, Tensor] = {}
    for rows in (1, 2, 5, 8, 16, 31, 64, 100, 160, 192, 256, 320, 400, 640):
        for place in (0, rows // 2, rows - 1):
            among = torch.randn(rows, 48, generator=draw).to(dtype)
            among[place] = row
            bits = linear_by(class_of)(among, weight)[place]
            assert torch.equal(by_class.setdefault(class_of(rows), bits), bits)
    distinct = list(by_class.values())
    assert len(distinct) >= 2
    for i, bits in enumerate(distinct):
        assert not any(torch.equal(bits, other) for other in distinct[:i])
        assert (bits.double() - F.linear(row.double(), weight.double())[0]).abs().max() < 0.5


class TestPlanted:
    """Models that are loaded where a hostile kernel is already in place."""

    def test_what_is_promised_fails_on_them_without_equal_bits(self, planted: Planted) -> None:
        """With the plain decoder the same engines give other bits. So the tests below can see what
        they look for."""
        # A short prompt, and more than 192 tokens in all.
        word = random.Random(0).choices(range(50, 280), k=200)
        case = word[:2], [word[2:6], word[6:70], word[70:135], word[135:]]
        expected = branch_logits(planted.plain, *case, "separate")
        for engine in ("packed", "tree"):
            assert not torch.equal(branch_logits(planted.plain, *case, engine), expected)

    def test_the_engines_agree_to_the_last_bit(self, planted: Planted) -> None:
        """And with any division into passes, with other questions in the pass, and with other
        columns; the plain decoder agrees within rounding."""
        lm = planted.lm
        (prefix, branches), other = prompts(1, 4), prompts(2, 2)
        expected = branch_logits(lm, prefix, branches, "separate")
        assert expected.isfinite().all()
        beside = branch_logits(lm, *other, "separate")
        whole = [start + branch for start, each in ((prefix, branches), other) for branch in each]
        for engine in ("packed", "tree"):
            assert torch.equal(branch_logits(lm, prefix, branches, engine), expected)
            assert torch.equal(branch_logits(lm, [], whole, engine), torch.cat([expected, beside]))
        parts = [branch_logits(lm, prefix, part) for part in (branches[:2], branches[2:])]
        assert torch.equal(torch.cat(parts), expected)
        for engine in ("separate", "packed", "tree"):
            plain = branch_logits(planted.plain, prefix, branches, engine)
            assert (plain - expected).abs().max() <= ROUNDING[lm.decoder.dtype]

    def test_what_is_written_does_not_depend_on_what_is_written_beside_it(
        self, planted: Planted, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each new token has the bits of a whole run, so the next one is its largest logit."""
        prefix, branches = prompts(5, 3)
        ids = [prefix + branch for branch in branches]
        monkeypatch.setattr(generation, "stop_tokens", lambda lm: [])
        settings = {"max_new_tokens": 3, "temperature": 1.0}
        together = generate(planted.lm, ids, **settings)
        assert together == [generate(planted.lm, [one], **settings)[0] for one in ids]
        (written,) = generate(planted.lm, [ids[0]], 3)
        for place, token in enumerate(written.tokens):
            whole = torch.tensor(ids[0] + written.tokens[:place])
            T = len(whole)
            hidden = planted.lm.decoder(
                whole, torch.arange(T), causal_mask(T), torch.tensor([T - 1])
            )
            assert int(planted.lm.decoder.logits(hidden).argmax()) == token

    def test_questions_may_share_a_pass(self, planted: Planted, question: Question) -> None:
        lm, method = planted.lm, SelfEnsemble(3, 1)
        several = [method.prompts(lm, question, seed)[1] for seed in range(2)]
        by_itself = []
        for prompts in several:
            by_itself.extend(lm.with_engine("separate").logits(prompts))
        for together, alone in zip(lm.logits(join(several)), by_itself, strict=True):
            assert torch.equal(together.labels, alone.labels)
            assert torch.equal(together.total, alone.total)

    def test_layers_in_4_bits(self, planted: Planted) -> None:
        dtype = planted.lm.decoder.dtype
        lm = load(planted.folder, dtype=dtype, quantize="nf4", equal_bits=True)
        expected = branch_logits(lm, *prompts(6), "separate")
        for engine in ("packed", "tree"):
            assert torch.equal(branch_logits(lm, *prompts(6), engine), expected)

    def test_the_numbers_of_rows_are_of_one_class(self, planted: Planted) -> None:
        """Not even for layers so small that few values tell two classes apart."""
        for inputs, outputs in ((32, 16), (32, 32), (48, 32), (32, 48)):
            shape = Shape(inputs, outputs, False, planted.lm.decoder.dtype, 1)
            assert len(set(map(planted.class_of, numbers_for(shape)))) == 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("minise.lab.equal_bits.probe.computes_16_bits", lambda: True)
                for numbers in measure(shape):
                    assert len(set(map(planted.class_of, numbers))) == 1


def test_an_activation_at_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that do not fill a vector at the end of a tensor, or of a thread's part of it, may be
    computed in another way: by this machine's kernels with 1 to 3 threads, and by a planted one, in
    which the last elements that do not fill a vector of 16 are rounded up; so are those of each
    part of 40,000. With odd widths a row's values come to lie there or not."""

    def moved(width: int, dtype: torch.dtype, compute: Callable[[Tensor], Tensor]) -> list[int]:
        """The numbers of rows in which some row has other bits than alone."""
        draw = torch.Generator().manual_seed(0)
        row = (3 * torch.randn(1, width, generator=draw)).to(dtype)
        together = {n: compute(row.repeat(n, 1)) for n in (1, 2, 3, 8, 100, 131, 800, 2440, 4681)}
        alone = compute(row)
        return [n for n, out in together.items() if not torch.equal(out, alone.expand(n, -1))]

    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            assert [moved(width, dtype, fixed_silu) for width in (7, 41, 129)] == [[]] * 3
    torch.set_num_threads(before)

    def silu(x: Tensor) -> Tensor:
        out, flat = torch.empty_like(x), x.reshape(-1)
        for whole, piece in zip(out.view(-1).split(40000), flat.split(40000), strict=True):
            whole[:] = piece.sigmoid() * piece
            end = len(piece) - len(piece) % 16
            whole[end:] = whole[end:].nextafter(torch.tensor(9.0))
        return out

    monkeypatch.setattr(F, "silu", silu)
    assert moved(41, torch.float32, F.silu) != []
    assert moved(41, torch.float32, fixed_silu) == []
