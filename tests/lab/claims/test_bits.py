"""What equal bits rest on, part by part, on the kernels of this machine; and what follows from it.

A kernel may sum in any order, and may choose the order by the shapes that it is given. So the
decoder of equal bits gives it shapes of which it does not matter to a row which it is in: calls of
numbers of rows that were found to share their bits (test_probe.py holds the finding,
test_hostile.py other machines' kernels), calls of attention with 64 queries or as many as share
their bits. Where a kernel breaks this, a test here says which. The last tests hold what follows
from it: for prompts that end around the borders of blocks, for runs from a cache, for the models
that ship, and on as many kernels as the libraries can be asked for.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from minise import LocalModel, SelfEnsemble, branch_logits, load
from minise.engines import ENGINES
from minise.lab.equal_bits import attention
from minise.lab.equal_bits.attention import BLOCK, FEW, numbers_of_queries
from minise.lab.equal_bits.decoder import EqualBits
from minise.lab.equal_bits.layers import angles_by_block, linear, silu
from minise.lab.equal_bits.probe import NUMBERS
from minise.lab.equal_bits.strict import is_intel
from minise.lab.evaluation.pipeline import join
from minise.lab.writing.cache import extend
from minise.layout import causal_mask
from minise.model import RMSNorm
from minise.prompts import Prompts
from minise.rope import rotate
from tests.reference.support.questions import OTHER, QUESTION
from tests.reference.support.tiny import ALL_FAMILIES, SIZES, make_decoder, read_config

ROOT = Path(__file__).parents[3]
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Inputs and outputs of linear layers: tiny ones, the shipped models', and those of Qwen2-0.5B.
SHAPES = [(32, 16), (48, 32), (36, 24), (192, 512), (512, 192), (896, 128)]
LARGE = [pytest.param(shape, marks=pytest.mark.slow) for shape in ((896, 4864), (4864, 896))]
MANY = (8, 24, 40, 64, 72, 192, 336, 640, 1232, 2048)  # numbers of rows, as they come
FAR, NEAR = slice(0, 192), slice(192, 320)  # keys
NAMES = ("num_attention_heads", "num_key_value_heads", "head_dim")
LAST = pytest.param((14, 2, 64), marks=pytest.mark.slow)  # heads of Qwen2.5-0.5B
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


@pytest.mark.parametrize("shape", [*SHAPES, *LARGE], ids=str)
def test_a_row_of_a_linear_layer(draw: Callable[..., Tensor], shape: tuple[int, int]) -> None:
    """Whatever number of rows run, and wherever among them it stands. Some have a bias."""
    weight, added = draw(*reversed(shape)), draw(shape[1]) if shape[1] % 64 else None
    many = (*NUMBERS[::3], *FEW_OR_MANY, *random.Random(str(shape)).sample(range(1, 1300), k=4))
    rows_stay(lambda x: linear(x, weight, added), draw, shape[0], many=many)


def test_a_row_of_the_norm(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Of a token, and of each head in it."""
    for shape in ((32,), (36,), (896,), (4, 12), (1, 64), (16, 128)):
        norm = RMSNorm(shape[-1], 1e-5).to(dtype).requires_grad_(False)
        norm.weight.copy_(draw(shape[-1]))
        rows_stay(norm, draw, *shape)


def test_a_row_of_what_is_computed_element_by_element(draw: Callable[..., Tensor]) -> None:
    """Of the activation and its product with the gate, and the sum with the stream."""
    for size in (7, 48, 129, 4864):
        rows_stay(lambda x: silu(x) * x + x, draw, size, many=(1, 3, 64, 192, 640))


