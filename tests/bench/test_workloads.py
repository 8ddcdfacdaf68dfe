"""The fixed workloads have the lengths of real prompts."""

from __future__ import annotations

import pytest

from minise import pack
from minise.bench.workloads import WORKLOADS


@pytest.mark.parametrize(
    ("name", "prompts", "length"),
    [
        ("qasc", 40, 22 + 4 * (1 + 6) + (1 + 7) + 3),
        ("biology", 80, 60 + 5 * (1 + 18) + (1 + 7) + 3),
        ("truthfulqa", 12, 18 + 3 * (1 + 13) + (1 + 7) + 3),
        ("longest", 80, 333 + 5 * (1 + 98) + (1 + 7) + 3),
    ],
)
def test_the_fixed_workloads_have_the_stated_lengths(name: str, prompts: int, length: int) -> None:
    prefix, branches, labels = WORKLOADS[name].prompts(32000, seed=0)
    assert len(branches) == prompts
    assert {len(prefix) + len(branch) for branch in branches} == {length}
    assert all(branch[0] == labels[0] for branch in branches)
    # A choice has the same text in every group, so prefixes merge as real ones do.
    merged, flat = (len(pack(prefix, branches, tree=tree).tokens) for tree in (True, False))
    assert merged < 0.9 * flat
