"""Rows in the formats of other libraries, by those libraries' own rules."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import minise
from minise import InputError
from minise.checking.mistakes import CAUSAL
from minise.checking.packing import read
from minise.checking.packing_formats import FORMATS, check
from tests.support.tiny import FAMILIES, load_tiny

LENGTHS = [3, 2, 4]
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
COLLATED = [{"input_ids": ids} for ids in PROMPTS]


def test_the_public_name_is_this_check() -> None:
    assert minise.check is check


# ---- transformers


def collated(**options: Any) -> Any:
    collator = pytest.importorskip("transformers").DataCollatorWithFlattening
    return collator(**options)(COLLATED)


def test_the_batches_of_the_flattening_collator_pass() -> None:
    for options in ({}, {"return_flash_attn_kwargs": True, "return_seq_idx": True}):
        for meant in ({"documents": LENGTHS}, {"prompts": PROMPTS}):
            report = check(format="transformers", **meant, **collated(**options))
            assert report.equal, str(report)
            assert report.prompts == 3


def test_a_batch_of_the_flattening_collator_with_a_changed_border_is_found() -> None:
    batch = collated(return_flash_attn_kwargs=True)
    batch["cu_seq_lens_q"][1] += 1
    (finding,) = check(format="transformers", documents=LENGTHS, **batch).findings
    assert finding.what == "mask"
    batch = collated(separator_id=0)  # a label 0 where there must be none
    (finding,) = check(format="transformers", documents=LENGTHS, **batch).findings
    assert finding.name == "a label crosses a border"


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("mask", [None, [1] * 9])
def test_the_library_itself_attends_as_its_reader_says(
    tmp_path: Any, use_cache: bool, mask: Any
) -> None:
    """Position ids that start over make documents only without a mask and without a cache."""
    library = pytest.importorskip("transformers")
    lm = load_tiny(tmp_path, FAMILIES["llama"], dtype=torch.float32)
    model = library.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    batch = collated()
    inputs = {name: batch[name] for name in ("input_ids", "position_ids")}
    given = None if mask is None else torch.tensor([mask])
    logits = model(**inputs, attention_mask=given, use_cache=use_cache).logits
    numbers = check(lm=lm, logits=logits, documents=LENGTHS, input_ids=batch["input_ids"])
    row = {"documents": LENGTHS, **inputs, "attention_mask": mask, "use_cache": use_cache}
    names = [one.name for one in check(format="transformers", **row).findings]
    assert [one.name for one in numbers.findings] == names
    assert names == ([] if mask is None and not use_cache else [CAUSAL])


# ---- TRL


def test_a_tree_of_trl_is_read_by_its_segments() -> None:
    """The example of its pull request: a prompt, completion A with a later turn, completion B. A
    token sees another one if enter[k] <= enter[q] < leave[k], in the order of the row."""
    prompts = [[1, 2, 3, 4], [1, 2, 3, 7, 8], [1, 2, 3, 4, 5, 6]]
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    layout = {"offsets": [0, 3, 4, 6, 8], "parents": [-1, 0, 1, 0]}
    row = {"format": "trl", "prompts": prompts, "input_ids": tokens, **layout}
    report = check(**row, position_ids=[0, 1, 2, 3, 4, 5, 3, 4])
    assert report.equal, str(report)
    leave = torch.tensor([8, 8, 8, 6, 6, 6, 8, 8])
    index = torch.arange(8)
    by_clock = (index <= index[:, None]) & (index[:, None] < leave)
    assert torch.equal(read(FORMATS["trl"]({**row, "format": None})).mask, by_clock)
    (finding,) = check(**row, position_ids=list(range(8))).findings
    assert finding.name.startswith("positions are by index")
    hung = {**row, "parents": [-1, 0, 1, 1], "position_ids": [0, 1, 2, 3, 4, 5, 3, 4]}
    (finding,) = check(**hung).findings
    assert finding.words.startswith("token 6, the first of branch 2, may attend to token 3")


def test_trl_without_padding_is_read_as_transformers_reads_it() -> None:
    row = {"documents": [2, 2], "position_ids": [0, 1, 0, 1], "labels": [-100, 6, -100, 8]}
    assert check(format="trl", **row).equal
    assert not check(format="trl", **row, attention_mask=[1, 1, 1, 1]).equal


def test_the_collator_of_trl_without_padding_is_equal_to_separate_runs() -> None:
    """With trl installed (no extra has it): its rows pass, and fail with a mask of ones beside."""
    trainer = pytest.importorskip("trl.trainer.sft_trainer")
    collator = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    documents = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]
    batch = dict(collator([{"input_ids": ids, "labels": ids} for ids in documents]))
    report = check(format="trl", prompts=documents, **batch)
    assert report.equal, str(report)
    for name in [name for name in batch if name.startswith(("cu_seq", "max_length"))]:
        del batch[name]  # earlier versions give position ids alone
    assert check(format="trl", prompts=documents, **batch).equal
    ones = torch.ones_like(batch["input_ids"])
    (finding,) = check(format="trl", prompts=documents, **batch, attention_mask=ones).findings
    assert finding.name == CAUSAL


# ---- verl


def test_a_padded_batch_of_verl_becomes_a_row_of_its_real_tokens() -> None:
    batch = {
        "input_ids": [[0, 0, 5, 6, 7], [0, 8, 9, 10, 0]],
        "attention_mask": [[0, 0, 1, 1, 1], [0, 1, 1, 1, 0]],
        "position_ids": [[0, 0, 0, 1, 2], [0, 0, 1, 2, 2]],
    }
    fields = FORMATS["verl"](batch)
    assert fields["documents"] == [3, 3]
    assert fields["input_ids"].tolist() == [5, 6, 7, 8, 9, 10]
    assert check(format="verl", **batch).equal
    by_index = torch.arange(5).expand(2, 5)
    names = {
        one.what for one in check(format="verl", **{**batch, "position_ids": by_index}).findings
    }
    assert names == {"positions"}
    joined = torch.tensor([[0, 0, 0, 1, 2], [0, 3, 4, 5, 0]])
    names = {one.name for one in check(format="verl", **{**batch, "position_ids": joined}).findings}
    assert CAUSAL in names


# ---- SGLang


ITEMS = {"format": "sglang", "query": [1, 2], "items": [[5, 6, 7], [8, 9], [3, 3, 3, 3]]}


def test_items_of_sglang_are_masked_by_flashinfers_rule() -> None:
    """With the places in items of its documentation: 3 items of length 3, 2 and 4."""
    row = {**ITEMS, "delimiter": 99}
    assert check(**row).equal
    places = [0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 0]
    positions = [0, 1, *(2 + place - 1 for place in places)]
    assert check(**row, token_pos_in_items=places, prefix_len=2, positions=positions).equal
    mask = read(FORMATS["sglang"](row)).mask
    attended = ["".join(map(str, cells)) for cells in mask.long().tolist()]
    assert attended[5] == "110111000000000"  # 7, the last of the first item
    assert attended[7] == "110000010000000"  # 8, the first of the second


@pytest.mark.parametrize(
    ("change", "what", "part"),
    [
        ({"attention": "causal"}, {"mask"}, CAUSAL),
        ({"positions": list(range(15))}, {"positions"}, "positions are by index"),
        (
            {"token_pos_in_items": [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0]},
            {"mask", "positions"},
            "",
        ),
        (
            {"prefix_len": 3, "token_pos_in_items": [1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4, 0]},
            {"mask"},
            "",
        ),
    ],
)
def test_items_of_sglang_that_are_not_separate_are_found(change, what, part) -> None:  # type: ignore[no-untyped-def]
    report = check(**ITEMS, delimiter=99, **change)
    assert what <= {one.what for one in report.findings}
    assert report.findings[0].name.startswith(part)


# ---- refusals


@pytest.mark.parametrize(
    ("row", "part"),
    [
        (
            {"format": "vllm"},
            'format "vllm" is unknown; use one of transformers, trl, verl, sglang',
        ),
        ({"format": ["trl"]}, "is unknown"),
        ({"format": "verl"}, "not the format of verl (no 'attention_mask' is there)"),
        ({"format": "sglang", "query": [1], "items": [[2]]}, "no 'delimiter' is there"),
        ({"format": "sglang", "query": "x", "items": [[2]], "delimiter": 1}, "not the format of"),
        ({"format": "trl", "offsets": [0], "parents": [-1]}, "not the format of trl ("),
        ({"documents": [1], "logits": torch.zeros(1, 2)}, "logits and the model"),
    ],
)
def test_a_malformed_format_is_one_line(row: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=re.escape(part)) as refused:
        check(**row)
    assert "\n" not in str(refused.value)
