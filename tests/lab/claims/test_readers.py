"""Whatever a file holds: a command is done, or refuses it in one line, soon and in little memory.

For each reader hypothesis takes a sound file, puts other values into it, and damages its bytes.
"""

import json
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("hypothesis", reason="it draws the damage; the extra [test] has it")
pytest.importorskip("resource", reason="limits of POSIX")

import resource

from hypothesis import given
from hypothesis import strategies as st

from tests.lab.support.rows import OWN, write
from tests.reference.support.cases import cases
from tests.reference.support.commands import Q, assert_one_line, run
from tests.reference.support.tiny import ALL_FAMILIES, FAMILIES, make_tokenizer, write_checkpoint

SECONDS, BYTES = 10, 1_500_000_000
ASK = ["ask", *Q, "--trials", 1, "--model"]
ROW = {"documents": [3, 3], "position_ids": [0, 1, 2] * 2, "cu_seqlens": [0, 3, 6], "window": 2}
ROW |= {"input_ids": [5] * 6, "labels": [5] * 6, "padding": "right"}
BIASED = {"documents": [2], "attention_mask": [[0.0, -9e9], [-1.0, 0.0]], "mask_is": "additive"}
TREE = {"tree": [-1, 0]}
BATCH = {"trunk": 1, "branches": [[1], [1]], "position_ids": [[0, 1]] * 2, "parents": [-1, 0]}
PACKED: list[dict[str, Any]] = [ROW, BIASED, TREE, BATCH, {"documents": [1], "mask": [[0.0]]}]
KEYS = st.sampled_from(["is_causal", "layer_types", "rope_scaling", "rope_parameters", "use_cache"])
NAMES = st.sampled_from([*ROW, *BIASED, *TREE, *BATCH, "mask", "cu_seqlens_q", "padded", "no"])

TEXTS = st.sampled_from(["", " ", "a", "A", "\0\x1b[2J", "\ud800", "é", "x" * 5000, "{", "1"])
NUMBERS = st.integers(-3, 300) | st.sampled_from([2**31, 2**63, 10**30, 10**400]) | st.floats()
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(TEXTS, some, max_size=2),
    max_leaves=4,
)
PIECES = st.sampled_from([b"", b"0", b"9e99", b'"', b"{", b"\n", b"\xff", b"\0" * 8, b"[" * 9999])
TENSORS = st.sampled_from(
    [
        *(torch.ones(0), torch.ones(3, 2), torch.full((9,), math.nan)),
        *(torch.tensor(7), torch.full((6,), 2**40), torch.ones(2, 2).bool()),
    ]
).map(torch.clone)


DTYPES = st.sampled_from([torch.int64, torch.int8, torch.bool, torch.float32, torch.float64])
CELLS = st.sampled_from([-(2**6), -3, -1, 0, 1, 2, 100])


def changed(draw: st.DrawFn, value: Any) -> Any:
    """The value with another one at some place in it, or without that place."""
    if isinstance(value, str) and draw(st.booleans()):
        return value[: draw(st.integers(0, len(value)))] + draw(TEXTS)
    if not (isinstance(value, dict | list) and value and draw(st.integers(0, 7))):
        return draw(VALUES)
    places = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    place = draw(st.sampled_from(list(places)))
    places[place] = changed(draw, places[place])
    if not draw(st.integers(0, 3)):
        del places[place]
    return places if isinstance(value, dict) else list(places.values())


def several(draw: st.DrawFn, value: Any) -> Any:
    for _ in range(draw(st.integers(0, 3))):
        value = changed(draw, value)
    return value


