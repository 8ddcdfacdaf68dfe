"""`check` says on what condition a row is equal, answers for a model that it is given, and is never
satisfied by a loss that misses the first target of a branch."""

import json
from typing import Any

import pytest
import torch

import minise
from minise import InputError
from minise.lab.packing.classes import TABLE
from minise.lab.packing.conditions import AXES_NAME, BY_BOOL, BY_BORDERS, BY_RESTARTS, NO_WINDOW
from minise.lab.packing.judging import check
from minise.lab.packing.labels import CROSSES, MISSING
from minise.layout import causal_mask
from tests.lab.packing import ways

PLACES = [0, 1, 2, 0, 1]
TWO = {"documents": [3, 2], "position_ids": PLACES}
OF = torch.tensor([0, 0, 0, 1, 1])
BLOCKS = (causal_mask(5) & (OF[:, None] == OF))[None, None]
FLASH = {"cu_seq_lens_q": [0, 3, 5], "cu_seq_lens_k": [0, 3, 5], "max_length_q": 3}
FLASH |= {"max_length_k": 3}


# ---- without a model


def test_a_row_whose_documents_the_model_must_find_is_equal_on_a_condition() -> None:
    for fields, condition in (
        ({"restarts": True}, BY_RESTARTS),
        ({"cu_seqlens": [0, 3, 5]}, BY_BORDERS),
        ({"attention_mask": BLOCKS}, BY_BOOL),
    ):
        report = check(**TWO, **fields)
        assert report.conditions[0] == condition
        assert report.equal
        first, _, second, *_ = str(report).splitlines()
        assert f"equal to the separate runs, if {condition.words}" in first
        assert second == f"if {condition.words}: {condition.how}"
    added = torch.where(BLOCKS, 0.0, -torch.inf)
    for fields in ({"attention_mask": added}, {"attention_mask": BLOCKS, "mask_is": "bool"}):
        assert check(**TWO, **fields).conditions == (NO_WINDOW,)
        assert check(**TWO, **fields, window=9).conditions == ()
    assert check(**TWO, segment_ids=OF).conditions == ()
    assert check(documents=[5]).conditions == ()
    two = {name: [value] * 2 for name, value in TWO.items()}
    assert check(**two, restarts=True).conditions == (BY_RESTARTS,)  # once


def test_three_axes_of_positions_make_no_documents() -> None:
    """As in Qwen2-VL and 2.5-VL, where four do."""
    (finding,) = check(documents=[3, 2], position_ids=[PLACES] * 3, restarts=True).findings
    assert finding.name == AXES_NAME
    batch = torch.tensor(PLACES).expand(3, 1, 5)
    assert not check(documents=[[3, 2]], position_ids=batch, restarts=True).equal
    assert check(documents=[3, 2], position_ids=[PLACES] * 4, restarts=True).equal
    assert check(documents=[3, 2], position_ids=[PLACES] * 3, cu_seqlens=[0, 3, 5]).equal


# ---- with a model


@pytest.mark.parametrize("name", ["llama", "opt", "gpt_oss", "gpt2"])
def test_the_verdict_for_a_model_is_what_comes_out_when_it_runs(name: str) -> None:
    """In each attention that it has, for each form of a row."""
    model = ways.tiny(name)
    found = set()
    documents = {"documents": ways.LENGTHS}
    ids = torch.randint(5, 280, (1, sum(ways.LENGTHS)))
    with ways.flash_kernel():
        for attention, forms in ways.TRIED.items():
            if attention == "sdpa" and not model._supports_sdpa:
                continue
            for form in forms:
                runs_right = ways.goes_by(model, attention, form)
                call = ways.call_of(form, ids)
                if form == "restarts":
                    call["restarts"] = True
                assert check(**documents, model=model, **call).equal == runs_right
                found.add(runs_right)
    assert found == {True, False}


def tiny(attention: str = "sdpa", **facts: Any) -> Any:
    model = ways.tiny("llama")
    ways.set_attention(model, attention)
    for fact, value in facts.items():
        setattr(model.config, fact, value)
    return model


RESTARTS = TWO | {"restarts": True, "use_cache": False}
FAULTS = [
    ("sdpa", {"use_cache": None}, "with a cache the library sees one document"),
    ("eager", {"restarts": None, "attention_mask": BLOCKS}, "does not go by a mask of a row for"),
    ("sdpa", FLASH | {"restarts": None, "position_ids": [*range(5)]}, "does not read cu_seqlens"),
    ("flash_attention_2", {"position_ids": [4, 5, 6, 0, 1]}, "begin at the smallest position of"),
    ("flash_attention_2", {"documents": [[3, 2]] * 2, "position_ids": [PLACES] * 2}, "of one row"),
]


@pytest.mark.parametrize(("attention", "change", "words"), FAULTS)
def test_what_keeps_a_model_from_its_documents_is_said(attention, change, words: str) -> None:
    model = tiny(attention)
    assert check(model=model, **RESTARTS).equal
    report = check(model=model, **RESTARTS | change)
    assert not report.equal
    assert any(words in finding.words for finding in report.findings), report


