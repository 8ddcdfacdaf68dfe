"""Another's packed row: what is read, the known mistakes, the verdict in words, the command.

Published packing bugs are named, their fixes pass, and docs/zoo.md and docs/check.md are true."""

import json
import math
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

import minise
from minise import InputError
from minise.lab.packing.beside import OTHER_MASK
from minise.lab.packing.conditions import BY_BORDERS
from minise.lab.packing.judging import check
from minise.lab.packing.mistakes import CAUSAL, FLAT, INVERTED, MOVED, NOTHING, PADDING_SHOWN
from minise.lab.packing.packing import FIELDS, Packing
from minise.layout import causal_mask
from tests.reference.support.commands import assert_one_line, run

DOCS = Path(__file__).parents[3] / "docs"
OF = torch.tensor([0, 0, 0, 1, 1])  # two documents
RIGHT = causal_mask(5) & (OF[:, None] == OF)
DOCUMENTS = {"documents": [3, 2]}
BRANCHES = {"trunk": 3, "branches": [2, 3], "position_ids": [0, 1, 2, 3, 4, 3, 4, 5]}
PARENTS = [-1, 0, 1, 2, 3, 2, 5, 6]


def same_document(b: Any, h: Any, q: Tensor, k: Tensor) -> Tensor:
    return (OF[q] == OF[k]) & (q >= k)


def drawn(mask: Tensor) -> str:
    return " ".join("".join(map(str, cells)) for cells in mask.long().tolist())


# ---- reading


def test_an_additive_mask_is_read_as_a_softmax_reads_it() -> None:
    added = torch.tensor([[0.0, 2.0, -1e9], [-1e9] * 3, [-math.inf, -math.inf, 0.5]])
    mask = Packing({"documents": [3], "attention_mask": added}).mask
    scores = torch.tensor([[0.3, -0.2, 1.0]]) + added
    assert torch.equal(mask, scores.double().softmax(dim=1) > 0)
    nothing = torch.tensor([[-math.inf, -math.inf], [0.0, 0.0]])
    assert drawn(Packing({"documents": [2], "attention_mask": nothing}).mask) == "00 11"


BIASES: list[list[list[float]]] = [
    [[0, -9e9, -9e9], [0, 0, -9e9], [-900, 0, 0]],
    [[0, -9e9, -9e9], [0, 0, -9e9], [0, 20, 0]],
    [[0, -9e9, -9e9], [0, 0, -9e9], [-1, -0.5, 0]],
]


@pytest.mark.parametrize("added", BIASES, ids=["-900", "20", "slopes"])
def test_a_bias_of_an_additive_mask_is_named_and_not_judged(added: list[list[float]]) -> None:
    """Numbers that differ among what a token may attend to. One number for a whole row is none."""
    report = check(documents=[3], attention_mask=added)
    assert (report.equal, report.unjudged, report.findings) == (False, 1, ())
    assert "but for 1 token that was not judged" in str(report)
    assert report.notes[0].startswith("token 2: the mask adds a bias, to the score of token 2 with")
    shifted = [[cell + 7 * row for cell in cells] for row, cells in enumerate(BIASES[0][:2])]
    assert check(documents=[2], attention_mask=[cells[:2] for cells in shifted]).equal
    assert check(documents=[2], padding="right", attention_mask=added).equal  # of padding


ONE = {"documents": [1]}
NO_PROMPT = {"tree": [-2]}


@pytest.mark.parametrize("cell", [0.0, 5.0, False, 0, True, 1])
def test_a_mask_of_one_token_is_square_and_no_row_of_padding(cell: Any) -> None:
    shows = isinstance(cell, float) or bool(cell)
    for mask in ([[cell]], torch.tensor([[cell]]), [[[[cell]]]]):
        assert check(**ONE, attention_mask=mask).equal == shows
        assert check(**NO_PROMPT, attention_mask=mask).unjudged == 1
    assert check(**NO_PROMPT, attention_mask=[0]).notes[0].startswith("token 0: padding")
    assert check(**ONE, attention_mask=[[1]], cu_seqlens=[0, 1]).equal  # beside another, a row


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "float16"])
def test_every_dtype_of_numpy_is_read(dtype: str) -> None:
    mask = np.tri(2, dtype=dtype)
    row = {"documents": np.array([2], "uint16"), "input_ids": np.array([5, 6], "uint32")}
    assert check(**row, attention_mask=mask, mask_is="bool").equal
    assert not check(**row, attention_mask=mask.T, mask_is="bool").equal


