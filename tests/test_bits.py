"""What the equality of bits rests on: kernels that give a row the same bits wherever it stands.

A kernel may sum in any order, but it must choose the order by what minise fixes: the number of rows
is a multiple of 8, a call of attention has 64 queries or 8. Where a kernel breaks this, a test here
says which. The last tests hold what follows from it for the models that ship.
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
from minise.attention import BLOCK, FEW, masked_attention
from minise.commands.options import QUESTION
from minise.config_json import config_from_dict
from minise.layout import causal_mask
from minise.model import RMSNorm
from minise.rope import cos_sin, rotate
from tests.tiny import SIZES, randomise

ROOT = Path(__file__).parents[1]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Inputs and outputs of linear layers: tiny ones, the shipped models', and those of Qwen2-0.5B.
SHAPES = [(32, 32), (32, 16), (48, 32), (36, 24), (192, 64), (192, 512), (512, 192), (896, 128)]
LARGE = [(896, 4864), (4864, 896)]
MANY = (8, 24, 40, 64, 72, 192, 336, 640, 1232, 2048)  # numbers of rows


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


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_of_a_linear_layer(
    draw: Callable[..., Tensor], shape: tuple[int, int], bias: bool
) -> None:
    weight, added = draw(*reversed(shape)), draw(shape[1]) if bias else None
    rows_stay(lambda x: F.linear(x, weight, added), draw, shape[0])


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_a_row_of_a_large_linear_layer(draw: Callable[..., Tensor], shape: tuple[int, int]) -> None:
    weight = draw(*reversed(shape))
    rows_stay(lambda x: F.linear(x, weight), draw, shape[0], many=(64, 80, 192))


def test_a_row_of_the_norm(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    for size in (32, 36, 896):
        norm = RMSNorm(size, 1e-5).to(dtype).requires_grad_(False)
        norm.weight.copy_(draw(size))
        rows_stay(norm, draw, size)


def test_a_row_of_what_is_computed_element_by_element(draw: Callable[..., Tensor]) -> None:
    """Of the activation and its product with the gate, and the sum with the stream."""
    for size in (48, 4864):
        rows_stay(lambda x: F.silu(x) * x + x, draw, size, many=(64, 192, 640))


def test_a_row_of_the_rotation(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Its angles are computed beside those of other positions, its heads turned beside others."""
    config = config_from_dict({**SIZES, "model_type": "llama", "head_dim": 16})
    at = torch.arange(BLOCK) * 7
    rows = draw(BLOCK, 4, 16)
    expected = rotate(rows, *cos_sin(config, at[:, None], dtype))
    for number in MANY:
        places = torch.randperm(number, generator=torch.Generator().manual_seed(1))[:BLOCK]
        positions = torch.full((number,), 900).index_copy(0, places, at[: len(places)])
        among = draw(number, 4, 16).index_copy(0, places, rows[: len(places)])
        turned = rotate(among, *cos_sin(config, positions[:, None], dtype))
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
    expected = torch.cat([model.logits(hidden, columns[i : i + 1]) for i in columns], dim=1)
    for number in (2, 63, 64, 65, 128, 200):
        for first in (0, 200 - number):
            asked = columns[first : first + number]
            for order in (asked, asked.flip(0)):
                assert torch.equal(model.logits(hidden, order), expected[:, order]), number
    for number in (1, 64, 65, 300):
        among = torch.cat([draw(number, hidden_size), hidden])
        assert torch.equal(model.logits(among, columns)[number:], expected)


