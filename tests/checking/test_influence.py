"""No group depends on another in a correct layout, and every wrong cell of a mask is found."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minise import LanguageModel, Plan, Question, SelfEnsemble
from minise.checking.influence import flat_paths, groups_to_keep, influence
from minise.checking.verify import verify
from minise.engines import hidden_states
from minise.grouping import Groups
from minise.layout import Layout, Tree, causal_mask, pack
from minise.prompt import Prompt
from tests.support.tiny import FAMILIES, SIZES, load_tiny

PREFIX, BRANCHES = [0, 50, 60], [[70, 80], [90, 80], [70, 30]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    raw = {**FAMILIES["llama"], "num_hidden_layers": 2}
    return load_tiny(tmp_path_factory.mktemp("small"), raw)


def random_branches(seed: int) -> list[list[int]]:
    """Two tokens, so that branches share beginnings, repeat, and begin one another."""
    draw = random.Random(seed)
    return [draw.choices([1, 2], k=draw.randint(1, 5)) for _ in range(draw.randint(1, 12))]


class TestTheScrambledRuns:
    @pytest.mark.parametrize("seed", range(40))
    @pytest.mark.parametrize("tree", [False, True])
    def test_each_row_outside_a_group_is_scrambled_in_a_run_that_keeps_the_group(
        self, seed: int, tree: bool
    ) -> None:
        """In some run the group is unchanged and the row is scrambled."""
        paths = pack([9], random_branches(seed), tree=tree).paths()
        runs = []
        for groups in groups_to_keep(paths):
            runs.append((groups, {row for group in groups for row in paths[group]}))
        rows = {row for path in paths for row in path}
        for group, path in enumerate(paths):
            for row in rows - set(path):
                assert any(group in groups and row not in unchanged for groups, unchanged in runs)

    @pytest.mark.parametrize("paths", [[[0], [0, 1]], [[0, 1], [0, 1, 2]], [[0], [0, 1], [0, 2]]])
    def test_where_one_group_ends_and_another_goes_on_is_a_fork_too(
        self, paths: list[list[int]]
    ) -> None:
        """Whatever the numbers of the rows: one run keeps the shorter group and no other."""
        assert [0] in groups_to_keep(paths)

    def test_every_scrambled_token_really_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a vocabulary of 8 tokens, a plain random draw would often repeat the token."""
        lm = load_tiny(tmp_path, {**FAMILIES["llama"], "vocab_size": 8})
        runs, branches = [], [[i % 8, 3 * i % 8] for i in range(12)]

        def watch(lm: LanguageModel, layout: Layout) -> torch.Tensor:
            runs.append(layout.tokens)
            return hidden_states(lm, layout)

        monkeypatch.setattr("minise.checking.influence.hidden_states", watch)
        influence(lm, [1, 2], branches)
        for tokens in runs[1:]:
            same = set((tokens == runs[0]).nonzero().flatten().tolist())
            unchanged = [path for path in flat_paths([1, 2], branches) if same.issuperset(path)]
            assert same == {row for path in unchanged for row in path}
            assert 0 < len(unchanged) < 12

    def test_their_number_grows_with_the_logarithm_of_the_groups(self) -> None:
        for groups, most in ((2, 2), (6, 4), (40, 8), (400, 12)):
            assert len(groups_to_keep(flat_paths([1], [[2]] * groups))) <= most
        # Two runs for the first fork, and two for the forks behind it, at whatever depth.
        tree = pack([9], [[1, 2, 3], [1, 2, 4], [5, 6, 7, 8, 3], [5, 6, 7, 8, 4]], tree=True)
        assert len(groups_to_keep(tree.paths())) == 4

    def test_flat_paths_are_those_of_the_layout(self) -> None:
        assert flat_paths(PREFIX, BRANCHES) == pack(PREFIX, BRANCHES).paths()
        assert flat_paths([], [[1, 2], [3]]) == [[0, 1], [2]]


