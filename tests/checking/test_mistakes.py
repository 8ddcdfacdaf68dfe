"""The known mistakes: each mask is what its name says, on a row that can show it."""

from __future__ import annotations

import pytest

from minise.checking import mistakes
from minise.checking.mistakes import CAUSAL, NOTHING
from minise.checking.packing import read

DOCUMENTS = {"documents": [2, 2]}
PADDED = {"documents": [2], "padding": "left", "input_ids": [0, 5, 6]}
TREE = {"tree": [-1, 0, 1, 1, 0]}  # a trunk, a branch with two leaves, another branch

MASKS = {
    (CAUSAL, "documents"): "1000 1100 1110 1111",
    ("later tokens of a prompt may be attended to: the mask is not causal", "documents"): (
        "1100 1100 0011 0011"
    ),
    ("the mask is transposed: its rows are keys", "documents"): "1100 0100 0011 0001",
    ("the mask is inverted: it shows what it must hide", "documents"): "0111 0011 1101 1100",
    ("a token may not attend to itself: the diagonal is missing", "documents"): (
        "0000 1000 0000 0010"
    ),
    ("the diagonal is off by one, over all borders", "documents"): "1100 1110 0011 0011",
    ("the diagonal is off by one", "documents"): "1100 1100 0011 0011",
    ("the borders of the documents are off by one", "documents"): "1000 1100 1110 0001",
    (NOTHING, "documents"): "1111 1111 1111 1111",
    ("padding may be attended to", "padded"): "100 110 111",
    (f"{CAUSAL}, and padding may be attended to", "padded"): "100 110 111",
    ("a branch may not attend to the trunk", "tree"): "10000 01000 00100 00010 00001",
    ("the tree is read as one trunk and leaves: what is between them is hidden", "tree"): (
        "10000 11000 10100 10010 10001"
    ),
}
ROWS = {"documents": DOCUMENTS, "padded": PADDED, "tree": TREE}


@pytest.mark.parametrize(("name", "row"), MASKS)
def test_a_mask_is_what_its_name_says(name: str, row: str) -> None:
    known = next(one for one in mistakes.masks(read(ROWS[row]), [None]) if one.name == name)
    drawn = " ".join("".join(map(str, cells)) for cells in known.mask_of(None).long().tolist())
    assert drawn == MASKS[name, row]


def test_the_borders_are_off_by_one_in_both_ways() -> None:
    moved = [
        " ".join("".join(map(str, cells)) for cells in known.mask_of(None).long().tolist())
        for known in mistakes.masks(read({"documents": [3, 3]}), [None])
        if known.name.startswith("the borders")
    ]
    late, early = "100000 110000 111000 111100 000010 000011", "100000 110000 001000 001100"
    assert moved == [late, f"{early} 001110 001111"]


def test_every_mask_is_tested() -> None:
    names = {one.name for row in ROWS.values() for one in mistakes.masks(read(row), [None])}
    assert names == {name for name, _ in MASKS}


WINDOWS = {
    "the window is counted by index, not by position": "0001",
    "the sliding window is not applied": "1101",
    "the window is one too wide": "1101",
    "the window is one too narrow": "0001",
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_is_what_its_name_says(name: str) -> None:
    """Of the second branch, the third token of its prompt: position 2, index 3."""
    p = read({"trunk": 2, "branches": [1, 1], "window": 2})
    known = next(one for one in mistakes.masks(p, [2]) if one.name == name)
    assert "".join(map(str, known.mask_of(2).long().tolist()[3])) == WINDOWS[name]
    assert "".join(map(str, mistakes.meant_mask(p, 2).long().tolist()[3])) == "0101"


POSITIONS = [
    (DOCUMENTS, "positions run on, and do not start over with each document", [0, 1, 2, 3]),
    (DOCUMENTS, "positions start at 1, not at 0", [1, 2, 1, 2]),
    (DOCUMENTS, "positions of the documents after the first are off by one", [0, 1, 1, 2]),
    (DOCUMENTS, "positions of the documents after the first are off by one", [0, 1, -1, 0]),
    (PADDED, "positions are by index: they count every token of the row", [0, 1, 2]),
    (TREE, "positions are by index: they count every token of the row", [0, 1, 2, 3, 4]),
    (
        {"trunk": 2, "branches": [2, 1]},
        "positions start over at 0 with each branch, and do not go on from the trunk",
        [0, 1, 0, 1, 0],
    ),
    ({"trunk": 2, "branches": [1]}, "positions start at 1, not at 0", [1, 2, 3]),
    ({"trunk": 1, "branches": [1, 1]}, "positions of the branches are off by one", [0, 2, 2]),
]


@pytest.mark.parametrize(("row", "name", "positions"), POSITIONS)
def test_positions_are_what_their_name_says(row, name, positions) -> None:  # type: ignore[no-untyped-def]
    known = [one.tolist() for its_name, one in mistakes.positions(read(row)) if its_name == name]
    assert positions in known
