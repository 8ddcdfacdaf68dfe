"""What holds for every tree of prompts, held against random ones.

Branches begin alike, begin one another, are equal or empty; windows bite; prompts are longer than
one or two blocks of attention. Engines are compared bit for bit, in every dtype; the definition,
which sums as each call of a kernel likes, within rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("hypothesis", reason="it draws the trees; the extra [test] has it")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minise import LanguageModel, Layout, branch_logits, pack
from minise.engines import hidden_states, run_alone
from minise.exact.run import read_ends
from tests.support.tiny import ALL_FAMILIES, load_tiny

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
VOCABULARY = range(50, 53)  # few ids, so that branches that do not copy one another meet too
LENGTHS = (0, 1, 2, 5, 20, 33, 50, 63, 64, 65, 130)  # around one block and beyond two

# How far the definition may be from the others, in a hidden state and a logit of a few units: what
# is seen is a quarter of it or less.
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 1.5, torch.float16: 0.2}

Prompts = tuple[list[int], list[list[int]]]  # prefix and branches
Models = dict[str, LanguageModel]  # by family


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


def examples(number: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The same examples in every run, however slow the machine."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=slow,
    )


families = st.sampled_from(list(ALL_FAMILIES))


@pytest.fixture(scope="module", params=DTYPES, ids=lambda dtype: str(dtype).split(".")[1])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A tiny random model of each family, all in one dtype."""
    folder = tmp_path_factory.mktemp("property")
    return {
        family: load_tiny(folder / family, raw, dtype=request.param)
        for family, raw in ALL_FAMILIES.items()
    }


def alone(lm: LanguageModel, prefix: list[int], branches: list[list[int]]) -> Tensor:
    """Hidden states at the ends of separate runs: (G, D)."""
    return torch.stack([run_alone(lm, prefix + branch)[-1] for branch in branches])


@examples(24)
@given(family=families, case=prompts())
def test_the_engines_agree(models: Models, family: str, case: Prompts) -> None:
    """Hidden states at the ends and logits of tree, dense and separate runs."""
    lm = models[family]
    expected, tree = alone(lm, *case), pack(*case, tree=True)
    assert expected.isfinite().all()
    assert torch.equal(read_ends(lm.decoder, tree), expected)
    for layout in (tree, pack(*case)):
        assert torch.equal(hidden_states(lm, layout)[layout.ends], expected)
    logits = branch_logits(lm, *case, engine="separate")
    for engine in ("dense", "tree"):
        assert torch.equal(branch_logits(lm, *case, engine=engine), logits)


@examples(16)
@given(family=families, case=prompts())
def test_the_definition_agrees_within_rounding(models: Models, family: str, case: Prompts) -> None:
    """The engine plain, and every row of `Decoder.forward` under the mask of either layout."""
    lm = models[family]
    bound = ROUNDING[lm.decoder.dtype]
    plain = branch_logits(lm, *case, engine="plain")
    assert (plain - branch_logits(lm, *case)).abs().max() <= bound
    for layout in (pack(*case), pack(*case, tree=True)):
        hidden = lm.decoder(layout.tokens, layout.positions, layout.mask)
        assert (hidden - hidden_states(lm, layout)).abs().max() <= bound


@examples(12)
@given(family=families, case=prompts(), data=st.data())
def test_the_order_of_branches_is_irrelevant(
    models: Models, family: str, case: Prompts, data: st.DataObject
) -> None:
    prefix, branches = case
    order = data.draw(st.permutations(range(len(branches))))
    moved = [branches[i] for i in order]
    for engine in ("dense", "tree"):
        before = branch_logits(models[family], prefix, branches, engine)
        assert torch.equal(branch_logits(models[family], prefix, moved, engine), before[order])


@examples(12)
@given(family=families, case=prompts(), data=st.data())
def test_branches_may_be_split_over_passes(
    models: Models, family: str, case: Prompts, data: st.DataObject
) -> None:
    prefix, branches = case
    passes = data.draw(st.lists(st.integers(0, 2), min_size=len(branches), max_size=len(branches)))
    whole = branch_logits(models[family], prefix, branches)
    for number in set(passes):
        mine = [i for i, of in enumerate(passes) if of == number]
        part = branch_logits(models[family], prefix, [branches[i] for i in mine])
        assert torch.equal(part, whole[mine])


