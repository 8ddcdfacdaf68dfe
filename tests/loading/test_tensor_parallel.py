"""A decoder split over processes has the numbers of the whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minise.commands.cli import main
from minise.errors import InputError
from minise.loading.checkpoint import prepare, read_weights
from minise.loading.tensor_parallel import Share
from tests.support.commands import assert_one_line, run
from tests.support.processes import Team
from tests.support.runs import arguments, samples
from tests.support.split_check import compare
from tests.support.tiny import ALL_FAMILIES, write_checkpoint

# Sizes that four processes can share, too; among them biases, windows and a tied output.
WIDE = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}


@pytest.mark.parametrize("processes", [2, 4])
def test_every_layer_of_every_engine_is_that_of_one_process(tmp_path: Path, processes: int) -> None:
    folders = [
        str(write_checkpoint(tmp_path / name, {**raw, **WIDE}))
        for name, raw in ALL_FAMILIES.items()
    ]
    team = Team(processes, tmp_path, compare, processes, folders)
    assert set(team.join()) == {0}, team.output("err")
    differences = json.loads(team.output("out"))
    assert list(differences) == folders
    for each in differences.values():
        assert each.pop("values") < 1 / processes + 0.6  # the embedding is whole
        assert each.pop("generated") == 0
        assert all(difference <= 1e-10 for difference in each.values()), each


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_the_parts_of_all_processes_make_the_whole(tmp_path: Path, family: str) -> None:
    folder = write_checkpoint(tmp_path, {**ALL_FAMILIES[family], **WIDE})
    whole = read(folder, None)
    parts = [read(folder, Share(index, 4)) for index in range(4)]
    for name, tensor in whole.items():
        axis = {"o_proj": 1, "down_proj": 1, "embed_tokens": None, "norm": None}.get(
            name.split(".")[-2], 0
        )
        if axis is None or "norm" in name:
            assert all(torch.equal(part[name], tensor) for part in parts)
        else:
            assert torch.equal(torch.cat([part[name] for part in parts], dim=axis), tensor)
            assert parts[0][name].shape[axis] * 4 == tensor.shape[axis]


def read(folder: Path, share: Share | None) -> dict[str, torch.Tensor]:
    _, stored, placed = prepare(str(folder), None, torch.float32, "cpu", None, share=share)
    decoder = read_weights(stored, placed.dtype, placed.device)
    state = decoder.state_dict()
    assert placed.bytes == sum(tensor.numel() * 4 for tensor in state.values())
    return state


def test_an_evaluation_by_two_teams_of_two_has_the_answers_of_one_process(
    model: Path, data: Path, whole: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    command = arguments(model, data, tmp_path, "--method", "standard,self-ensemble")
    team = Team(4, tmp_path, main, [*command, "--tensor-parallel", "2"])
    assert (set(team.join()), team.output("err")) == ({0}, "")
    by_teams, expected = samples(tmp_path), samples(whole)
    for name in ("samples-words-standard.jsonl", "samples-words-self-ensemble.jsonl"):
        assert [line["id"] for line in by_teams[name]] == [line["id"] for line in expected[name]]
        for ours, theirs in zip(by_teams[name], expected[name], strict=True):
            assert ours["tokens"] == theirs["tokens"]
            assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)
    # The last bits differ, so it is another run.
    described = json.loads((tmp_path / "run.json").read_text())
    assert described["tensor_parallel"] == 2


class TestWhatCannotBeSplit:
    @pytest.mark.parametrize(
        ("processes", "parts"),
        [
            (4, ["num_key_value_heads 2 cannot be split over 4", "use --tensor-parallel 2"]),
            (3, ["num_attention_heads 4 cannot be split over 3", "use --tensor-parallel 2"]),
        ],
    )
    def test_sizes_that_cannot_be_split_are_refused(
        self, model: Path, processes: int, parts: list[str]
    ) -> None:
        with pytest.raises(InputError) as caught:
            read(model, Share(0, processes))
        for part in parts:
            assert part in str(caught.value)

    def test_4_bit_weights_are_refused(self, model: Path) -> None:
        with pytest.raises(InputError, match="4 bits cannot be split"):
            prepare(str(model), None, "auto", "cpu", "nf4", share=Share(0, 2))

    @pytest.mark.parametrize("width", [0, 2, -1])
    def test_tensor_parallel_with_one_process_is_refused(
        self, capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, width: Any
    ) -> None:
        command = arguments(tmp_path, data, tmp_path / "out", "--method", "standard")
        result = run(capsys, *command, "--tensor-parallel", width)
        parts = [f"--tensor-parallel {width} with 1 processes", "torchrun --nproc-per-node"]
        assert_one_line(*result, parts)
