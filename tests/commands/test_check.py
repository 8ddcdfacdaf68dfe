"""`minise check`: the kinds of files, what it prints, its exit status, and its refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from minise import load
from minise.checking.mistakes import CAUSAL
from tests.support.commands import assert_one_line, run
from tests.support.masks import blocks

ROOT = Path(__file__).parents[2]
WRONG: dict[str, Any] = {"documents": [3, 3], "position_ids": [0, 1, 2, 0, 1, 2]}
RIGHT = {**WRONG, "cu_seqlens": [0, 3, 6]}


def write(path: Path, fields: dict[str, Any]) -> Path:
    """The same row as any kind of file."""
    if path.suffix == ".json":
        path.write_text(json.dumps(fields))
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.array(value) for name, value in fields.items()})
    else:
        words = {name: value for name, value in fields.items() if isinstance(value, str)}
        rows = {name: torch.tensor(fields[name]) for name in fields.keys() - words}
        save_file(rows, path, metadata={"format": "pt", **words})
    return path


@pytest.mark.parametrize("kind", [".json", ".npz", ".safetensors"])
def test_every_kind_of_file_is_read_alike(capsys, tmp_path: Path, kind: str) -> None:
    status, out, err = run(capsys, "check", write(tmp_path / f"row{kind}", WRONG))
    assert (status, err) == (1, "")
    assert out.startswith(f"{tmp_path / 'row'}{kind}: 6 tokens, 2 separate prompts: NOT equal")
    assert "\nmask: token 3, the first of document 2, may attend to token 0, the first" in out
    assert f" of document 1: {CAUSAL}\n" in out
    assert "\n  wrong: 9 of 36\n  to mend it: hide other prompts" in out
    assert "\n    3  document 2         0  !!!█··\n" in out
    status, out, err = run(capsys, "check", write(tmp_path / f"right{kind}", RIGHT))
    assert (status, err) == (0, "")
    assert (
        out
        == f"{tmp_path / 'right'}{kind}: 6 tokens, 2 separate prompts: equal to the separate runs\n"
    )
    more = {
        **WRONG,
        "attention_mask": blocks((3, 3)).tolist(),
        "window": 2,
        "labels_are": "shifted",
    }
    status, out, err = run(capsys, "check", write(tmp_path / f"more{kind}", more))
    assert (status, err) == (1, "")
    assert "the sliding window is not applied" in out


def test_json_has_every_finding(capsys, tmp_path: Path) -> None:
    path = write(tmp_path / "row.json", {"documents": [2, 2]})
    status, out, err = run(capsys, "check", path, "--json")
    report = json.loads(out)
    assert (status, err) == (1, "")
    assert set(report) == {"file", "equal", "tokens", "prompts", "findings", "picture"}
    assert [one["what"] for one in report["findings"]] == ["mask", "positions"]
    assert set(report["findings"][0]) == {"what", "words", "name", "wrong", "of", "mend"}
    assert (report["equal"], report["tokens"], report["prompts"]) == (False, 4, 2)


@pytest.mark.parametrize("kind", [".safetensors", ".npy"])
def test_logits_are_compared_with_separate_runs(
    capsys, tmp_path: Path, llama_folder: Path, kind: str
) -> None:
    lm = load(llama_folder, dtype=torch.float64)
    tokens, positions = torch.tensor([5, 6, 7, 8, 9, 10]), torch.tensor([0, 1, 2, 0, 1, 2])
    row = write(tmp_path / "row.json", {"documents": [3, 3], "input_ids": tokens.tolist()})
    for mask, status in ((blocks((3, 3)), 0), (blocks((6,)), 1)):
        with torch.inference_mode():
            logits = lm.decoder.logits(lm.decoder(tokens, positions, mask))
        path = tmp_path / f"logits{kind}"
        if kind == ".npy":
            np.save(path, logits.numpy())
        else:
            save_file({"logits": logits}, path)
        got, out, err = run(capsys, "check", row, "--logits", path, "--model", llama_folder)
        assert (got, err) == (status, "")
        assert (f": {CAUSAL}\n" in out) == (status == 1)
    got, out, err = run(
        capsys, "check", row, "--logits", path, "--model", llama_folder, "--tolerance", 1e9
    )
    assert (got, err) == (0, "")


def damaged(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Files that cannot be read, by name, and a part of what is said."""
    contents = {
        "not.json": (b"{", "not JSON"),
        "list.json": (b"[1]", "holds no object"),
        "bytes.json": (b"\xff\xfe", "not JSON"),
        "unknown.json": (b'{"document": [1]}', '"document" is unknown'),
        "format.json": (b'{"format": "vllm"}', 'format "vllm" is unknown'),
        "lm.json": (b'{"lm": 1, "documents": [1]}', "lm is no field"),
        "row.txt": (b"", "is not .json, .safetensors, .npz"),
        "cut.safetensors": (b"12345678", "not a whole safetensors file"),
        "cut.npz": (b"PK", "not readable as NPZ"),
        "empty.npz": (b"", "not readable as NPZ"),
    }
    files = {}
    for name, (content, part) in contents.items():
        (tmp_path / name).write_bytes(content)
        files[name] = (tmp_path / name, part)
    np.savez(tmp_path / "object.npz", documents=np.array([{}], dtype=object))
    return {
        **files,
        "object.npz": (tmp_path / "object.npz", "not readable as NPZ"),
        "absent.json": (tmp_path / "absent.json", "no such file"),
        "folder.json": (tmp_path, "is not .json"),
    }