def broken(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes, often with other ones at some places."""
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at, size = draw(st.integers(0, len(content))), draw(st.sampled_from([0, 1, 8, 999]))
        content = content[:at] + draw(PIECES) + content[at + size :]
    return content


# A reader: a folder with what is sound, and a drawn file in it; the command that reads it.
Read = Callable[[st.DrawFn, Path], list[object]]


def of_json(name: str, sound: Any, *words: str) -> Read:
    def read(draw: st.DrawFn, folder: Path) -> list[object]:
        content = json.dumps(several(draw, sound)).encode()
        (folder / name).write_bytes(broken(draw, content))
        return [*ASK, folder, *words]

    return read


def config_file(draw: st.DrawFn, folder: Path) -> list[object]:
    sound = draw(st.sampled_from(list(ALL_FAMILIES.values())))
    write_checkpoint(folder, sound)
    raw = several(draw, sound | draw(st.dictionaries(KEYS, VALUES, max_size=1)))
    (folder / "config.json").write_bytes(broken(draw, json.dumps(raw).encode()))
    return [*ASK, folder]


def weight_file(draw: st.DrawFn, folder: Path) -> list[object]:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in draw(st.lists(st.sampled_from([*tensors, "x"]), max_size=2)):
        tensors[name] = draw(TENSORS)
    for name in draw(st.lists(st.sampled_from([*tensors]), max_size=2)):
        values = tensors[name] = tensors[name].to(draw(DTYPES))
        if values.is_floating_point() and values.numel():
            values.flatten()[0] = draw(st.floats(width=32))
    save_file(tensors, path)
    path.write_bytes(broken(draw, path.read_bytes()))
    return [*ASK, folder]


def question_file(draw: st.DrawFn, folder: Path) -> list[object]:
    kind = draw(st.sampled_from(["jsonl", "json", "csv", "tsv", "parquet", "jsonl.gz"]))
    path = folder / f"mine.{kind}"
    rows = [several(draw, row) for row in OWN[: draw(st.integers(1, 2))]]
    content = write(path, OWN[:1]).read_bytes()
    with suppress(Exception):  # a kind may not hold such rows
        content = write(path, rows).read_bytes()
    path.write_bytes(broken(draw, draw(st.sampled_from([b"", b"sep=,\n"])) + content))
    return ["ask", "--trials", 1, "--model", folder, "--file", path]


def packed_row(draw: st.DrawFn, folder: Path) -> list[object]:
    path = folder / f"row.{draw(st.sampled_from(['json', 'npz', 'safetensors']))}"
    row = draw(st.sampled_from(PACKED))
    if path.suffix == ".json":
        row = several(draw, row | draw(st.dictionaries(NAMES, VALUES, max_size=1)))
        path.write_text(json.dumps(row))
    else:
        tensors = {}
        for name, value in row.items():
            if not isinstance(value, str):
                tensors[name] = torch.tensor(value)
        tensors |= draw(st.dictionaries(NAMES, TENSORS, max_size=2))
        for name in draw(st.lists(st.sampled_from([*tensors]), max_size=2)):
            cells = tensors[name] = tensors[name].clone().to(draw(DTYPES))
            if cells.numel():
                cells.flatten()[draw(st.integers(0, cells.numel() - 1))] = draw(CELLS)
        if path.suffix == ".npz":
            np.savez(path, **{name: one.numpy() for name, one in tensors.items()})
        else:
            save_file(tensors, path, {"padding": draw(TEXTS).replace("\ud800", "")})
    path.write_bytes(broken(draw, path.read_bytes()))
    return ["check", path]


TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CHAT = {"chat_template": [{"name": "default", "template": TEMPLATE}], "bos_token": "<s>"}
READERS: dict[str, Read] = {
    "config.json": config_file,
    "weights": weight_file,
    "tokenizer.json": of_json("tokenizer.json", json.loads(make_tokenizer(bos=False).to_str())),
    "index": of_json("model.safetensors.index.json", {"weight_map": {"a": "model.safetensors"}}),
    "tokenizer_config.json": of_json("tokenizer_config.json", CHAT, "--template", "chat"),
    "question file": question_file,
    "packed row": packed_row,
}


class TooLong(BaseException):
    """No Exception, which a reader may take for damage of its file."""


@contextmanager
def bounded() -> Iterator[None]:
    """Seconds of the processor, so that a busy machine changes nothing, and bytes of memory."""

    def stop(*_: object) -> None:
        raise TooLong

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + BYTES
    handler = signal.signal(signal.SIGVTALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGVTALRM, handler)


@pytest.mark.parametrize("name", READERS)
@cases(15)
@given(data=st.data())
def test_any_file_is_read_or_refused_in_one_line(
    name: str, data: st.DataObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    write_checkpoint(folder, FAMILIES["qwen2"])
    words = READERS[name](data.draw, folder)
    with bounded():
        status, out, err = run(capsys, *words)
    assert status in (0, 1, 2)
    if status == 2:
        assert_one_line(status, out, err, [str(folder)])
        assert "memory" not in err.lower()
    else:
        assert err == ""
        assert out != ""
