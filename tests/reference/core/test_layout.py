"""The packed sequence is the paper's, and the merged tree holds the same prompts in fewer
tokens."""

import pytest
import torch

from minise import pack


def mask_equation(prefix: int, lengths: list[int]) -> torch.Tensor:
    """The paper's mask (Eq. 3), cell by cell: 1 if Tk_j is in Q, or Tk_i and Tk_j are in the
    same group; 0 for j > i."""
    owner = [0] * prefix + [n for n, length in enumerate(lengths, 1) for _ in range(length)]
    T = len(owner)
    cells = [
        [j <= i and (owner[j] == 0 or owner[i] == owner[j]) for j in range(T)] for i in range(T)
    ]
    return torch.tensor(cells)


def position_list(prefix: int, lengths: list[int]) -> list[int]:
    """The paper's position list (Eq. 5): 0 ... |Q|-1, then |Q| ... |Q|+|G_n|-1 for each group."""
    return [*range(prefix), *(prefix + i for length in lengths for i in range(length))]


@pytest.mark.parametrize(("prefix", "lengths"), [(3, [2, 4, 1]), (1, [1]), (0, [3, 2]), (5, [6])])
def test_the_flat_layout_is_the_papers_mask_and_position_list(
    prefix: int, lengths: list[int]
) -> None:
    question = list(range(100, 100 + prefix))
    branches = [list(range(length)) for length in lengths]  # alike, and yet not merged
    layout = pack(question, branches)
    assert layout.tokens.tolist() == question + [token for branch in branches for token in branch]
    assert torch.equal(layout.mask, mask_equation(prefix, lengths))
    assert layout.positions.tolist() == position_list(prefix, lengths)
    # index_j, with the sum to j: the paper's j - 1 is a misprint.
    assert layout.ends.tolist() == [prefix + sum(lengths[: j + 1]) - 1 for j in range(len(lengths))]


def test_the_worked_example_of_the_module() -> None:
    flat = pack([7, 8], [[1, 2], [1, 3]])
    assert flat.tokens.tolist() == [7, 8, 1, 2, 1, 3]
    assert flat.parents.tolist() == [-1, 0, 1, 2, 1, 4]
    assert flat.positions.tolist() == [0, 1, 2, 3, 2, 3]
    assert flat.ends.tolist() == [3, 5]
    tree = pack([7, 8], [[1, 2], [1, 3]], tree=True)
    assert tree.tokens.tolist() == [7, 8, 1, 2, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 2]
    assert tree.positions.tolist() == [0, 1, 2, 3, 3]
    assert tree.ends.tolist() == [3, 4]


def test_equal_branches_share_their_end_and_a_prefix_of_another_branch_ends_inside_it() -> None:
    layout = pack([9], [[1, 2, 3], [1, 2, 3], [1, 2]], tree=True)
    assert layout.tokens.tolist() == [9, 1, 2, 3]
    assert layout.ends.tolist() == [3, 3, 2]


def test_an_empty_branch_reads_out_at_the_end_of_the_prefix() -> None:
    assert pack([4, 5], [[], [6]]).ends.tolist() == [1, 2]


def test_packing_without_a_branch_is_an_error() -> None:
    with pytest.raises(ValueError, match="no branches"):
        pack([1], [])
    with pytest.raises(ValueError, match="empty prompt"):
        pack([], [[1], []])


def test_the_mask_is_built_once_and_only_when_it_is_used() -> None:
    layout = pack([5, 6], [[1, 2], [1, 3, 4]])
    assert "mask" not in vars(layout)
    assert layout.mask is layout.mask
