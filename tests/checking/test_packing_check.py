"""A row is equal to separate runs exactly if the check says so, and what it says is true."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from minise import Decoder, InputError, LanguageModel
from minise.attention import masked_attention
from minise.checking import mistakes
from minise.checking.mistakes import BY_INDEX, CAUSAL
from minise.checking.packing import Packing, read
from minise.checking.packing_check import explain, judge
from minise.engines import run_alone
from tests.support.masks import blocks, restarts

LENGTHS = (5, 5, 6)
RIGHT = {"documents": LENGTHS, "position_ids": restarts(LENGTHS), "segment_ids": None}
BRANCHES = {"trunk": 3, "branches": [2, 3], "position_ids": [0, 1, 2, 3, 4, 3, 4, 5]}
PARENTS = [-1, 0, 1, 2, 3, 2, 5, 6]


def first(fields: dict[str, Any]) -> str:
    (finding,) = judge(read(fields)).findings
    return finding.words


def test_the_first_wrong_cell_is_said_in_words() -> None:
    """The sentence of the README's list of pages."""
    assert first({"documents": LENGTHS, "position_ids": restarts(LENGTHS)}) == (
        "token 5, the first of document 2, may attend to token 0, the first of document 1: "
        "the mask is causal over the whole row, there is no block mask"
    )
    leak = blocks(LENGTHS)
    leak[14, 7] = True
    assert first({**RIGHT, "attention_mask": leak}) == (
        "token 14 of document 3 may attend to token 7 of document 2: "
        "no known mistake; 1 cells leak and 0 are missing"
    )
    leak[14, 7], leak[15, 15] = False, False
    assert first({**RIGHT, "attention_mask": leak}).startswith(
        "token 15, the last of document 3, may not attend to itself: "
    )


def test_a_wrong_position_is_said_in_words() -> None:
    words = first({"documents": LENGTHS, "attention_mask": blocks(LENGTHS)})
    assert words == (
        "token 5, the first of document 2, has the position 5, not 0: "
        "positions run on, and do not start over with each document"
    )
    other = [0, 1, 2, 3, 4, 3, 4, 7]
    words = first({**BRANCHES, "parents": PARENTS, "position_ids": other})
    assert words == ("token 7, the last of branch 2, has the position 7, not 5: no known mistake")


def test_a_shift_of_a_whole_prompt_is_told_from_a_gap_in_it() -> None:
    """Rotary positions are relative."""
    whole = judge(read({"documents": LENGTHS, "attention_mask": blocks(LENGTHS)})).findings[0]
    assert "with rotary positions alone" in whole.mend
    gap = {**BRANCHES, "parents": PARENTS, "position_ids": list(range(8))}
    assert "with rotary positions alone" not in judge(read(gap)).findings[0].mend


@pytest.mark.parametrize("shifted", [False, True])
def test_a_label_across_a_border_is_said_in_words(shifted: bool) -> None:
    ids = list(range(10, 26))
    labels = [*ids[1:], -100] if shifted else list(ids)
    row = {**RIGHT, "segment_ids": torch.arange(3).repeat_interleave(torch.tensor(LENGTHS))}
    row |= {"input_ids": ids, "labels": labels}
    row |= {"labels_are": "shifted" if shifted else "unshifted"}
    (finding,) = judge(read(row)).findings
    assert finding.wrong == 2
    assert finding.words == (
        "token 5, the first of document 2, is predicted from token 4, the last of document 1: "
        "a label crosses a border"
    )
    for border in (4, 9):
        labels[border if shifted else border + 1] = -100
    assert judge(read({**row, "labels": labels})).equal
    labels[2] = 99
    (finding,) = judge(read({**row, "labels": labels})).findings
    assert re.search("token [12] of document 1 has the target 99, which does not", finding.words)


def test_the_label_of_the_last_token_of_a_trunk_may_be_the_first_of_any_branch() -> None:
    ids = [5, 6, 7, 8, 9, 10, 11, 12]
    row = {**BRANCHES, "parents": PARENTS, "input_ids": ids, "labels_are": "shifted"}
    for target, right in ((8, True), (10, True), (9, False)):
        labels = [6, 7, target, 9, -100, 11, 12, -100]
        assert judge(read({**row, "labels": labels})).equal == right


