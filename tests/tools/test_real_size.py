"""tools/real_size.py writes checkpoints that load, whatever their size, and measures them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import minise
from minise.bench.shapes import PUBLISHED
from minise.loading.source import INDEX
from tests.support.tiny import FAMILIES
from tools import real_size

SHAPE = {**FAMILIES["qwen2"], "vocab_size": 1500, "hidden_size": 64}


def test_a_written_model_is_a_checkpoint_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_size, "POOL", 1001)  # so that matrices are written in pieces
    folder = tmp_path / "model"
    real_size.write(SHAPE, folder, shard=50_000)
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 2
    assert set(json.loads((folder / INDEX).read_text())["weight_map"].values()) == {
        path.name for path in shards
    }
    lm = minise.load(folder, dtype=torch.bfloat16)
    for name, parameter in lm.decoder.named_parameters():
        if parameter.dim() == 2:
            assert 0.015 < parameter.float().std() < 0.025, name
            assert not torch.equal(parameter[0], parameter[1])
        else:
            assert (parameter == 1).all(), name
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    real_size.write(SHAPE, folder)  # it is there
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(FileExistsError):
        real_size.write(FAMILIES["llama"], folder)  # never over another model


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
def test_the_table_has_a_row_for_each_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PUBLISHED, "tiny/tiny", SHAPE)
    arguments = ["tiny/tiny", "--format", "bf16,nf4", "--folder", str(tmp_path / "model")]
    assert real_size.main(arguments) == 0
    _, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("|")
    ]
    assert [row[0] for row in rows] == ["bf16", "nf4"]
    for row in rows:
        peak, _, _, tokens, _ = row[1:]
        assert 0 < float(peak) < 2
        assert 900 < int(tokens) < 1000
