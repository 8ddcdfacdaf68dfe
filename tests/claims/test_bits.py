"""What the equality of bits rests on, part by part, on the kernels of this machine.

A kernel may sum in any order, and may choose the order by the shapes that it is given. So minise
gives it shapes of which it does not matter to a row which it is in: calls of numbers of rows that
were found to share their bits (test_probe.py holds the finding, test_hostile.py other machines'
kernels), calls of attention with 64 queries or 8. Where a kernel breaks this, a test here says
which. The last tests hold what follows from it for the models that ship, and on as many kernels as
the libraries can be asked for.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minise import Decoder, SelfEnsemble, branch_logits, load
from minise.commands.options import QUESTION
from minise.exact import attention
from minise.exact.attention import BLOCK, FEW, attention_call
from minise.exact.layers import FixedRotary, FixedSiLU, linear
from minise.exact.probe import NUMBERS, Shape, numbers_for
from minise.exact.run import logits
from minise.layout import causal_mask
from minise.loading.config_json import config_from_dict
from minise.model import RMSNorm
from minise.rope import rotate
from tests.support.tiny import ALL_FAMILIES, SIZES, randomise, write_checkpoint

ROOT = Path(__file__).parents[2]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Inputs and outputs of linear layers: tiny ones, the shipped models', and those of Qwen2-0.5B.
SHAPES = [(32, 32), (32, 16), (48, 32), (36, 24), (192, 64), (192, 512), (512, 192), (896, 128)]
LARGE = [(896, 4864), (4864, 896)]
MANY = (8, 24, 40, 64, 72, 192, 336, 640, 1232, 2048)  # numbers of rows, as they come
FEW_OR_MANY = (1, 2, 3, 7, 65, 200, 513, 640)


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).split(".")[1])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def draw(dtype: torch.dtype) -> Callable[..., Tensor]:
    """draw(64, 32): random numbers of that shape."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(shape, generator=generator).to(dtype)


def rows_stay(
    compute: Callable[[Tensor], Tensor],
    draw: Callable[..., Tensor],
    *shape: int,
    many: tuple[int, ...] = MANY,
) -> None:
    """64 rows of `shape`, or some of them, give the same bits in random places among others."""
    rows = draw(BLOCK, *shape)
    expected = compute(rows)
    for number in many:
        places = torch.randperm(number, generator=torch.Generator().manual_seed(number))[:BLOCK]
        among = draw(number, *shape).index_copy(0, places, rows[: len(places)])
        assert torch.equal(compute(among)[places], expected[: len(places)]), number
        assert torch.equal(compute(among[None])[0, places], expected[: len(places)]), number