def test_flash_arguments_count_if_all_four_are_there() -> None:
    """Else the positions do, as where the attention is another."""
    run_on = {"documents": [3, 2], "position_ids": [*range(5)]}
    for attention, fields, equal in (
        ("flash_attention_2", FLASH, True),
        ("flash_attention_2", {"cu_seqlens": [0, 3, 5]}, False),
        ("sdpa", FLASH, False),
    ):
        report = check(model=tiny(attention), **run_on, **fields, use_cache=False)
        names = [one.name for one in report.findings if one.what == "cu_seqlens"]
        assert (names == []) == equal


def test_what_is_not_known_of_a_model_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    added = torch.where(BLOCKS, 0.0, -torch.inf)
    for facts, fields, words in (
        ({"sliding_window": 2}, {"attention_mask": added}, "the config has a window of 2"),
        ({}, {"segment_ids": OF}, "was not measured with segment_ids"),
    ):
        report = check(model=tiny(**facts), **TWO, **fields)
        assert (report.equal, report.unjudged, report.findings) == (False, 5, ())
        assert words in str(report)
    words = "LlamaForCausalLM was not measured in flex_attention"
    assert words in str(check(model=tiny("flex_attention"), **RESTARTS))
    model = tiny()
    model.__class__ = type("FalconForCausalLM", (type(model),), {})  # with alibi it does not
    words = "some configs of FalconForCausalLM go by a mask of a row for each query"
    assert words in str(check(model=model, **TWO, attention_mask=added))
    model.__class__ = type("MyOwnForCausalLM", (type(model),), {})
    assert "MyOwnForCausalLM is not in the table" in str(check(model=model, **RESTARTS))
    with pytest.raises(InputError, match="model: is none of transformers with a config"):
        check(model=torch.nn.Linear(1, 1), **RESTARTS)
    monkeypatch.setattr("minise.lab.packing.classes.version", lambda name: "99.0")
    report = check(model=tiny(), **RESTARTS)
    assert not report.equal
    assert "and 99.0 is installed" in str(report)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_table_of_classes_is_what_tiny_models_do() -> None:
    """Of the version that it is dated by."""
    written = json.loads(TABLE.read_text("utf-8"))
    if written["transformers"] != ways.library.__version__:
        pytest.skip(f"the table is of {written['transformers']}: python -m {ways.__name__}")
    assert ways.table()["rows"] == written["rows"]


# ---- losses behind a trunk

PROMPT = [5, 6, 7]
BRANCHES = [[11, 12, 13], [21, 22], [31, 32, 33, 34]]
ROW = [*PROMPT, *BRANCHES[0], *BRANCHES[1], *BRANCHES[2]]
ROLLOUTS = {
    "trunk": 3,
    "branches": [3, 2, 4],
    "input_ids": ROW,
    "position_ids": [0, 1, 2, 3, 4, 5, 3, 4, 3, 4, 5, 6],
    "parents": [-1, 0, 1, 2, 3, 4, 2, 6, 2, 8, 9, 10],
}
PROMPT_IGNORED = [-100] * 3


def test_labels_behind_a_trunk_are_never_right_in_a_row() -> None:
    """Each branch's first token is predicted by the trunk's last row: one label cannot be all."""
    assert check(**ROLLOUTS).equal
    all_targets = [*PROMPT_IGNORED, *ROW[3:]]
    (finding,) = check(**ROLLOUTS, labels=all_targets).findings
    assert (finding.name, finding.wrong) == (CROSSES, 2)
    assert "minise.packed_loss" in finding.mend
    assert "-100: nothing before" not in finding.mend
    for rows in ((6, 8), (3, 6, 8)):  # what a mask of labels across borders gives
        cut = [-100 if row in rows else label for row, label in enumerate(all_targets)]
        (finding,) = check(**ROLLOUTS, labels=cut).findings
        assert (finding.name, finding.wrong, finding.of) == (MISSING, len(rows), 3)
        assert f"token {rows[0]}, the first of branch" in finding.words
        assert "minise.packed_loss" in finding.mend
    shifted = [*cut[1:], -100]
    (finding,) = check(**ROLLOUTS, labels=shifted, labels_are="shifted").findings
    assert finding.name == MISSING
    assert check(**ROLLOUTS, labels=[-100, 6, 7, *[-100] * 9]).equal  # of the prompt alone


def test_the_trunks_last_token_may_be_repeated_in_each_branch() -> None:
    """Then each branch predicts its first token, and the row has the loss of the separate runs."""
    branches = [[7, *branch] for branch in BRANCHES]
    row = [5, 6]
    labels = [-100, -100]
    positions = [0, 1]
    parents = [-1, 0]
    for branch in branches:
        labels += [-100, *branch[1:]]
        positions += range(2, 2 + len(branch))
        parents += [1, *range(len(row), len(row) + len(branch) - 1)]
        row += branch
    lengths = [len(branch) for branch in branches]
    fields = {"trunk": 2, "branches": lengths, "input_ids": row, "position_ids": positions}
    report = minise.check(**fields, parents=parents, labels=labels)
    assert report.equal
    (condition,) = report.conditions
    assert "repeats the trunk's last" in condition.words