@pytest.mark.parametrize(
    "row",
    [
        {"documents": LENGTHS},
        {"trunk": 3, "branches": [2, 3]},
        {"tree": [-1, 0, 1, 2, 1, 0, 5, -2, 5]},
        {"documents": [3], "padding": "left", "input_ids": [0, 0, 5, 6, 7]},
        {"documents": [6, 6], "window": 3},
        {"trunk": 4, "branches": [4, 4], "window": 3},
    ],
    ids=str,
)
def test_every_known_mistake_is_named(row: dict[str, Any]) -> None:
    """By the first name of a mask, where two mistakes make the same one."""
    p = read(row)
    names: list[tuple[str, Tensor]] = []
    for known in mistakes.masks(p, [p.window]):
        mask = known.mask_of(p.window)
        if torch.equal(mask[p.real], mistakes.meant_mask(p, p.window)[p.real]):
            continue  # this row cannot show it
        name = next((n for n, m in names if torch.equal(m[p.real], mask[p.real])), known.name)
        names.append((name, mask))
        given = {**row, "position_ids": p.meant.positions, "attention_mask": mask}
        assert [one.name for one in judge(read(given)).findings] == [name]
    assert len(names) > 5


# ---- numbers


def run(lm: LanguageModel, p: Packing, mask: Tensor, positions: Tensor) -> Tensor:
    """The logits of the row, with its mask as it is."""
    hidden = lm.decoder(p.meant.tokens, positions, mask | torch.diag(~p.real))
    return lm.decoder.logits(hidden)


def drawn(seed: int) -> dict[str, Any]:
    """Two or three documents, or a trunk with branches."""
    draw = random.Random(seed)
    lengths = [draw.randint(2, 4) for _ in range(draw.randint(2, 3))]
    row = {"branches": lengths, "trunk": draw.randint(1, 3)} if seed % 2 else {"documents": lengths}
    T = sum(lengths) + row.get("trunk", 0)  # type: ignore[operator]
    return {**row, "input_ids": [draw.randrange(1, 200) for _ in range(T)]}


@pytest.mark.parametrize("seed", range(12))
def test_a_row_passes_exactly_if_its_logits_are_those_of_separate_runs(
    lm: LanguageModel, seed: int
) -> None:
    """One cell of the mask is changed, or one position, or nothing."""
    p, draw = read(drawn(seed)), random.Random(seed)
    T = len(p.real)
    alone = torch.zeros(T, lm.config.vocab_size, dtype=torch.float64)
    with torch.inference_mode():
        for path in p.meant.paths():
            alone[path] = lm.decoder.logits(run_alone(lm, p.meant.tokens[path].tolist()))
    for change in ("nothing", "a cell", "a position"):
        mask, positions = mistakes.meant_mask(p, None), p.meant.positions.clone()
        if change == "a cell":
            row = draw.randrange(1, T)
            column = draw.choice([k for k in range(T) if k != row])
            mask[row, column] = ~mask[row, column]
        if change == "a position":
            positions[
                draw.choice([i for i in range(T) if mask[:, i].sum() + mask[i].sum() > 2])
            ] += 1
        given = {**drawn(seed), "attention_mask": mask, "position_ids": positions}
        with torch.inference_mode():
            same = torch.allclose(run(lm, p, mask, positions), alone, rtol=0, atol=1e-9)
        assert judge(read(given)).equal == same == (change == "nothing")


MADE = {
    "causal": ({"documents": [4, 5]}, CAUSAL),
    "padding": (
        {"documents": [5], "padding": "left"},
        "padding may be attended to",
    ),
    "the diagonal": ({"documents": [4, 5]}, "the diagonal is off by one"),
    "the trunk is hidden": (
        {"trunk": 3, "branches": [3, 3]},
        "a branch may not attend to the trunk",
    ),
}


@pytest.mark.parametrize("case", MADE)
def test_logits_name_the_mask_that_gave_them(lm: LanguageModel, case: str) -> None:
    row, name = MADE[case]
    row = {**row, "input_ids": list(range(20, 29))}
    p = read(row, numbers_only=True)
    known = next(one for one in mistakes.masks(p, [None]) if one.name == name)
    with torch.inference_mode():
        logits = run(lm, p, known.mask_of(None), p.meant.positions)
        right = run(lm, p, mistakes.meant_mask(p, None), p.meant.positions)
    (finding,) = explain(p, lm, logits)
    assert finding.name == name
    assert explain(p, lm, right) == []
    assert judge(p).equal  # no mask and no positions are given, so only the numbers are judged