@examples(12)
@given(family=families, first=prompts(most=4), second=prompts(most=4))
def test_questions_may_share_a_pass(
    models: Models, family: str, first: Prompts, second: Prompts
) -> None:
    """Their whole prompts as branches of no prefix. The tree merges what they have in common."""
    lm = models[family]
    expected = torch.cat([branch_logits(lm, *first), branch_logits(lm, *second)])
    whole = [prefix + branch for prefix, branches in (first, second) for branch in branches]
    for engine in ("dense", "tree"):
        assert torch.equal(branch_logits(lm, [], whole, engine), expected)


@examples(12)
@given(
    family=families,
    case=prompts(lengths=(1, 3), most=3),
    columns=st.sampled_from((1, 7, 60, 64, 65, 200)).flatmap(
        lambda C: st.permutations(range(288)).map(lambda order: order[:C])
    ),
)
def test_a_logit_does_not_depend_on_the_columns_beside_it(
    models: Models, family: str, case: Prompts, columns: list[int]
) -> None:
    """By itself, and in the first or the last place of many: the same bits."""
    together = branch_logits(models[family], *case, columns=columns)
    assert together.shape == (len(case[1]), len(columns))
    turned = branch_logits(models[family], *case, columns=columns[::-1])
    assert torch.equal(turned.flip(1), together)
    for place in {0, len(columns) // 2, len(columns) - 1}:
        by_itself = branch_logits(models[family], *case, columns=[columns[place]])
        assert torch.equal(by_itself[:, 0], together[:, place])


def test_the_trees_that_are_drawn_have_every_shape() -> None:
    shapes: dict[str, bool] = {}

    @examples(400)
    @given(case=prompts())
    def look(case: Prompts) -> None:
        prefix, branches = case
        longest = len(prefix) + max(map(len, branches))
        pairs = [(a, b) for a in branches for b in branches if a is not b]
        for shape, here in {
            "no prefix": not prefix,
            "an empty branch": [] in branches,
            "one branch": len(branches) == 1,
            "equal branches": any(a == b for a, b in pairs),
            "a branch that begins another": any(a and a == b[: len(a)] != b for a, b in pairs),
            "prompts beyond one block": 64 < longest <= 128,
            "prompts beyond two blocks": longest > 128,
            "prompts that end with a block": longest % 64 == 0,
        }.items():
            shapes[shape] = shapes.get(shape, False) or here

    look()
    assert [shape for shape, drawn in shapes.items() if not drawn] == []


@examples(40)
@given(case=prompts())
def test_the_mask_is_reachability_and_a_position_is_a_depth(case: Prompts) -> None:
    for tree in (False, True):
        layout = pack(*case, tree=tree)
        T = len(layout.tokens)
        child = (layout.parents >= 0).nonzero().flatten()
        steps = torch.eye(T).index_put((child, layout.parents[child]), torch.tensor(1.0))
        for _ in range(int(layout.positions.max()).bit_length()):  # up to 1, 2, 4, ... steps
            steps = (steps @ steps).clamp(max=1)
        reached = steps > 0
        assert torch.equal(layout.mask, reached)
        assert torch.equal(layout.positions, reached.sum(dim=1) - 1)


@examples(100)
@given(case=prompts())
def test_the_prompts_can_be_read_off_the_layout(case: Prompts) -> None:
    """A branch's end sees its prompt and nothing else, each token at its place in the prompt."""
    prefix, branches = case
    for layout in (pack(prefix, branches), pack(prefix, branches, tree=True)):
        for end, path, branch in zip(layout.ends, layout.paths(), branches, strict=True):
            visible = in_order(layout, end)
            assert visible.tolist() == path
            assert layout.tokens[visible].tolist() == prefix + branch
            assert layout.positions[visible].tolist() == list(range(len(path)))


@examples(100)
@given(case=prompts())
def test_a_tree_has_one_token_for_each_distinct_beginning(case: Prompts) -> None:
    prefix, branches = case
    whole = [prefix + branch for branch in branches]
    beginnings = {tuple(prompt[:end]) for prompt in whole for end in range(1, len(prompt) + 1)}
    assert len(pack(prefix, branches, tree=True).tokens) == len(beginnings)
    assert len(pack(prefix, branches).tokens) == len(prefix) + sum(map(len, branches))


def in_order(layout: Layout, row: Tensor) -> Tensor:
    """The rows that `row` sees, by position."""
    visible = layout.mask[row].nonzero().flatten()
    return visible[layout.positions[visible].argsort()]