def test_a_row_of_one_call(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """In calls of one shape, of each number of rows that was chosen: at any place, beside any
    others. The kernel itself is called."""
    for inputs, outputs in [*SHAPES, (41, 24), (129, 32)]:
        weight, row = draw(outputs, inputs), draw(1, inputs)
        shape = Shape(inputs, outputs, False, dtype, torch.get_num_threads())
        bits = []
        for number in numbers_for(shape):
            for place in {0, number // 3, number - 1}:
                among = draw(number, inputs).index_copy(0, torch.tensor([place]), row)
                bits.append(F.linear(among, weight)[place])
        assert all(torch.equal(one, bits[0]) for one in bits), shape


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_of_a_linear_layer(
    draw: Callable[..., Tensor], shape: tuple[int, int], bias: bool
) -> None:
    """Whatever number of rows run, and wherever among them it stands."""
    weight, added = draw(*reversed(shape)), draw(shape[1]) if bias else None
    numbers = random.Random(str(shape)).sample(range(1, 1300), k=6)
    many = (*NUMBERS, *FEW_OR_MANY, *numbers)
    rows_stay(lambda x: linear(x, weight, added), draw, shape[0], many=many)


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_a_row_of_a_large_linear_layer(draw: Callable[..., Tensor], shape: tuple[int, int]) -> None:
    weight = draw(*reversed(shape))
    rows_stay(lambda x: linear(x, weight), draw, shape[0], many=(1, 5, 80, 130))


def test_a_linear_layer_computes_what_it_should(draw: Callable[..., Tensor]) -> None:
    """The definition's, within rounding, for a batch as for a row; of no rows nothing."""
    weight, added, x = draw(24, 36), draw(24), draw(3, 5, 36)
    expected = F.linear(x.double(), weight.double(), added.double())
    size = F.linear(x.double().abs(), weight.double().abs(), added.double().abs())
    assert (
        (linear(x, weight, added) - expected).abs() <= 3 * torch.finfo(x.dtype).eps * size
    ).all()
    assert linear(x[:0], weight, added).shape == (0, 5, 24)
    assert linear(x[0, 0], weight).shape == (24,)


def test_a_row_of_the_norm(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    for size in (32, 36, 896):
        norm = RMSNorm(size, 1e-5).to(dtype).requires_grad_(False)
        norm.weight.copy_(draw(size))
        rows_stay(norm, draw, size)


def test_a_row_of_the_norm_of_each_head(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    for heads, head_dim in ((4, 12), (2, 12), (1, 64), (16, 128)):
        norm = RMSNorm(head_dim, 1e-6).to(dtype).requires_grad_(False)
        norm.weight.copy_(draw(head_dim))
        rows_stay(norm, draw, heads, head_dim, many=(*FEW_OR_MANY, *MANY))


def test_a_row_of_what_is_computed_element_by_element(draw: Callable[..., Tensor]) -> None:
    """Of the activation and its product with the gate, and the sum with the stream."""
    activation = FixedSiLU()
    for size in (7, 48, 129, 4864):
        rows_stay(lambda x: activation(x) * x + x, draw, size, many=(1, 3, 64, 192, 640))


def test_a_row_of_the_rotation(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Its angles are computed beside those of other positions, its heads turned beside others."""
    for head_dim in (6, 16, 20):
        config = config_from_dict({**SIZES, "model_type": "llama", "head_dim": head_dim})
        angles, at = FixedRotary(config), torch.arange(BLOCK) * 7
        rows = draw(BLOCK, 4, head_dim)
        expected = rotate(rows, *angles(at, dtype))
        for number in (1, 3, *MANY):
            places = torch.randperm(number, generator=torch.Generator().manual_seed(1))[:BLOCK]
            positions = torch.full((number,), 900).index_copy(0, places, at[: len(places)])
            among = draw(number, 4, head_dim).index_copy(0, places, rows[: len(places)])
            turned = rotate(among, *angles(positions, dtype))
            assert torch.equal(turned[places], expected[: len(places)])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("hidden_size", [32, 896])
def test_a_logit_among_other_rows_and_other_columns(
    draw: Callable[..., Tensor], dtype: torch.dtype, hidden_size: int, tied: bool
) -> None:
    """Each column alone, and in the first, the last and any other place of up to 200."""
    raw = {**SIZES, "hidden_size": hidden_size, "num_hidden_layers": 1, "model_type": "llama"}
    model = Decoder(config_from_dict({**raw, "tie_word_embeddings": tied})).to(dtype)
    randomise(model.requires_grad_(False), seed=1)
    hidden, columns = draw(3, hidden_size), torch.arange(200)
    expected = torch.cat([logits(model, hidden, columns[i : i + 1]) for i in columns], dim=1)
    whole = logits(model, hidden)
    for number in (2, 63, 64, 65, 128, 200):
        for first in (0, 200 - number):
            numbers = columns[first : first + number]
            for order in (numbers, numbers.flip(0)):
                assert torch.equal(logits(model, hidden, order), expected[:, order]), number
    for number in (1, 64, 65, 300):
        among = torch.cat([draw(number, hidden_size), hidden])
        assert torch.equal(logits(model, among, columns)[number:], expected)
        assert torch.equal(logits(model, among)[number:], whole)


@pytest.mark.parametrize("heads", [(4, 2, 8), (3, 3, 6), (6, 2, 20), (14, 2, 64)], ids=str)
class TestAttention:
    """A call of attention_call: 64 queries, S keys."""

    KEYS = (64, 128, 192, 576, 1024)

    def call(
        self, draw: Callable[..., Tensor], heads: tuple[int, int, int], S: int, calls: int = 1
    ) -> tuple[Tensor, Tensor, Tensor]:
        H, K, h = heads
        return draw(calls, BLOCK, H, h), draw(calls, S, K, h), draw(calls, S, K, h)

    def test_other_queries(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """Half of the queries are others, and see other keys."""
        for S in self.KEYS:
            q, k, v = self.call(draw, heads, S)
            mask = causal_mask(S)[None, -BLOCK:]
            expected = attention_call(q, k, v, mask)
            real = torch.arange(BLOCK) % 2 == 0
            q[:, ~real], mask = draw(*q.shape)[:, ~real], mask.clone()
            mask[:, ~real] = True
            assert torch.equal(attention_call(q, k, v, mask)[:, real], expected[:, real]), S

    def test_few_queries(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """One of 64 queries, in a call of 8: how a token that comes alone reads."""
        for S in self.KEYS:
            q, k, v = self.call(draw, heads, S)
            mask = causal_mask(S)[None, -BLOCK:]
            expected = attention_call(q, k, v, mask)
            for place in (0, 5, 33, 63):
                few = draw(1, FEW, *q.shape[2:])
                few[:, 0], few_mask = q[:, place], mask[:, place, None].expand(-1, FEW, -1)
                assert torch.equal(attention_call(few, k, v, few_mask)[:, 0], expected[:, place]), S

    def test_few_queries_are_tried(
        self,
        dtype: torch.dtype,
        monkeypatch: pytest.MonkeyPatch,
        heads: tuple[int, int, int],
    ) -> None:
        """Where a call of 8 sums in another order than one of 64, 64 are taken."""
        attention._few_queries.cache_clear()
        assert attention._few_queries(heads, dtype, 1) in (FEW, BLOCK)
        attention._few_queries.cache_clear()

        def other_order(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
            assert {x.dtype for x in (q, k, v)} == {dtype}
            if q.shape[1] == FEW:
                k, v, mask = k.flip(1), v.flip(1), mask.flip(2)
            return attention_call(q, k, v, mask)

        monkeypatch.setattr(attention, "attention_call", other_order)
        assert attention._few_queries(heads, dtype, 1) == BLOCK
        attention._few_queries.cache_clear()

    def test_masked_keys(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """What is masked may be anything, huge numbers too. Its weight is exactly 0."""
        for S in self.KEYS:
            q, k, v = self.call(draw, heads, S)
            visible = torch.arange(S) % 3 > 0  # nobody sees a third of the keys
            mask = causal_mask(S)[None, -BLOCK:] & visible
            mask[:, :, S - BLOCK + 1] = True
            visible[S - BLOCK + 1] = True
            expected = attention_call(q, k, v, mask)
            for scale in (1, 1e4):
                k[:, ~visible], v[:, ~visible] = (scale * draw(*k.shape)[:, ~visible] for _ in "kv")
                assert torch.equal(attention_call(q, k, v, mask), expected), (S, scale)

    def test_other_calls(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """In any place among any number of calls, each with a mask of its own or all with one."""
        for S in (64, 192, 576):
            q, k, v = self.call(draw, heads, S)
            mask = causal_mask(S)[None, -BLOCK:]
            expected = attention_call(q, k, v, mask)[0]
            for number in (2, 3, 16):
                for place in {0, 1, number - 1}:
                    many = self.call(draw, heads, S, number)
                    for among, one in zip(many, (q, k, v), strict=True):
                        among[place] = one[0]
                    several = torch.ones(number, BLOCK, S, dtype=torch.bool)
                    several[place] = mask[0]
                    for masks in (several, mask):
                        assert torch.equal(attention_call(*many, masks)[place], expected)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral", "tiny-qwen2"])
def test_the_shipped_models_give_equal_bits_however_they_are_run(
    name: str, dtype: torch.dtype
) -> None:
    """A question as separate, dense and tree; split over two passes; joined with other prompts,
    of which some are longer than two blocks."""
    lm = load(f"weights/{name}", dtype=dtype)
    plan = SelfEnsemble(group_size=4, trials=6).plan(lm, QUESTION)
    prefix, branches = plan.prefix, plan.branches
    word = random.Random(0)
    others = [word.choices(range(50, 300), k=length) for length in (20, 64, 150)]
    others.append(others[2][:100] + others[1])
    whole = [prefix + branch for branch in branches] + others
    expected = branch_logits(lm, [], whole, "separate")
    assert expected.isfinite().all()
    for engine in ("dense", "tree"):
        assert torch.equal(branch_logits(lm, [], whole, engine), expected), engine
        mine = branch_logits(lm, prefix, branches, engine)
        assert torch.equal(mine, expected[: len(branches)]), engine
    half = len(branches) // 2
    parts = [branch_logits(lm, prefix, part) for part in (branches[:half], branches[half:])]
    assert torch.equal(torch.cat(parts), expected[: len(branches)])


WITH_SETTINGS = """
import hashlib, itertools, random, sys, torch
from minise import branch_logits, load
word = random.Random(0)
prefix = word.choices(range(50, 280), k=70)
branches = [word.choices(range(50, 52), k=k) for k in (1, 6, 33, 60)]
for threads in map(int, sys.argv[1].split(",")):
    torch.set_num_threads(threads)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for folder in sys.argv[2:]:
            lm = load(folder, dtype=dtype)
            for engine in ("separate", "dense", "tree"):
                logits = branch_logits(lm, prefix, branches, engine)
                bits = hashlib.sha256(logits.view(torch.uint8).numpy().tobytes()).hexdigest()
                print(threads, str(dtype)[6:], folder.split("/")[-1], engine, bits, sep=",")
"""
# What the libraries can be asked for, so that they choose other kernels: fewer instructions, the
# order of another processor, the strict order. On some processors some of it changes nothing.
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "no vectors": {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
    "order of AVX2": {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "strict": {"MKL_CBWR": "AUTO,STRICT", "DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_engines_agree_on_other_kernels(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """With these variables and two threads, or 1, 2 and 4: separate, dense and tree are equal bit
    for bit.

    Whether one thread gives the bits of two is up to the kernels and no promise of minise. It is
    recorded in the report (`pytest --junit-xml`).
    """
    folders: list[object] = [
        write_checkpoint(tmp_path / family, ALL_FAMILIES[family]) for family in ("qwen2", "qwen3")
    ]
    threads = "2"
    if name == "as it is":
        folders, threads = [*folders, "weights/tiny-llama"], "1,2,4"
    # A thread that waits must not take the core of one that works: tests run beside one another.
    set_ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **SETTINGS[name]}
    command = [sys.executable, "-c", WITH_SETTINGS, threads, *map(str, folders)]
    run = subprocess.run(command, cwd=ROOT, env=set_, capture_output=True, text=True, check=True)
    bits: dict[tuple[str, str, str], list[str]] = {}
    for line in run.stdout.split():
        *key, _, digest = line.split(",")
        bits.setdefault((key[0], key[1], key[2]), []).append(digest)
    assert len(bits) == len(threads.split(",")) * len(DTYPES) * len(folders)
    for key, digests in bits.items():
        assert digests == [digests[0]] * 3, key
    for (_, dtype, model), digests in bits.items():
        record_property(f"{dtype}, {model}: any threads", digests == bits["2", dtype, model])