def test_what_was_meant_has_names() -> None:
    assert Packing({"trunk": 1, "branches": [1, 2]}).names == ["the trunk", "branch 1", "branch 2"]
    names = Packing({"tree": [-1, 0, -2, 0]}).names
    assert names == ["the trunk", "branch 1", "padding", "branch 2"]
    assert Packing(PADDED).names == ["padding", "document 1"]


@pytest.mark.parametrize(
    ("borders", "words"),
    [
        ([0, 2, 5], "it goes from 0 to 5, but the row has 4 tokens: cu_seqlens has a wrong total"),
        ([0, 2, 2, 4], "its document 2 has 0 tokens: cu_seqlens has an empty document"),
        ([0, 1, 2, 1, 4], "its document 3 has -1 tokens: cu_seqlens has an empty document"),
    ],
)
def test_wrong_cu_seqlens_are_said_in_words(borders: Any, words: str) -> None:
    (fault,) = Packing({"documents": [2, 2], "cu_seqlens": borders}).faults
    assert (fault.what, fault.words, fault.of) == ("cu_seqlens", words, len(borders))


PAIR: dict[str, Any] = {"documents": [2]}
DEEP: list[Any] = []
for _ in range(3000):
    DEEP = [DEEP]
MALFORMED = [
    ({}, "nothing says what was meant"),
    (PAIR | {"tree": [-1, 0]}, "documents and tree both say what was meant"),
    (PAIR | {"position_id": [0, 1]}, '"position_id" is unknown; the fields are'),
    ({"documents": [3], "input_ids": [5, 6]}, "documents: hold 3 tokens, but the row has 2"),
    ({"documents": ["2"]}, "documents: is no table of numbers"),
    (PAIR | {"position_ids": [0, 1], "labels": [5]}, "of the shape (1,); give 2 integers"),
    (PAIR | {"position_ids": [[0, 1], [0, 1]]}, "of the shape (2, 2)"),
    (PAIR | {"trunk": 1}, "trunk: comes without branches"),
    ({"tree": [0, -1]}, "tree: token 0 has the parent 0; give the row of a token before it"),
    ({"tree": [-1, -2, 1]}, "tree: a token follows padding"),
    (PAIR | {"parents": [-1, -2]}, "parents: token 1 has the parent -2"),
    (PAIR | {"window": 2**31}, "window: is 2147483648"),
    (PAIR | {"attention_mask": [[[0.0, math.nan]] * 2]}, "attention_mask: holds NaN"),
    (PAIR | {"mask_mod": lambda b, h, q, k: q.no}, "mask_mod: failed ("),
    ({"documents": [10**9]}, "1,000,000,000 tokens need"),
    (PAIR | {"attention_mask": [1, 2]}, "give mask_is, segments if"),
    (PAIR | {"padded": [1]}, "padded: does not hold the documents"),
    (PAIR | {"positions_alone": [0]}, "give 1 x 2 integers"),
    (PAIR | {"context_parallel": 2}, '"context_parallel" is unknown'),
    (PAIR | {"tin": [0, 1], "tout": [2, 2]}, '"tin" is unknown; the fields are documents'),
    (
        PAIR | {"cu_seqlens": [0, 2], "cu_seqlens_q": [0, 1, 2]},
        "cu_seqlens and cu_seqlens_q are two names of one field; give one of them",
    ),
    (PAIR | {"mask": [1, 1], "attention_mask": [1, 0]}, "mask and attention_mask are two names"),
    (PAIR | {"positions": [0, 1], "position_ids": [0, 0]}, "positions and position_ids are two"),
    (PAIR | {"input_ids": [5, 6], "tokens": [5, 7]}, "input_ids and tokens are two names"),
    (
        {"documents": [[2], [2]], "input_ids": [[5, 6]]},
        "documents: 2 rows meant, the batch has 1; give a list for each row",
    ),
    (
        PAIR | {"input_ids": [[5, 6], [7, 8]]},
        "documents: 1 row meant in a flat list, the batch has 2; give a list for each row",
    ),
    (PAIR | {"attention_masks": [0]}, "; give it as attention_mask if it is that, or leave it out"),
    ({"documents": DEEP}, "documents: is no table of numbers"),
    (
        PAIR | {"mask": torch.ones(2, 2).to(torch.float8_e4m3fn)},
        "attention_mask: holds torch.float8",
    ),
    (PAIR | {"mask": torch.ones(2, 2).to(torch.complex64)}, "attention_mask: holds torch.complex"),
]