def test_a_damaged_file_is_one_line(capsys, tmp_path: Path) -> None:
    for name, (path, part) in damaged(tmp_path).items():
        done = run(capsys, "check", path)
        assert_one_line(*done, [part, str(path.name)])
        assert name


def test_a_file_over_the_limit_is_refused_before_it_is_read(capsys, tmp_path, monkeypatch) -> None:
    path = write(tmp_path / "row.npz", {"documents": [2], "position_ids": list(range(10_000))})
    monkeypatch.setattr("minise.commands.run_check.free_bytes", lambda device: 40_000)
    monkeypatch.setattr(np, "load", None)
    assert_one_line(*run(capsys, "check", path), ["row.npz", "over the limit"])


def test_logits_that_cannot_be_read_are_one_line(capsys, tmp_path: Path, llama_folder) -> None:
    row = write(tmp_path / "row.json", {"documents": [2], "input_ids": [5, 6]})
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "two.safetensors")
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    for name, part in (
        ("cut.npy", "not readable as NPY"),
        ("two.safetensors", "has 2 tensors and no logits"),
        ("one.safetensors", "logits: are torch.float32 of the shape (2,)"),
        ("none.npy", "no such file"),
        ("row.json", "is not .safetensors or .npy"),
    ):
        done = run(capsys, "check", row, "--model", llama_folder, "--logits", tmp_path / name)
        assert_one_line(*done, [part])
    assert_one_line(*run(capsys, "check", row, "--tolerance", -1), ["--tolerance -1.0 is below 0"])


def test_a_files_text_is_printed_without_escape_sequences(capsys, tmp_path: Path) -> None:
    path = write(tmp_path / "\x1b[31mrow.json", WRONG)
    status, out, _ = run(capsys, "check", path)
    assert status == 1
    assert "\x1b" not in out


def test_the_example_of_the_page_prints_what_the_page_shows(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
    row = re.findall(r"^```json\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[0]
    shown = re.findall(r"^```text\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[0]
    command = re.findall(r"^minise (check .*)$", page, flags=re.MULTILINE)[0]
    monkeypatch.chdir(tmp_path)
    Path("row.json").write_text(row)
    assert run(capsys, *command.split()) == (1, shown, "")
    example = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    for code in example:
        exec(code, {})
