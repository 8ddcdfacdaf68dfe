"""What holds for every tree of prompts, held against random ones.

Branches begin alike, begin one another, are equal or empty; windows bite; prompts are longer than
one or two blocks of attention. Under equal bits engines are compared bit for bit, in every dtype.
The plain decoder, which sums as each call of a kernel likes, is compared within rounding.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("hypothesis", reason="it draws the trees; the extra [test] has it")

from hypothesis import given
from hypothesis import strategies as st

from minise import LocalModel, branch_logits, pack
from minise.lab.equal_bits.decoder import EqualBits
from tests.reference.support.cases import cases
from tests.reference.support.tiny import ALL_FAMILIES, load_tiny

MORE = [pytest.param(x, marks=pytest.mark.slow) for x in (torch.float64, torch.float16)]
DTYPES = (torch.float32, torch.bfloat16, *MORE)
VOCABULARY = range(50, 53)  # few ids, so that branches that do not copy one another meet too
LENGTHS = (0, 1, 2, 5, 20, 33, 50, 63, 64, 65, 130)  # around one block and beyond two

# How far the plain decoder may be from equal bits, in a hidden state and a logit of a few units:
# what is seen is a quarter of it or less.
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 1.5, torch.float16: 0.2}

Prompts = tuple[list[int], list[list[int]]]  # prefix and branches
Models = dict[str, LocalModel]  # by family


def equal(lm: LocalModel) -> LocalModel:
    """The model with equal bits, over the same parameters."""
    return replace(lm, decoder=EqualBits(lm.decoder))


@st.composite
def prompts(draw: st.DrawFn, lengths: Sequence[int] = LENGTHS, most: int = 6) -> Prompts:
    """A prefix, and branches that each begin with a part, possibly all, of the one before it."""
    word = random.Random(draw(st.integers(0, 2**16)))
    prefix = word.choices(VOCABULARY, k=draw(st.sampled_from(lengths)))
    branches: list[list[int]] = []
    for _ in range(draw(st.integers(1, most))):
        model = branches[-1] if branches else []
        shared = draw(st.integers(0, len(model)))
        rest = word.choices(VOCABULARY, k=draw(st.sampled_from(lengths)))
        # No prefix and an empty branch would be an empty prompt.
        branches.append(model[:shared] + rest or ([] if prefix else word.choices(VOCABULARY)))
    return prefix, branches


# Where a width is not a multiple of a vector, or the bytes of a row are not a multiple of 16,
# kernels treat the end or the beginning of a row in another way. Real models have no such widths;
# forks may.
ODD = {"hidden_size": 13, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6}
MODELS: dict[str, dict[str, Any]] = {
    **ALL_FAMILIES,
    "odd": {**ALL_FAMILIES["mistral"], **ODD, "intermediate_size": 7, "sliding_window": 1},
    "odder": {**ALL_FAMILIES["qwen3"], "hidden_size": 35, "head_dim": 96, "intermediate_size": 129},
    "wide": {**ALL_FAMILIES["llama"], "hidden_size": 36, "head_dim": 20, "vocab_size": 301},
}
families = st.sampled_from(list(MODELS))


@pytest.fixture(scope="module", params=DTYPES, ids=lambda dtype: str(dtype).split(".")[1])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A tiny random model of each family, all in one dtype."""
    folder = tmp_path_factory.mktemp("property")
    return {
        family: load_tiny(folder / family, raw, dtype=request.param)
        for family, raw in MODELS.items()
    }


@cases(20)
@given(family=families, case=prompts())
def test_the_engines_agree(models: Models, family: str, case: Prompts) -> None:
    """Under equal bits: hidden states at the ends and logits of tree, packed and separate runs."""
    lm = equal(models[family])
    expected = lm.with_engine("separate").hidden_at_ends(*case)
    assert expected.isfinite().all()
    logits = branch_logits(lm, *case, engine="separate")
    for engine in ("packed", "tree"):
        assert torch.equal(lm.with_engine(engine).hidden_at_ends(*case), expected)
        assert torch.equal(branch_logits(lm, *case, engine=engine), logits)


@cases(8)
@given(family=families, case=prompts())
def test_the_plain_decoder_agrees_within_rounding(
    models: Models, family: str, case: Prompts
) -> None:
    """Its engines, and every row of a run under the mask of either layout."""
    plain = models[family]
    lm = equal(plain)
    bound = ROUNDING[plain.decoder.dtype]
    expected = branch_logits(lm, *case)
    for engine in ("separate", "packed", "tree"):
        assert (branch_logits(plain, *case, engine=engine) - expected).abs().max() <= bound
    for layout in (pack(*case), pack(*case, tree=True)):
        given = layout.tokens, layout.positions, layout.mask
        assert (plain.decoder(*given) - lm.decoder(*given)).abs().max() <= bound


@cases(8)
@given(family=families, case=prompts(), other=prompts(most=3), data=st.data())
def test_neither_order_nor_passes_nor_other_questions_matter(
    models: Models, family: str, case: Prompts, other: Prompts, data: st.DataObject
) -> None:
    """The branches in another order, split over two passes; whole prompts beside those of another
    question, of which the tree merges what they have in common."""
    lm, (prefix, branches) = equal(models[family]), case
    expected = branch_logits(lm, *case)
    order = data.draw(st.permutations(range(len(branches))))
    cut = data.draw(st.integers(1, len(branches)))
    for mine in filter(None, (order[:cut], order[cut:])):
        part = branch_logits(lm, prefix, [branches[i] for i in mine])
        assert torch.equal(part, expected[mine])
    whole = [start + branch for start, some in (other, case) for branch in some]
    for engine in ("packed", "tree"):
        assert torch.equal(branch_logits(lm, [], whole, engine)[-len(branches) :], expected)


@cases(40)
@given(case=prompts())
def test_a_layout_is_its_prompts_the_mask_is_reachability_and_a_position_is_a_depth(
    case: Prompts,
) -> None:
    prefix, branches = case
    whole = [prefix + branch for branch in branches]
    beginnings = {tuple(prompt[:end]) for prompt in whole for end in range(1, len(prompt) + 1)}
    flat = len(prefix) + sum(map(len, branches))
    for tree in (False, True):
        layout = pack(*case, tree=tree)
        assert len(layout.tokens) == (len(beginnings) if tree else flat)
        T = len(layout.tokens)
        child = (layout.parents >= 0).nonzero().flatten()
        steps = torch.eye(T).index_put((child, layout.parents[child]), torch.tensor(1.0))
        for _ in range(int(layout.positions.max()).bit_length()):  # up to 1, 2, 4, ... steps
            steps = (steps @ steps).clamp(max=1)
        reached = steps > 0
        assert torch.equal(layout.mask, reached)
        assert torch.equal(layout.positions, reached.sum(dim=1) - 1)
        # A branch's end sees its prompt and nothing else, each token at its place in the prompt.
        for end, path, prompt in zip(layout.ends, layout.paths(), whole, strict=True):
            visible = layout.mask[end].nonzero().flatten()
            visible = visible[layout.positions[visible].argsort()]
            assert visible.tolist() == path
            assert layout.tokens[path].tolist() == prompt
            assert layout.positions[path].tolist() == list(range(len(path)))