class TestACorrectLayout:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_no_group_depends_on_another(
        self, lm: LanguageModel, question: Question, dtype: torch.dtype
    ) -> None:
        plan = SelfEnsemble(2, 2).plan(lm, question)
        other = replace(lm, decoder=type(lm.decoder)(lm.config).to(dtype).requires_grad_(False))
        other.decoder.load_state_dict(lm.decoder.state_dict())
        result = influence(other, plan.prefix, plan.branches, gradients=True)
        assert result.scrambled.equal
        assert result.gradient_outside == 0.0
        assert result.gradient_inside is not None
        assert result.gradient_inside > 0.0
        assert result.gradients_hold
        assert result.groups == list(range(6))

    def test_gradients_are_optional(self, small: LanguageModel) -> None:
        result = influence(small, PREFIX, BRANCHES)
        assert result.gradient_outside is None
        assert result.gradient_inside is None
        assert result.gradients_hold

    def test_of_many_groups_at_most_eight_are_differentiated(self, small: LanguageModel) -> None:
        result = influence(small, PREFIX, [[i, 5] for i in range(10, 33)], gradients=True)
        assert result.groups == [0, 3, 6, 9, 12, 15, 18, 21]
        result = influence(small, PREFIX, [[i, 5] for i in range(10, 27)], gradients=True)
        assert result.groups == [0, 3, 6, 9, 12, 15]  # of 17 not every second: these would be nine

    def test_a_single_group_has_no_other_to_depend_on(self, small: LanguageModel) -> None:
        """64 tokens: the calls then have no rows of padding, which depend on nothing either."""
        result = influence(small, list(range(60)), [[70, 80, 30, 90]], gradients=True)
        assert result.runs == 0
        assert result.gradient_outside == 0.0
        assert result.gradients_hold

    def test_rows_that_a_layout_lacks_are_left_out(self, small: LanguageModel) -> None:
        assert influence(small, PREFIX, BRANCHES, pack(PREFIX, BRANCHES[:-1])).scrambled.equal

    def test_the_check_works_in_inference_mode(self, small: LanguageModel) -> None:
        with torch.inference_mode():
            assert influence(small, PREFIX, BRANCHES, gradients=True).gradients_hold
        assert not any(module._forward_hooks for module in small.decoder.modules())

    def test_rows_beyond_the_reach_of_the_windows_have_no_influence(self, tmp_path: Path) -> None:
        """Three layers with windows of 4: the end reads nine positions back, and no more."""
        raw = {**SIZES, "model_type": "mistral", "rope_theta": 100.0, "sliding_window": 4}
        lm = load_tiny(tmp_path, raw)
        result = influence(lm, list(range(8)), [[20, 21, 22, 23], [30, 31]], gradients=True)
        assert result.scrambled.equal
        assert result.gradient_outside == 0.0
        assert result.gradient_inside is not None
        assert result.gradient_inside > 0.0


class TestALeak:
    def test_a_plain_causal_mask_is_found_by_both_checks(self, small: LanguageModel) -> None:
        flat = pack(PREFIX, BRANCHES)
        result = influence(
            small, PREFIX, BRANCHES, flat.replace(mask=causal_mask(len(flat.tokens))), True
        )
        assert not result.scrambled.equal
        assert max(result.scrambled.relative) > 1e-2
        assert result.gradient_outside is not None
        assert result.gradient_outside > 0.0
        assert not result.gradients_hold

    def test_a_leak_is_found_in_a_model_of_one_layer(self, tmp_path: Path) -> None:
        lm = load_tiny(tmp_path, {**FAMILIES["llama"], "num_hidden_layers": 1})
        leaky = pack(PREFIX, BRANCHES).replace(mask=causal_mask(T))
        assert not influence(lm, PREFIX, BRANCHES, leaky).scrambled.equal

    def test_a_leak_is_measured_the_same_each_time(self, small: LanguageModel) -> None:
        leaky = pack(PREFIX, BRANCHES).replace(mask=causal_mask(T))
        results = [influence(small, PREFIX, BRANCHES, leaky, gradients=True) for _ in range(2)]
        assert results[0] == results[1]

    def test_a_hidden_ancestor_is_found_by_gradients(self, small: LanguageModel) -> None:
        flat = pack(PREFIX, BRANCHES)
        mask = flat.mask.clone()
        mask[:, 1] = False
        mask[1, 1] = True
        result = influence(small, PREFIX, BRANCHES, flat.replace(mask=mask), True)
        assert result.scrambled.equal
        assert result.gradient_outside == result.gradient_inside == 0.0
        assert not result.gradients_hold


T = len(pack(PREFIX, BRANCHES).tokens)
CELLS = [(row, column) for row in range(T) for column in range(T) if row != column]


def flipped(row: int, column: int) -> torch.Tensor:
    mask = pack(PREFIX, BRANCHES).mask.clone()
    mask[row, column] = ~mask[row, column]
    return mask


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_wrong_cell_of_a_mask_is_caught(
    small: LanguageModel, monkeypatch: pytest.MonkeyPatch, cell: tuple[int, int]
) -> None:
    """A cell that shows one group to another, or a group to the prefix, is caught by scrambling
    alone; any cell by `verify`."""
    owner = [-1] * len(PREFIX) + [g for g, branch in enumerate(BRANCHES) for _ in branch]
    row, column = cell
    wrong = flipped(row, column)
    if owner[column] not in (-1, owner[row]):
        flat = pack(PREFIX, BRANCHES)
        result = influence(small, PREFIX, BRANCHES, flat.replace(mask=wrong))
        assert not result.scrambled.equal
    groups = Groups((((0,),), ((1,),), ((2,),)))
    prompts = [Prompt("", ids, [70, 80, 90]) for ids in BRANCHES]
    plan = Plan(Question("?", ["a", "b", "c"]), groups, PREFIX, prompts)
    assert verify(small, plan).passed
    monkeypatch.setattr(Tree, "mask", property(lambda self: wrong))
    assert not verify(small, plan).passed
