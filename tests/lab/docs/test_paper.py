"""The findings of docs/paper.md follow from the paper's equations."""

import re
from itertools import accumulate
from pathlib import Path

import pytest
import torch

from minise import pack
from minise.grouping import random_partitions

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
# The page's example: |Q| = 3, |G1| = 2, |G2| = 4, packed into nine tokens.
Q, GROUPS = 3, (2, 4)
PACKED = pack([0] * Q, [[1] * length for length in GROUPS])
ENDS = list(accumulate(GROUPS))  # of the groups, without the question


def group_of(token: int) -> int:
    """1 or 2; 0 for a token of the question."""
    return 0 if token < Q else 1 + sum(token - Q >= end for end in ENDS[:-1])


def test_the_formula_of_positions_needs_the_stated_fixes() -> None:
    """Eq. 4 with the token's own group, with its other n, with that n fixed, and Eq. 5."""

    def subtracted(count_for: list[int]) -> list[list[int]]:
        places = [token - sum(GROUPS[:n]) for token, n in zip(range(Q, 9), count_for, strict=True)]
        return [places[: GROUPS[0]], places[GROUPS[0] :]]

    tokens = range(Q, 9)
    of_own_group = subtracted([group_of(token) for token in tokens])
    of_other_n = subtracted([sum(token >= end for end in ENDS) for token in tokens])
    of_fixed_n = subtracted([sum(token >= Q + end for end in ENDS) for token in tokens])
    listed = [list(range(Q, Q + length)) for length in GROUPS]
    assert f"those of G1 would be {of_own_group[0]} and those of G2 {of_own_group[1]}." in TEXT
    assert (
        f"they would be {of_other_n[0]} and {of_other_n[1]}; with |Q| in that sum it is right"
        in TEXT
    )
    assert f"The position list (Eq. 5) has {listed[0]} and {listed[1]}" in TEXT
    assert of_fixed_n == listed
    assert PACKED.positions.tolist() == [*range(Q), *listed[0], *listed[1]]


def test_the_formula_of_the_mask_needs_a_sum() -> None:
    """The product over the groups is 0 wherever there are two; the sum is the mask."""
    product, total = torch.zeros(9, 9), torch.zeros(9, 9)
    for i in range(9):
        for j in range(i + 1):
            same = [group_of(i) == group_of(j) == n for n in (1, 2)]
            product[i, j] = 1 if j < Q else all(same)
            total[i, j] = 1 if j < Q else sum(same)
    assert not product[:, Q:].any()
    assert torch.equal(total.bool(), PACKED.mask)
    assert "multiplies over the groups, which gives 0 for any two tokens of one group" in TEXT


def test_the_formula_of_the_ending_tokens_needs_a_sum_up_to_j() -> None:
    literal = [Q + sum(GROUPS[: j - 1]) - 1 for j in (1, 2)]
    fixed = [Q + sum(GROUPS[:j]) - 1 for j in (1, 2)]
    assert PACKED.ends.tolist() == fixed
    assert f"would be {literal}. It must sum up to j, which gives {fixed}." in TEXT


def test_the_formula_of_the_mean_is_as_stated() -> None:
    """Over the draws of the equation (a seed, one of its groups, one of that group's choices) the
    indicator is 1 in 1/8 of all cases."""
    groups = [random_partitions(8, 4, 1, seed, "").flat for seed in range(30)]
    drawn = [choice for trial in groups for group in trial for choice in group]
    assert drawn.count(3) * 8 == len(drawn)
    assert "with K = 8 and m = 4 it would be 1/8 of the mean" in TEXT


@pytest.mark.parametrize("folder", ["minise", "docs", "tests"])
def test_every_cited_equation_has_its_name_before_its_number(folder: str) -> None:
    names = dict(enumerate(("step 2", "mean", "mask", "position", "position list", "readout"), 1))
    cited = 0
    for path in [ROOT / "README.md", *(ROOT / folder).rglob("*")]:
        if path.suffix in (".py", ".md") and path != Path(__file__):
            text = " ".join(path.read_text(encoding="utf-8").lower().split())
            for citation in re.finditer(r"eq\. (\d)", text):
                cited += 1
                before = text[max(0, citation.start() - 45) : citation.start()]
                assert names[int(citation[1])] in before, f"{path.name}: {before}{citation[0]}"
    assert cited >= 3
