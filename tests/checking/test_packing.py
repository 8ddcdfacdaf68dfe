"""Rows of others are read: what was meant, and which mask and positions a model is given."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from minise import InputError, pack
from minise.checking.packing import FIELDS, read
from tests.support.masks import blocks

LOWEST = torch.finfo(torch.float32).min
OF = torch.tensor([0, 0, 0, 1, 1])  # two documents
DOCUMENTS = {"documents": [3, 2]}
RIGHT = blocks((3, 2))


def same_document(b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return (OF[q] == OF[k]) & (q >= k)


WAYS: dict[str, dict[str, Any]] = {
    "cu_seqlens": {"cu_seqlens": [0, 3, 5]},
    "segment ids": {"segment_ids": [7, 7, 7, 2, 2]},
    "parents": {"parents": [-1, 0, 1, -1, 3]},
    "positions that start over": {"position_ids": [0, 1, 2, 0, 1], "restarts": True},
    "positions that start over at 1": {"position_ids": [1, 2, 3, 1, 2], "restarts": True},
    "a bool mask": {"attention_mask": RIGHT},
    "a bool mask of one head": {"attention_mask": RIGHT[None, None]},
    "a mask of 0 and 1": {"attention_mask": RIGHT.long().tolist()},
    "an additive mask": {"attention_mask": torch.where(RIGHT, 0.0, LOWEST)},
    "an additive mask with infinity": {"attention_mask": torch.where(RIGHT, 0.0, -math.inf)},
    "an additive mask in lists": {"attention_mask": torch.where(RIGHT, 0.0, -1e4).tolist()},
    "a mask_mod": {"mask_mod": same_document},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_say_who_attends_to_whom_becomes_the_same_mask(way: str) -> None:
    p = read({**DOCUMENTS, **WAYS[way]})
    assert torch.equal(p.mask, RIGHT)
    assert torch.equal(p.meant.mask, RIGHT)
    assert p.faults == ()


def test_a_mask_mod_is_read_as_flexattention_reads_it() -> None:
    mask = read({**DOCUMENTS, "mask_mod": same_document}).mask
    assert torch.equal(mask, create_mask(same_document, 1, 1, 5, 5, device="cpu")[0, 0])


def test_an_additive_mask_is_read_as_a_softmax_reads_it() -> None:
    added = torch.tensor([[0.0, 2.0, -1e9], [-1e9] * 3, [-math.inf, -math.inf, 0.5]])
    mask = read({"documents": [3], "attention_mask": added}).mask
    scores = torch.tensor([[0.3, -0.2, 1.0]]) + added
    assert torch.equal(mask, scores.double().softmax(dim=1) > 0)
    assert mask[1].all()  # a row of the lowest number hides nothing
    nothing = torch.tensor([[-math.inf, -math.inf], [0.0, 0.0]])
    assert read({"documents": [2], "attention_mask": nothing}).mask.tolist()[0] == [False, False]


def test_a_row_of_0_and_1_hides_columns_and_no_borders() -> None:
    mask = read({"documents": [5], "attention_mask": [[0, 1, 1, 1, 1]]}).mask
    assert torch.equal(mask, blocks((5,)) & torch.tensor([False, True, True, True, True]))


def test_windows_of_kernels_are_by_index_and_of_trees_by_position() -> None:
    tree = {"trunk": 2, "branches": [1, 1], "window": 2}
    parents = [-1, 0, 1, 1]
    by_position = read({**tree, "parents": parents, "position_ids": [0, 1, 2, 2]}).mask
    assert by_position.tolist()[3] == [False, True, False, True]
    by_index = read(tree).mask
    assert by_index.tolist()[3] == [False, False, True, True]


@pytest.mark.parametrize(
    ("fields", "parents", "names"),
    [
        ({"documents": [2, 1]}, [-1, 0, -1], ["document 1", "document 2"]),
        ({"trunk": 1, "branches": [1, 2]}, [-1, 0, 0, 2], ["the trunk", "branch 1", "branch 2"]),
        (
            {"tree": [-1, 0, -2, 0]},
            [-1, 0, -1, 0],
            ["the trunk", "branch 1", "padding", "branch 2"],
        ),
        (
            {"documents": [2], "padding": "left", "input_ids": [0, 5, 6]},
            [-1, -1, 1],
            ["padding", "document 1"],
        ),
        ({"documents": [2], "input_ids": [5, 6, 0]}, [-1, 0, -1], ["document 1", "padding"]),
    ],
)
def test_what_was_meant_becomes_a_tree_with_names(fields, parents, names) -> None:  # type: ignore[no-untyped-def]
    p = read(fields)
    assert p.meant.parents.tolist() == parents
    assert p.names == names
    hidden = [name == "padding" for name in (p.names[part] for part in p.parts.tolist())]
    assert (~p.real).tolist() == hidden


PROMPTS = [[5, 6, 7], [5, 6, 8, 9], [5, 6, 7, 4]]
ORDERS = {
    "one after the other": (
        [5, 6, 7, 5, 6, 8, 9, 5, 6, 7, 4],
        [-1, 0, 1, -1, 3, 4, 5, -1, 7, 8, 9],
    ),
    "behind their beginning": ([5, 6, 7, 8, 9, 7, 4], [-1, 0, 1, 1, 3, 1, 5]),
    "as this package merges them": (
        pack([], PROMPTS, tree=True).tokens.tolist(),
        pack([], PROMPTS, tree=True).parents.tolist(),
    ),
    "branch by branch": ([5, 6, 7, 4, 8, 9], [-1, 0, 1, 2, 1, 4]),
    "with padding": ([5, 6, 7, 4, 8, 9, 0, 0], [-1, 0, 1, 2, 1, 4, -1, -1]),
}


@pytest.mark.parametrize("order", ORDERS)
def test_prompts_are_found_among_the_tokens_of_the_row(order: str) -> None:
    tokens, parents = ORDERS[order]
    p = read({"prompts": PROMPTS, "input_ids": tokens})
    assert p.meant.parents.tolist() == parents
    assert p.real.sum() == len(tokens) - tokens.count(0)
    if 0 not in tokens:
        before = read({"prompts": PROMPTS, "input_ids": [0, *tokens], "padding": "left"})
        assert before.meant.parents.tolist()[1:] == [up + 1 if up >= 0 else -1 for up in parents]
        assert before.names[int(before.parts[0])] == "padding"


def test_prompts_whose_tokens_repeat_are_found() -> None:
    prompts = [[5, 5, 5], [5, 5, 6, 5], [6, 5]]
    tokens = [5, 5, 5, 6, 5, 6, 5]
    parents = read({"prompts": prompts, "input_ids": tokens}).meant.parents.tolist()
    assert parents == [-1, 0, 1, 1, 3, -1, 5]
    row = {"prompts": [[1, 2, 3], [1, 4], [1, 2, 4]], "input_ids": [1, 2, 3, 4, 4]}
    for given in ([-1, 0, 1, 1, 0], [-1, 0, 1, 0, 1]):
        assert read({**row, "parents": given}).meant.parents.tolist() == given
    assert read(row).meant.parents.tolist() == [-1, 0, 1, 1, 0]
    wrong = read({**row, "parents": [-1, 0, 1, 2, 3]})
    assert wrong.meant.parents.tolist() == [-1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("borders", "words", "attended"),
    [
        (
            [0, 2, 5],
            "it goes from 0 to 5, but the row has 4 tokens: cu_seqlens has a wrong",
            "0011",
        ),
        (
            [0, 2, 3],
            "it goes from 0 to 3, but the row has 4 tokens: cu_seqlens has a wrong",
            "0001",
        ),
        (
            [1, 2, 4],
            "it goes from 1 to 4, but the row has 4 tokens: cu_seqlens has a wrong",
            "0011",
        ),
        ([4], "it goes from 4 to 4, but the row has 4 tokens: cu_seqlens has a wrong", "1111"),
        ([0, 2, 2, 4], "its document 2 has 0 tokens: cu_seqlens has an empty document", "0011"),
        ([0, 1, 2, 1, 4], "its document 3 has -1 tokens: cu_seqlens has an empty", "0011"),
    ],
)
def test_wrong_cu_seqlens_are_said_in_words(borders: Any, words: str, attended: str) -> None:
    p = read({"documents": [2, 2], "cu_seqlens": borders})
    (fault,) = p.faults
    assert fault.words.startswith(words)
    assert (fault.what, fault.wrong, fault.of) == ("cu_seqlens", 1, len(borders))
    assert "".join(map(str, p.mask[3].long().tolist())) == attended


def test_a_mask_that_is_given_whole_is_not_narrowed_to_the_window() -> None:
    for way in ({"mask_mod": same_document}, {"attention_mask": RIGHT}):
        assert torch.equal(read({**DOCUMENTS, **way, "window": 1}).mask, RIGHT)
    assert torch.equal(read({**DOCUMENTS, "window": 1}).mask, torch.eye(5, dtype=torch.bool))


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing says what was meant"),
    ({"documents": [2], "tree": [-1, 0]}, "documents and tree both say what was meant"),
    (
        {"documents": [2], "position_id": [0, 1]},
        '"position_id" is unknown; the fields are documents',
    ),
    ({"documents": [3], "input_ids": [5, 6]}, "documents: hold 3 tokens, but the row has 2"),
    ({"documents": [2, 0]}, "documents: holds the length 0"),
    ({"documents": []}, "documents: is empty"),
    ({"documents": [1.5]}, "documents: holds torch.float32; give integers"),
    ({"documents": ["2"]}, "documents: is no table of numbers"),
    ({"documents": 2}, "documents: is one number"),
    ({"documents": [2], "position_ids": [0]}, "but the row has 1"),
    ({"documents": [2], "position_ids": [0, 1], "labels": [5]}, "labels: has 1 entries, but"),
    ({"documents": [2], "position_ids": [[0, 1], [0, 1]]}, "position_ids: holds 2x2 numbers"),
    ({"documents": [2], "position_ids": [[0], [0, 1]]}, "position_ids: is no table"),
    ({"documents": [2], "position_ids": [0, 10**30]}, "position_ids: is no table"),
    ({"documents": [2], "trunk": 1}, "trunk: comes without branches"),
    ({"branches": [2], "trunk": -1}, "trunk: is -1"),
    ({"tree": [0, -1]}, "tree: token 0 has the parent 0; give the row of a token before it"),
    ({"tree": [-1, -2, 1]}, "tree: a token follows padding"),
    ({"documents": [2], "parents": [-1, -2]}, "parents: token 1 has the parent -2"),
    ({"prompts": [[5], [6]]}, "prompts need input_ids"),
    ({"prompts": [[5], [6]], "position_ids": [0, 0]}, "prompts need input_ids"),
    ({"cu_seqlens": [0, 2]}, "nothing says what was meant"),
    ({"prompts": "ab", "input_ids": [5]}, "prompts: is no list"),
    (
        {"prompts": [[5], [6]], "input_ids": [5, 7]},
        "input_ids: token 1 is not the next of any prompt",
    ),
    ({"prompts": [[5], [6, 7]], "input_ids": [5, 6]}, "input_ids: has 2 tokens, too few"),
    ({"documents": [2], "padding": "top"}, 'padding: is "top"; give right or left'),
    ({"documents": [2], "window": 0}, "window: is 0"),
    ({"documents": [2], "window": 2**31}, "window: is 2147483648"),
    ({"documents": [2], "restarts": 1}, "restarts: is 1; give true or false"),
    ({"documents": [2], "attention_mask": [[[1, 1]] * 3]}, "attention_mask: has the shape 3x2"),
    ({"documents": [2], "attention_mask": [[[0.0, math.nan]] * 2]}, "attention_mask: holds NaN"),
    (
        {"documents": [2], "cu_seqlens": [0, 2], "segment_ids": [1, 1]},
        "cu_seqlens and segment_ids both say who may attend to whom",
    ),
    ({"documents": [2], "mask_mod": lambda b, h, q, k: q.no}, "mask_mod: failed ("),
    ({"documents": [10**9]}, "1,000,000,000 tokens need masks of"),
]


@pytest.mark.parametrize(("fields", "part"), MALFORMED, ids=[part for _, part in MALFORMED])
def test_a_malformed_row_is_one_line(
    fields: dict[str, Any], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minise.checking.packing.free_bytes", lambda device: 10**9)
    with pytest.raises(InputError, match=re.escape(part)) as refused:
        read(fields)
    assert "\n" not in str(refused.value)


def test_a_token_is_named_by_its_place_in_its_document() -> None:
    row = read({"documents": [3, 2], "input_ids": [5, 6, 7, 8, 9, 0]})
    assert [row.token(i) for i in (0, 1, 2, 4, 5)] == [
        "token 0, the first of document 1,",
        "token 1 of document 1",
        "token 2, the last of document 1,",
        "token 4, the last of document 2,",
        "token 5, which is padding,",
    ]
    assert row.has_tokens
    assert not read(DOCUMENTS).has_tokens


def test_masks_beyond_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minise.checking.packing.free_bytes", lambda device: 2**30)
    complaint = "20,000 tokens need masks of 3.7 GiB, and 1.0 are free; check a shorter row"
    with pytest.raises(InputError, match=complaint):
        read({"documents": [10_000, 10_000]})


def test_the_page_lists_every_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(FIELDS)