def test_a_row_of_the_rotation(draw: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Its angles are computed beside those of other positions, its heads turned beside others."""
    for head_dim in (6, 16, 20):
        config = read_config({**SIZES, "model_type": "llama", "head_dim": head_dim})
        at = torch.arange(BLOCK) * 7
        rows = draw(BLOCK, 4, head_dim)
        expected = rotate(rows, *angles_by_block(config, at, dtype))
        for number in (1, 3, *MANY):
            places = torch.randperm(number, generator=torch.Generator().manual_seed(1))[:BLOCK]
            positions = torch.full((number,), 900).index_copy(0, places, at[: len(places)])
            among = draw(number, 4, head_dim).index_copy(0, places, rows[: len(places)])
            turned = rotate(among, *angles_by_block(config, positions, dtype))
            assert torch.equal(turned[places], expected[: len(places)])


@pytest.mark.parametrize(("hidden_size", "tied"), [(32, False), (896, True)])
def test_a_logit_among_other_rows(
    draw: Callable[..., Tensor], dtype: torch.dtype, hidden_size: int, tied: bool
) -> None:
    raw = {**SIZES, "hidden_size": hidden_size, "num_hidden_layers": 1, "model_type": "llama"}
    model = EqualBits(make_decoder({**raw, "tie_word_embeddings": tied}, dtype))
    hidden = draw(3, hidden_size)
    whole = model.logits(hidden)
    for number in (1, 64, 65, 300):
        among = torch.cat([draw(number, hidden_size), hidden])
        assert torch.equal(model.logits(among)[number:], whole)


def test_a_total_among_other_rows(dtype: torch.dtype) -> None:
    """The log of the sum of exp over a large vocabulary, with one thread and with two."""
    wide = torch.promote_types(dtype, torch.float32)
    row = torch.randn(1, 49152, generator=torch.Generator().manual_seed(0), dtype=wide) * 3
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        alone = row.logsumexp(dim=-1)
        for number in (2, 7, 33, 64):
            assert torch.equal(row.repeat(number, 1).logsumexp(dim=-1), alone.expand(number))
    torch.set_num_threads(before)


def attention_call(*arguments: Tensor) -> Tensor:
    """What is read, and after it the log of the sum: (N, Q, H, h + 1)."""
    out, sums = attention.attention_call(*arguments)
    return torch.cat([out.to(sums.dtype), sums[..., None]], dim=-1)


@pytest.mark.parametrize("heads", [(4, 2, 8), (3, 3, 6), (6, 2, 20), LAST], ids=str)
class TestAttention:
    """A call of attention_call: 64 queries, S keys. Far keys may be any multiple of 64."""

    KEYS = (64, 128, 192, 576, 1024, 1600)

    def call(
        self, draw: Callable[..., Tensor], heads: tuple[int, int, int], S: int, calls: int = 1
    ) -> tuple[Tensor, Tensor, Tensor]:
        H, K, h = heads
        return draw(calls, BLOCK, H, h), draw(calls, S, K, h), draw(calls, S, K, h)

    def test_few_queries(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """Some of 64 queries, in calls of fewer and of more, under a mask and without."""
        config = SimpleNamespace(**dict(zip(NAMES, heads, strict=True)))
        model = SimpleNamespace(config=config, dtype=draw(1).dtype, device=torch.device("cpu"))
        numbers = set(numbers_of_queries(model)) - {BLOCK}
        assert numbers <= {*FEW, *attention.MANY}
        for S in self.KEYS:
            q, k, v = self.call(draw, heads, S)
            mask = causal_mask(S)[None, -BLOCK:]
            expected, far = attention_call(q, k, v, mask), attention_call(q, k, v)
            for place in (0, 5, 33, 63):
                for number in numbers:
                    some = draw(1, number, *q.shape[2:])
                    some[:, 0], same = q[:, place], mask[:, place, None].expand(-1, number, -1)
                    found = attention_call(some, k, v, same)[:, 0]
                    assert torch.equal(found, expected[:, place]), (S, number)
                    found = attention_call(some, k, v)[:, 0]
                    assert torch.equal(found, far[:, place]), (S, number)

    def test_few_queries_are_tried(
        self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, heads: tuple[int, int, int]
    ) -> None:
        """Where a call of 8 or 32 sums in another order than one of 64, it is not taken."""
        config = SimpleNamespace(**dict(zip(NAMES, heads, strict=True)))
        model = SimpleNamespace(config=config, dtype=dtype, device=torch.device("cpu"))
        real, before = attention.attention_call, numbers_of_queries(model)

        def other_order(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Any:
            if q.shape[1] in (8, 32):
                k, v, mask = k.flip(1), v.flip(1), None if mask is None else mask.flip(2)
            return real(q, k, v, mask)

        monkeypatch.setattr(attention, "attention_call", other_order)
        assert numbers_of_queries(model) == tuple(n for n in before if n not in (8, 32))

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
                    far, together = attention_call(q, k, v)[0], attention_call(*many)[place]
                    assert torch.equal(together, far)

    def test_two_parts(self, draw: Callable[..., Tensor], heads: tuple[int, int, int]) -> None:
        """Far and near keys, joined, beside others; and that it is the softmax over both."""
        q, k, v = (x.double().to(x.dtype) for x in self.call(draw, heads, 320))
        parts = [attention.attention_call(q, k[:, some], v[:, some]) for some in (FAR, NEAR)]
        whole, (expected, sums) = attention.attention_call(q, k, v), attention.joined(*parts)
        for a, b in zip(whole, (expected, sums), strict=True):
            assert (a - b).abs().max() <= 16 * torch.finfo(q.dtype).eps
        for rows in (1, 7, 64):
            pair = [
                (out[:, :rows].repeat(3, 1, 1, 1), s[:, :rows].repeat(3, 1, 1)) for out, s in parts
            ]
            assert torch.equal(attention.joined(*pair)[0][2], expected[0, :rows])
        blind = torch.zeros(1, BLOCK, 192, dtype=torch.bool)
        unseen = attention.attention_call(q, k[:, FAR], v[:, FAR], blind)
        for found, one in zip(attention.joined(parts[1], unseen), parts[1], strict=True):
            assert torch.equal(found, one.to(found.dtype))


def ends(decoder: EqualBits, engine: str, prefix: list[int], branches: list[list[int]]) -> Tensor:
    with torch.inference_mode():
        return ENGINES[engine](decoder, prefix, branches)


TWO = pytest.param(2, marks=pytest.mark.slow, id="two threads")


@pytest.fixture(params=[pytest.param(1, id="one thread"), TWO])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


BORDERS = (64, 128, 192, 512)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_the_engines_agree_where_prompts_end_around_a_border(
    dtype: torch.dtype, threads: int, family: str
) -> None:
    """Prefixes that end one token before, at and after the border of a block, and branches that
    cross the next one. The second family has windows."""
    decoder = EqualBits(make_decoder(ALL_FAMILIES[family], dtype))
    word = random.Random(0)
    branches = [word.choices(range(50, 53), k=length) for length in (1, 2, 7, 66)]
    branches.append(branches[3][:64] + branches[2])
    for border in BORDERS:
        for length in (border - 1, border, border + 1):
            case = word.choices(range(50, 53), k=length), branches
            expected = ends(decoder, "separate", *case)
            assert expected.isfinite().all()
            for engine in ("packed", "tree"):
                assert torch.equal(ends(decoder, engine, *case), expected), (engine, length)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_run_in_pieces_has_the_bits_of_the_whole_run(dtype: torch.dtype, family: str) -> None:
    """Wherever it is cut: all tokens, from a cache that grows by pieces of any length."""
    decoder = EqualBits(make_decoder(ALL_FAMILIES[family], dtype))
    for seed, T in enumerate((70, 150, 300)):
        word = random.Random(seed)
        tokens, mask = torch.tensor(word.choices(range(30, 250), k=T)), causal_mask(T)
        positions = torch.arange(T)
        cuts = [0, *sorted(word.sample(range(1, T), 5)), T]
        pieces, cache = [], None
        with torch.inference_mode():
            whole = decoder(tokens, positions, mask)
            for a, b in pairwise(cuts):
                piece, cache = extend(decoder, tokens[a:b], positions[a:b], mask[a:b, :b], cache)
                pieces.append(piece)
        assert torch.equal(torch.cat(pieces), whole), cuts


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("tiny-llama", torch.bfloat16),
        ("tiny-mistral", torch.float32),
        ("tiny-qwen2", torch.float64),
        ("tiny-qwen2", torch.float16),
    ],
    ids=str,
)
def test_the_shipped_models_give_equal_bits_however_they_are_run(
    name: str, dtype: torch.dtype
) -> None:
    """A question as separate, packed and tree; split over two passes; joined with other prompts,
    of which some are longer than two blocks; in a pass with another question."""
    lm = load(f"weights/{name}", dtype=dtype, equal_bits=True)
    assert isinstance(lm, LocalModel)
    method = SelfEnsemble(group_size=4, trials=6)
    _, prompts = method.prompts(lm, QUESTION)
    prefix, branches = prompts.prefix, prompts.branches
    word = random.Random(0)
    others = [word.choices(range(50, 300), k=length) for length in (20, 64, 150)]
    others.append(others[2][:100] + others[1])
    whole = [prefix + branch for branch in branches] + others
    expected = branch_logits(lm, [], whole, "separate")
    assert expected.isfinite().all()
    for engine in ("packed", "tree"):
        assert torch.equal(branch_logits(lm, [], whole, engine), expected), engine
        mine = branch_logits(lm, prefix, branches, engine)
        assert torch.equal(mine, expected[: len(branches)]), engine
    half = len(branches) // 2
    parts = [branch_logits(lm, prefix, part) for part in (branches[:half], branches[half:])]
    assert torch.equal(torch.cat(parts), expected[: len(branches)])
    _, other = method.prompts(lm, OTHER)
    assert same_answers(lm, join([prompts, other]), prompts)


def same_answers(lm: LocalModel, several: Prompts, first: Prompts) -> bool:
    """Whether the first prompts of a pass have the labels' logits and totals of a separate run."""
    beside = lm.logits(several)
    alone = lm.with_engine("separate").logits(first)
    for a, b in zip(beside, alone, strict=False):
        if not (torch.equal(a.labels, b.labels) and torch.equal(a.total, b.total)):
            return False
    return True


# What the libraries can be asked for, so that they choose other kernels: fewer instructions, the
# order of another processor, the strict order. On some processors some of it changes nothing.
SETTINGS: dict[str, dict[str, str]] = {
    "AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "no vectors": {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"},
    "order of AVX2": {"MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "strict": {"MKL_CBWR": "AUTO,STRICT", "DNNL_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    """Seen on a Xeon of family 6, model 207, with commit 61fece6 too."""
    if name == "strict" or not is_intel():
        return []
    return [pytest.mark.xfail(reason="MKL on Intel's processors rounds by the number of rows")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(x, marks=marks_of(x)) for x in SETTINGS])
def test_the_engines_agree_on_other_kernels(name: str) -> None:
    """With these variables: all families, in all dtypes."""
    tests = ["tests/lab/claims/test_properties.py", "-k", "test_the_engines_agree"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, **SETTINGS[name]}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