@pytest.mark.parametrize(("fields", "part"), MALFORMED)
def test_a_malformed_row_is_refused_in_one_line(fields: Any, part: str, monkeypatch) -> None:
    monkeypatch.setattr("minise.lab.packing.formats.free_bytes", lambda: 10**9)
    with pytest.raises(InputError, match=re.escape(part)) as refused:
        check(**fields)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*beta state", "ignore:.*prototype stage")
def test_sparse_and_nested_tensors_are_refused() -> None:
    ones = torch.ones(2, 2)
    nested = torch.nested.nested_tensor
    odd = [ones.to_sparse(), ones.to_sparse_csr(), nested([ones]), nested([ones, ones[:1]])]
    for value in (*odd, nested([ones], layout=torch.jagged)):
        for name in ("documents", "mask", "labels"):
            for documents in ([2], [[2], [2]]):
                with pytest.raises(InputError, match=f"{name}: is a sparse or nested tensor; give"):
                    check(**{"documents": documents, name: value})


# ---- the known mistakes

TWO = {"documents": [2, 2]}
PADDED = {"documents": [2], "padding": "left", "input_ids": [0, 5, 6]}
TREE = {"tree": [-1, 0, 1, 1, 0]}  # a trunk, a branch with two leaves, another branch
WINDOW = {"trunk": 2, "branches": [1, 2], "window": 2}
MASKS = [
    (TWO, CAUSAL, "1000 1100 1110 1111"),
    (TWO, INVERTED, "0111 0011 1101 1100"),
    (TWO, NOTHING, "1111 1111 1111 1111"),
    (PADDED, PADDING_SHOWN, "100 110 111"),
    (PADDED | {"documents": [1, 1]}, f"{CAUSAL}, and {PADDING_SHOWN}", "100 110 111"),
    (TREE, FLAT, "10000 11000 10100 10010 10001"),
    (WINDOW, "the window is one too wide", "10000 11000 11100 11010 01011"),
    (TWO, "", "1000 1100 0010 0010"),  # a diagonal that is missing: wrong, and no published bug
]
POSITIONS = [
    (TWO, "positions run on, and do not start over with each document", [0, 1, 2, 3]),
    (PADDED, "positions are by index: they count every token of the row", [0, 1, 2]),
    (TREE, "positions are by index: they count every token of the row", [0, 1, 2, 3, 4]),
    (TWO, "", [1, 2, 1, 2]),
]


@pytest.mark.parametrize(("row", "name", "cells"), MASKS)
def test_a_wrong_mask_is_named(row: Any, name: str, cells: str) -> None:
    mask = torch.tensor([[int(one) for one in line] for line in cells.split()])
    places = Packing(row | {"attention_mask": mask}).places[0]
    (finding,) = check(**row, position_ids=places, attention_mask=mask).findings
    assert finding.name == name
    assert finding.mend


@pytest.mark.parametrize(("row", "name", "positions"), POSITIONS)
def test_wrong_positions_are_named(row: Any, name: str, positions: list[int]) -> None:
    found = check(**row, position_ids=positions).findings
    assert [one.name for one in found if one.what == "positions"] == [name]


# ---- what is said


def first(**fields: Any) -> str:
    (finding,) = check(**fields).findings
    return finding.words


def test_the_first_wrong_place_is_said_in_words() -> None:
    (found,) = check(**DOCUMENTS, attention_mask=RIGHT).findings
    assert found.words == (
        "token 3, the first of document 2, has the position 3, not 0: "
        "positions run on, and do not start over with each document"
    )
    assert "with rotary positions alone" in found.mend  # a shift of a whole prompt
    right = {**DOCUMENTS, "position_ids": [0, 1, 2, 0, 1]}
    places = {**BRANCHES, "parents": PARENTS, "position_ids": [0, 1, 2, 3, 4, 3, 4, 7]}
    (found,) = check(**places).findings
    assert found.words.startswith("token 7, the last of branch 2, has the position 7, not 5: no")
    assert "with rotary positions alone" not in found.mend
    assert check(documents=[30, 30]).picture == ""  # of small rows only
    mask = RIGHT.clone()
    mask[4, 1] = True
    assert first(**right, attention_mask=mask) == (
        "token 4, the last of document 2, may attend to token 1 of document 1: "
        "no known mistake; 1 cells leak and 0 are missing"
    )
    mask[4, 1], mask[4, 4] = False, False
    assert "document 2, may not attend to itself: " in first(**right, attention_mask=mask)