def test_logits_name_a_window_that_is_counted_by_index(lm: LanguageModel) -> None:
    """And one without a window, and one too wide, by the model's own windows."""
    windows = lm.config.sliding_windows
    if not any(windows):
        return
    ids = [20 + i % 50 for i in range(60)]
    p = read({"trunk": 20, "branches": [20, 20], "input_ids": ids}, numbers_only=True)
    for known in mistakes.masks(p, windows):
        if known.name not in (BY_INDEX, "the sliding window is not applied"):
            continue
        masks = [known.mask_of(window) for window in windows]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, masks: Any = masks) -> Tensor:
            return masked_attention(q, k, v, masks[layer][None])

        with torch.inference_mode():
            hidden = lm.decoder.run(p.meant.tokens[None], p.meant.positions[None], attend)[0]
            (finding,) = explain(p, lm, lm.decoder.logits(hidden))
        assert finding.name == known.name


def test_logits_name_positions_and_both_mistakes_at_once(lm: LanguageModel) -> None:
    p = read({"documents": [4, 5], "input_ids": list(range(20, 29))}, numbers_only=True)
    index = torch.arange(9)
    with torch.inference_mode():
        logits = run(lm, p, blocks((9,)), index)
    (finding,) = explain(p, lm, logits)
    run_on = "positions run on, and do not start over with each document"
    assert finding.name == f"{CAUSAL}; {run_on}"
    assert finding.words.startswith("token 4, the first of document 2, differs from its separate")
    tree = read({"trunk": 3, "branches": [3, 3], "input_ids": list(range(20, 29))}, True)
    with torch.inference_mode():
        logits = run(lm, tree, mistakes.meant_mask(tree, None), index)
    assert explain(tree, lm, logits)[0].name.startswith("positions are by index")


def test_logits_that_no_mistake_gives_are_said_to_be_unknown(lm: LanguageModel) -> None:
    p = read({"documents": [2, 2], "input_ids": [5, 6, 7, 8]}, numbers_only=True)
    logits = torch.randn(4, lm.config.vocab_size, generator=torch.Generator().manual_seed(0))
    (finding,) = explain(p, lm, logits)
    assert finding.name == ""
    assert finding.words.endswith("no known mistake gives these logits")
    assert explain(p, lm, logits, tolerance=1e9) == []
    logits[3, 0] = torch.nan
    assert explain(p, lm, logits)[0].wrong == 4


def test_logits_that_cannot_be_compared_are_one_line(lm: LanguageModel) -> None:
    row = {"documents": [2], "input_ids": [5, 6]}
    V = lm.config.vocab_size
    for fields, logits, part in (
        ({"documents": [2]}, torch.zeros(2, V), "logits need input_ids"),
        ({**row, "input_ids": [5, -1]}, torch.zeros(2, V), "logits need input_ids, from 0"),
        (row, torch.zeros(3, V), f"logits: are torch.float32 of the shape (3, {V})"),
        (row, torch.zeros(2, V).long(), "logits: are torch.int64"),
        ({**row, "input_ids": [5, V]}, torch.zeros(2, V), "beyond the vocabulary"),
    ):
        with pytest.raises(InputError, match=re.escape(part)):
            explain(read(fields, numbers_only=True), lm, logits)
    assert isinstance(lm.decoder, Decoder)


def test_a_small_row_is_drawn_and_a_large_one_is_not() -> None:
    report = judge(read({"documents": [1, 2], "position_ids": [0, 0, 1]}))
    assert report.picture.splitlines() == [
        "token  of          position  attends to",
        "    0  document 1         0  █··",
        "    1  document 2         0  !█·",
        "    2  document 2         1  !██",
        "█ right  · hidden  ! leaks  o missing  (n) the right position",
    ]
    (mask,) = report.findings
    assert str(report) == (
        "3 tokens, 2 separate prompts: NOT equal to the separate runs\n\n"
        f"mask: {mask.words}\n  wrong: 2 of 9\n  to mend it: {mask.mend}\n\n{report.picture}"
    )
    assert judge(read({"documents": [30, 30]})).picture == ""
