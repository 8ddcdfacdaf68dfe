"""The fixed workloads have the lengths of real prompts."""

from __future__ import annotations

import pytest

from minise import pack
from minise.bench.workloads import WORKLOADS
from minise.grouping import make_groups


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


def test_the_tokens_of_a_workload_never_change() -> None:
    """Golden values: what was measured once can be measured again on the same prompts."""
    prefix, branches, labels = WORKLOADS["truthfulqa"].prompts(32000, seed=0)
    assert labels == [16076, 13719, 26143, 10488]
    assert prefix[:4] == [17840, 5351, 29947, 2448]
    assert branches[0][:4] == [16076, 16552, 3703, 18173]
    assert WORKLOADS["truthfulqa"].prompts(32000, seed=1)[0] != prefix
    assert max(token for branch in branches for token in [*prefix, *branch, *labels]) < 32000


def test_every_prompt_has_a_label_before_each_option_and_the_same_end() -> None:
    """The options are the choices of its group and the null option; the cue follows."""
    work = WORKLOADS["truthfulqa"]
    _, branches, labels = work.prompts(32000, seed=3)
    groups = make_groups(work.choices, work.group_size, work.trials, 3, "bench").flat
    texts: dict[int, list[int]] = {}
    for branch, group in zip(branches, groups, strict=True):
        starts = [place * (1 + work.choice) for place in range(4)]
        assert [branch[start] for start in starts] == labels
        for start, choice in zip(starts, group, strict=False):
            text = branch[start + 1 : start + 1 + work.choice]
            assert texts.setdefault(choice, text) == text
        assert branch[starts[3] :] == branches[0][starts[3] :]
    assert len({tuple(text) for text in texts.values()}) == work.choices