@pytest.mark.parametrize("heads", [(4, 2, 8), (3, 3, 16), (14, 2, 64), (8, 1, 32)], ids=str)
class TestAttention:
    """A call of masked_attention: 64 queries, S keys."""

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
            expected = masked_attention(q, k, v, mask)
            kept = torch.arange(BLOCK) % 2 == 0
            q[:, ~kept], mask = draw(*q.shape)[:, ~kept], mask.clone()
            mask[:, ~kept] = True
            assert torch.equal(masked_attention(q, k, v, mask)[:, kept], expected[:, kept]), S

    def test_few_queries(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """One of 64 queries, in a call of 8: how a token that comes alone reads."""
        for S in self.KEYS:
            q, k, v = self.call(draw, heads, S)
            mask = causal_mask(S)[None, -BLOCK:]
            expected = masked_attention(q, k, v, mask)
            for place in (0, 5, 33, 63):
                few = draw(1, FEW, *q.shape[2:])
                few[:, 0], own = q[:, place], mask[:, place, None].expand(-1, FEW, -1)
                assert torch.equal(masked_attention(few, k, v, own)[:, 0], expected[:, place]), S

    def test_masked_keys(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """What is masked may be anything, huge numbers too. Its weight is exactly 0."""
        for S in self.KEYS:
            q, k, v = self.call(draw, heads, S)
            seen = torch.arange(S) % 3 > 0  # nobody sees a third of the keys
            mask = causal_mask(S)[None, -BLOCK:] & seen
            mask[:, :, S - BLOCK + 1] = True
            seen[S - BLOCK + 1] = True
            expected = masked_attention(q, k, v, mask)
            for scale in (1, 1e4):
                k[:, ~seen], v[:, ~seen] = (scale * draw(*k.shape)[:, ~seen] for _ in "kv")
                assert torch.equal(masked_attention(q, k, v, mask), expected), (S, scale)

    def test_other_calls(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """In any place among any number of calls, each with a mask of its own or all with one."""
        for S in (64, 192, 576):
            q, k, v = self.call(draw, heads, S)
            mask = causal_mask(S)[None, -BLOCK:]
            expected = masked_attention(q, k, v, mask)[0]
            for number in (2, 3, 16):
                for place in {0, 1, number - 1}:
                    many = self.call(draw, heads, S, number)
                    for among, one in zip(many, (q, k, v), strict=True):
                        among[place] = one[0]
                    own = torch.ones(number, BLOCK, S, dtype=torch.bool)
                    own[place] = mask[0]
                    for masks in (own, mask):
                        assert torch.equal(masked_attention(*many, masks)[place], expected)


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


WITH_THREADS = """
import hashlib, sys, torch
from minise import SelfEnsemble, branch_logits, load
from minise.commands.options import QUESTION
torch.set_num_threads(int(sys.argv[1]))
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    lm = load("weights/tiny-llama", dtype=dtype)
    plan = SelfEnsemble(group_size=4, trials=1).plan(lm, QUESTION)
    branches = [*plan.branches, list(range(20, 160))]
    for engine in ("separate", "tree"):
        logits = branch_logits(lm, plan.prefix, branches, engine)
        print(hashlib.sha256(logits.view(torch.uint8).numpy().tobytes()).hexdigest())
"""


def test_one_thread_or_two(record_property: Callable[[str, object], None]) -> None:
    """With two threads as with one, separate and tree are equal bit for bit.

    Whether one thread gives the bits of two is up to the kernels and no promise of minise. It is
    recorded in the report (`pytest --junit-xml`). Many threads can do more harm: with eight, MKL
    splits long float64 sums (896 or more inputs, 256 or 512 outputs) where there are few rows.
    """
    bits = {}
    # A thread that waits must not take the core of one that works: tests run beside one another.
    calm = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    for threads in (1, 2):
        command = [sys.executable, "-c", WITH_THREADS, str(threads)]
        run = subprocess.run(
            command, cwd=ROOT, env=calm, capture_output=True, text=True, check=True
        )
        bits[threads] = run.stdout.split()
        assert len(bits[threads]) == 2 * len(DTYPES)
        assert bits[threads][::2] == bits[threads][1::2], threads
    record_property("one thread and two give equal bits", bits[1] == bits[2])