@pytest.mark.parametrize("shifted", [False, True])
def test_a_label_across_a_border_is_said_in_words(shifted: bool) -> None:
    ids = [10, 11, 12, 13, 14]
    labels = [*ids[1:], -100] if shifted else [-100, *ids[1:]]
    row = {**DOCUMENTS, "restarts": True, "position_ids": [0, 1, 2, 0, 1], "input_ids": ids}
    row |= {"labels": labels, "labels_are": "shifted" if shifted else "unshifted"}
    assert first(**row) == (
        "token 3, the first of document 2, is predicted from token 2, the last of document 1: "
        "a label crosses a border"
    )
    labels[2 if shifted else 3], labels[1] = -100, 99
    assert re.search("token [01].* of document 1 has the target 99, which does not", first(**row))


# ---- published bugs: rows as the bug makes them and as its fix does

LINES = (Path(__file__).parent / "bugs.jsonl").read_text(encoding="utf-8").splitlines()
BUGS = {bug["name"]: bug for bug in map(json.loads, LINES)}
PAGE = (DOCS / "zoo.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
STORIES = {re.findall(r"\]\(https://github\.com/([^)]+)\)", one)[0]: one for one in SECTIONS}


@pytest.mark.parametrize("name", BUGS)
def test_a_published_bug_is_named_its_fix_passes_and_the_page_tells_it(name: str) -> None:
    bug, story = BUGS[name], STORIES[BUGS[name]["thread"]]
    report = check(**bug["wrong"])
    assert [one.name for one in report.findings] == bug["mistakes"]
    assert check(**bug["fixed"]).findings == ()
    if "half" in name:
        return
    row = {field: value for field, value in bug["wrong"].items() if field != "input_ids"}
    link = "live.html#own?row=" + quote(json.dumps(row, separators=(",", ":")), safe=",:")
    is_read_there = not row.keys() & {"tree", "labels"}
    assert (f"({link})" in story) is is_read_there
    if "```text" in story:
        for finding in report.findings:
            assert finding.words in story
        assert report.picture in story or name == "functionary"  # whose row is long


def test_each_mistake_of_the_zoo_is_shown_as_check_prints_it() -> None:
    shown = [bug["mistakes"] for bug in BUGS.values() if "```text" in STORIES[bug["thread"]]]
    assert all(bug["mistakes"] in shown for bug in BUGS.values())


def test_the_pages_tell_of_no_bug_that_is_not_rebuilt_and_list_every_field() -> None:
    assert set(STORIES) == {bug["thread"] for bug in BUGS.values()}
    assert len(STORIES) >= 20
    listed = re.findall(r"^\| `(\w+)` \|", (DOCS / "check.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(FIELDS)


# ---- the command

WRONG: dict[str, Any] = {"documents": [3, 3], "position_ids": [0, 1, 2, 0, 1, 2]}


def test_every_kind_of_file_is_read_alike(capsys, tmp_path: Path) -> None:
    words = {"labels_are": "shifted"}
    rows = {name: torch.tensor(value) for name, value in WRONG.items()}
    (tmp_path / "row.json").write_text(json.dumps(WRONG | words))
    np.savez(tmp_path / "row.npz", **WRONG, **words)
    save_file(rows, tmp_path / "row.safetensors", metadata={"format": "pt", **words})
    for kind in ("json", "npz", "safetensors"):
        path = tmp_path / f"row.{kind}"
        status, out, err = run(capsys, "check", path)
        assert (status, err) == (1, "")
        assert out.startswith(f"{path}: 6 tokens, 2 separate prompts: NOT equal")
        assert f" of document 1: {CAUSAL}\n  wrong: 9 of 36\n  to mend it: show each" in out


def test_json_has_every_finding(capsys, tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    path.write_text('{"documents": [2, 2]}')
    status, out, err = run(capsys, "check", path, "--json")
    report = json.loads(out)
    assert (status, err) == (1, "")
    known = "file equal tokens prompts findings picture unjudged notes conditions"
    assert set(report) == set(known.split())
    assert [one["what"] for one in report["findings"]] == ["mask", "positions"]
    assert set(report["findings"][0]) == {"what", "words", "name", "wrong", "of", "mend"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("not.json", b"{", "not readable as json"),
        ("unknown.json", b'{"document": [1]}', '"document" is unknown'),
        ("pairs.json", b"[[1, 2]]", "holds [[1, 2]]; give an object of fields"),
        ("twice.json", b'{"documents": [2], "documents": [1, 1]}', '"documents" stands twice'),
        ("deep.json", b'{"documents": ' + b"[" * 900 + b"]" * 900 + b"}", "documents: is"),
        ("row.pt", b"PK", "is no .json, .safetensors or .npz; write the row as one of them"),
        ("absent.pt", None, "no such file"),
        ("cut.safetensors", b"12345678", "not readable as safetensors"),
        ("cut.npz", b"PK", "not readable as npz"),
        ("absent.json", None, "no such file"),
        ("\x1b[31mrow.json", b"{", "not readable"),
    ],
)
def test_a_damaged_file_is_one_line(capsys, tmp_path, name: str, content: Any, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert_one_line(*run(capsys, "check", tmp_path / name), [name.strip("\x1b"), words])


def test_objects_and_what_would_not_fit_are_not_read(capsys, tmp_path, monkeypatch) -> None:
    """Neither a file before it is unpacked, nor a field before it is widened."""
    np.savez(tmp_path / "object.npz", documents=np.array([{}], dtype=object))
    assert_one_line(*run(capsys, "check", tmp_path / "object.npz"), ["object.npz"])
    np.savez_compressed(tmp_path / "bomb.npz", documents=[2], labels=np.zeros(10**7, "int8"))
    for room in ("lab.commands.check", "lab.packing.formats"):
        monkeypatch.setattr(f"minise.{room}.free_bytes", lambda: 10**6)
    monkeypatch.setattr(np, "load", None)
    assert_one_line(*run(capsys, "check", tmp_path / "bomb.npz"), ["cut it to one row"])
    monkeypatch.setattr(Tensor, "long", None)
    with pytest.raises(InputError, match="do not fit in memory"):
        check(documents=torch.ones(10**6, dtype=torch.int8))


def test_the_page_runs_as_it_is_shown(capsys, tmp_path, monkeypatch) -> None:
    """Its code writes a file of each format, and `minise check` prints what it shows."""
    page, names, printed = (DOCS / "check.md").read_text(encoding="utf-8"), {}, ""
    monkeypatch.chdir(tmp_path)
    commands = 0
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        if kind == "json":
            Path("row.json").write_text(text)
        elif kind == "python":
            exec(text, names)
        elif kind == "sh":
            outs = [run(capsys, *line.split()[1:]) for line in text.splitlines()]
            printed, commands = "".join(out for _, out, _ in outs), commands + len(outs)
            assert [err for _, _, err in outs] == [""] * len(outs)
            for status, out, _ in outs:
                assert status == int("NOT " in out or "but for" in out)
        elif kind == "text":
            assert printed == text
    assert commands == 5
    assert run(capsys, "check", "tail.json", "--allow-unjudged")[0] == 0
    assert run(capsys, "check", "row.json", "--allow-unjudged")[0] == 1
    assert minise.check is check


# ---- what libraries hold


def test_a_block_mask_is_read_as_it_runs_and_compared_with_its_mask_mod() -> None:
    for size in (2, 128):
        for separate in (True, False):
            more = {"device": "cpu", "BLOCK_SIZE": size, "separate_full_blocks": separate}
            block = create_block_mask(same_document, None, None, 5, 5, **more)
            p = Packing({**DOCUMENTS, "attention_mask": block})
            assert torch.equal(p.mask, RIGHT)
            assert p.faults == []
    block = create_block_mask(same_document, None, None, 5, 5, device="cpu", BLOCK_SIZE=2)
    block.kv_num_blocks[0, 0, 0] = 0  # the first two rows read nothing
    right = {**DOCUMENTS, "position_ids": [0, 1, 2, 0, 1]}
    names = [one.name for one in check(**right, attention_mask=block).findings]
    assert names == ["the blocks of the BlockMask are not those of its mask_mod", ""]


def test_a_flattened_batch_of_the_reference_library_is_read() -> None:
    transformers = pytest.importorskip("transformers")
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    assert check(documents=[3, 2], **batch).equal
    assert not check(documents=[2, 3], **batch).equal
    collate = transformers.DataCollatorWithFlattening(return_seq_idx=True)
    batch = collate([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    assert check(documents=[3, 2], **batch, restarts=True).equal
    assert not check(documents=[2, 3], **batch, restarts=True).equal


IDS = [5, 6, 7, 8, 9]
PLACES = [0, 1, 2, 0, 1]
SHIFTED = [6, 7, 8, 9, 0]  # the target of each token, across the border too
ENDS = torch.tensor([0, 3, 5], dtype=torch.int32)


@dataclass
class PackedSeqParams:
    """As Megatron's, of which None is the default of all."""

    cu_seqlens_q: Tensor
    cu_seqlens_kv: Tensor
    cu_seqlens_q_padded: Tensor
    cu_seqlens_kv_padded: Tensor
    max_seqlen_q: int
    max_seqlen_kv: int
    qkv_format: str = "thd"
    local_cp_size: Any = None


def test_batches_of_megatron_and_torchtitan_are_read() -> None:
    """In the forms of their sources. Labels are shifted, and masked by loss_mask or -100."""
    sft = {"tokens": [IDS], "labels": [SHIFTED], "position_ids": [PLACES], "cu_seqlens": ENDS[None]}
    sft |= {"loss_mask": torch.tensor([[1.0, 1, 0, 1, 0]]), "max_seqlen": torch.tensor(3)}
    report = check(**DOCUMENTS, **sft)
    assert report.equal
    assert report.notes == (
        "labels: read as shifted, as they are beside loss_mask; labels_are says otherwise",
    )
    report = check(**DOCUMENTS, **sft | {"loss_mask": torch.ones(1, 5)})
    assert [one.name for one in report.findings] == ["a label crosses a border"]
    cut = {"cu_seqlens": torch.tensor([0, 3, 5, -1, -1]), "cu_seqlens_argmin": torch.tensor([3])}
    assert check(**DOCUMENTS, **sft | cut, token_count=[5]).equal

    thd = PackedSeqParams(ENDS, ENDS, ENDS + ENDS.bool().cumsum(0), ENDS, 4, 4)
    thd.cu_seqlens_kv_padded = thd.cu_seqlens_q_padded
    padded = {"input_ids": [5, 6, 7, 0, 8, 9, 0], "position_ids": [0, 1, 2, 3, 0, 1, 2]}
    report = check(**DOCUMENTS, **padded, packed_seq_params=thd)
    assert report.equal
    assert report.notes[0] == "tokens 3 and 6: padding, as the row says; nothing is promised"
    assert check(**DOCUMENTS, **padded, **vars(thd)).equal

    titan = {"input": torch.tensor([IDS]), "positions": torch.tensor([PLACES])}
    labels = [[6, 7, -100, 9, -100]]
    assert check(**DOCUMENTS, **titan, labels=labels, cu_seq_q=ENDS, cu_seq_k=ENDS, max_q=3).equal
    assert check(**DOCUMENTS, **titan, labels=labels, restarts=True).equal
    assert not check(**DOCUMENTS, **titan, labels=[SHIFTED], restarts=True).equal


BESIDE = [
    ({"cu_seqlens_kv": [0, 2, 5]}, "cu_seqlens_k", "queries 0, 3, 5, keys 0, 2, 5: the borders of"),
    ({"max_length_q": 2}, "max_seqlen", "it is 2, and the longest document has 3 tokens"),
    ({"max_length_k": 2}, "max_seqlen_k", "it is 2, and the longest document has 3 tokens"),
    ({"seq_idx": [[0] * 5]}, "seq_idx", "token 3, the first of document 2, has the number 0, as"),
    ({"seq_idx": [0, 0, 1, 2, 2]}, "seq_idx", "token 2, the last of document 1, has the number 1"),
    ({"cu_seqlens_unpadded": [0, 2, 5]}, "cu_seqlens_unpadded", "the documents have 2, 3 tokens"),
]


@pytest.mark.parametrize(("field", "what", "words"), BESIDE)
def test_what_stands_beside_the_borders_must_agree_with_them(field, what, words: str) -> None:
    row = {**DOCUMENTS, "position_ids": PLACES, "cu_seqlens": ENDS}
    (finding,) = check(**row, **field).findings
    assert finding.what == what
    assert words in finding.words
    right = {"cu_seqlens_kv": ENDS, "max_length_q": 3, "max_length_k": 9}
    assert check(**row, **right, seq_idx=[4, 4, 4, 0, 0], cu_seqlens_unpadded=ENDS).equal


def test_what_no_border_depends_on_is_listed() -> None:
    batch = {"position_ids": PLACES, "cu_seqlens": ENDS, "num_items_in_batch": 3, "loss_mask": [1]}
    report = check(**DOCUMENTS, **batch)
    assert report.equal
    assert report.notes == ("not judged: num_items_in_batch, loss_mask; no border depends on them",)


def test_positions_that_start_over_are_no_border_unless_it_is_said() -> None:
    """Without any mask. Beside a row of 1 nothing is said: no model goes by positions then."""
    report = check(**DOCUMENTS, position_ids=PLACES)
    assert report.findings[0].name == CAUSAL
    assert "give restarts=True" in report.notes[0]
    assert check(**DOCUMENTS, position_ids=PLACES, restarts=True).equal
    assert check(**DOCUMENTS, position_ids=PLACES, attention_mask=[1] * 5).notes == ()
    branches = check(**BRANCHES)  # of which positions alone say nothing
    assert (branches.findings[0].name, branches.notes) == (CAUSAL, ())


ROW = {"position_ids": [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]], "input_ids": [[*range(5, 17)]]}
FLASH = {"cu_seq_lens_q": [0, 4, 7, 12], "cu_seq_lens_k": [0, 4, 7, 12], "max_length_q": 5}
FLASH |= {"max_length_k": 5}
SHOWN = [None, [[1] * 12], [[1] * 11 + [0]]]


@pytest.mark.parametrize("shown", SHOWN, ids=["no mask", "ones", "padding"])
def test_a_mask_of_0_and_1_switches_packing_off_as_in_the_reference_library(shown: Any) -> None:
    """Does another first token of document 1 move the others? Beside borders the verdict is also
    for flash attention: the condition is named."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 20}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_attention_heads=4))
    last = 11 if shown == SHOWN[2] else 12  # the last token may be padding
    meant = {"documents": [4, 3, last - 7], "padding": "right", **ROW, "attention_mask": shown}
    for borders in ({}, FLASH):
        given = {name: torch.tensor(value) for name, value in (ROW | borders).items()}
        given["attention_mask"] = shown and torch.tensor(shown)
        others = given | {"input_ids": given["input_ids"].clone()}
        others["input_ids"][0, 0] = 1
        for kind in ("sdpa", "eager"):
            model.set_attn_implementation(kind)
            leaks = []
            for has_cache in (False, True):
                one, other = (model(**g, use_cache=has_cache).logits for g in (given, others))
                leaks.append(not torch.equal(one[:, 4:last], other[:, 4:last]))
            said = borders or {"restarts": True}
            report = check(**meant, **said, use_cache=False)
            assert leaks == [not report.equal, True]
        if shown:
            assert "leave the " in report.findings[0].mend
            assert (OTHER_MASK if borders else CAUSAL) in report.findings[0].name
    with pytest.raises(InputError, match="with a cache transformers goes by no restarts"):
        check(**meant, restarts=True, use_cache=True)
    if not shown:
        assert check(**meant, **FLASH).conditions == (BY_BORDERS,)


def test_a_mask_of_padding_keeps_its_verdict_where_rows_are_not_packed() -> None:
    rows = {
        "documents": [[3], [5]],
        "padding": "right",
        "attention_mask": [[1, 1, 1, 0, 0], [1] * 5],
    }
    for more in ({}, {"restarts": True}, {"cu_seqlens": [0, 5]}):
        assert check(**rows, position_ids=[*range(5)], **more).equal


def test_borders_are_judged_as_the_mask_that_they_stand_for() -> None:
    """Random segments: the same findings, and the same note of tokens of no prompt."""
    draw = random.Random(0)
    names = set()
    for _ in range(150):
        lengths = [draw.randint(1, 3) for _ in range(draw.randint(1, 3))]
        T = sum(lengths) + draw.choice([0, 0, 1, 2])
        segments = [draw.choice([0, 0, 0, 1, 2]) for _ in range(T)]
        if draw.random() < 0.3:
            segments = [0] * T
        segments_T = torch.tensor(segments)
        hidden = torch.tensor([draw.random() < 0.1 for _ in range(T)])
        row: dict[str, Any] = {"documents": lengths, "position_ids": [0] * T}
        row |= {"padding": "left"} if draw.random() < 0.5 else {}
        mask = causal_mask(T) & (segments_T[:, None] == segments_T) & ~hidden
        by_mask = check(**row, attention_mask=mask[None, None])
        shown = (~hidden).long()
        by_borders = check(**row, segment_ids=segments, attention_mask=shown)
        assert by_borders.findings == by_mask.findings
        assert by_borders.picture == by_mask.picture
        if not hidden.any():
            assert by_borders == by_mask
        names |= {one.name for one in by_borders.findings if one.what == "mask"}
    assert names >= {"", CAUSAL, PADDING_SHOWN, f"{CAUSAL}, and {PADDING_SHOWN}"}


def test_borders_alone_need_no_mask_of_all_pairs() -> None:
    """Right and wrong: in a row whose masks would take 2.5 GB, no function makes one."""
    T = 16_384
    row = {"documents": [T // 8] * 8, "position_ids": torch.arange(T // 8).repeat(8)}
    row |= {"input_ids": [0] * T, "labels": [-100, *[0] * (T - 1)], "labels_are": "shifted"}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("formats.causal_mask", "mistakes.causal_mask", "packing.within"):
            patch.setattr(f"minise.lab.packing.{name}", None)
        right = check(**row, cu_seqlens=[*range(0, T + 1, T // 8)])
        wrong = check(**row, cu_seqlens=[0, T])
    assert [one.name for one in right.findings] == ["a label crosses a border"]
    assert right.findings[0].wrong == 8  # the last token's too
    assert wrong.findings[0].name == CAUSAL
    assert wrong.findings[0].wrong == T * T * 7 // 16


@pytest.mark.parametrize(
    ("borders", "words"),
    [
        ([0, 5, 8, 12], "border 1 stands at 5, meant 4 (and 1 more)"),
        ([0, 4, 6, 12], "border 2 stands at 6, meant 7"),
        ([0, 7, 12], "no border stands at 4"),
        ([0, 4, 7, 9, 12], "a border stands at 9, none is meant"),
    ],
)
@pytest.mark.parametrize("times", [1, 1365])
def test_a_border_at_the_wrong_place_is_named(borders: Any, words: str, times: int) -> None:
    """By borders also in 16,383 tokens, of which no mask is made; in a small row by a mask too."""
    rest = [12 * (times - 1)] * (times > 1)  # one more document
    lengths = [4, 3, 5, *rest]
    row = {"documents": lengths, "position_ids": [p for length in lengths for p in range(length)]}
    borders = {"cu_seqlens": [*borders, *(12 + length for length in rest)]}
    (finding,) = check(**row, **borders).findings
    if not rest:
        mask = Packing(row | borders).mask
        assert check(**row, attention_mask=mask).findings == (finding,)
    assert finding.words.endswith(f": {words}")
    assert finding.name == MOVED


def test_padding_between_documents_is_understood() -> None:
    row = {"documents": [3, 2], "padded": [4, 4], "cu_seqlens_q": [0, 4, 8]}
    positions = [0, 1, 2, 3, 0, 1, 2, 3]
    right = check(**row, position_ids=positions)
    assert (right.equal, right.unjudged) == (True, 0)
    assert right.notes == ("tokens 3, 6 and 7: padding, as the row says; nothing is promised",)
    row["cu_seqlens_q"] = [0, 3, 5]
    assert check(**row, position_ids=positions).findings[0].what == "cu_seqlens"


def test_a_batch_is_judged_row_by_row_and_each_axis_of_positions() -> None:
    rows = {
        "documents": [[3, 2], [5]],
        "position_ids": torch.tensor([[0, 1, 2, 0, 1], [*range(5)]]),
    }
    report = check(**rows, attention_mask=torch.ones(2, 5))
    assert (report.tokens, report.prompts, report.equal) == (10, 3, False)
    assert [one.words[:12] for one in report.findings] == ["row 0: token"]
    seen = torch.stack([RIGHT, causal_mask(5)])
    assert check(**rows, mask_mod=lambda b, h, q, k: seen[b, q, k]).equal
    axes = torch.tensor([[0, 1, 2, 0, 1]]).repeat(3, 1)
    three = {"documents": [3, 2], "cu_seqlens": [0, 3, 5]}
    assert check(**three, position_ids=axes).equal
    assert check(
        documents=[[3, 2]] * 2, cu_seqlens=[0, 3, 5], position_ids=axes[:, None].repeat(1, 2, 1)
    ).equal
    assert check(documents=[[5]], position_ids=[[[*range(5)]]]).equal  # one axis
    axes[1, 4] = 7
    assert "has the position 7, not 1 in axis 1" in first(**three, position_ids=axes)
    assert check(**three, position_ids=axes, positions_alone=axes).equal
