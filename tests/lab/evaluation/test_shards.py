"""Shards: questions dealt by striding, files of each in one folder, joined by a report."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minise import LocalModel
from minise.errors import InputError
from minise.lab.evaluation.request import Run
from minise.lab.evaluation.results import read_run
from minise.lab.evaluation.run import evaluate
from tests.lab.evaluation.conftest import lines

MakeRun = Callable[..., Run]
METHODS = ("standard", "self-ensemble", "vector-scaling(folds=2)")


@pytest.fixture(scope="module")
def sharded(
    equal_bits: LocalModel, make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    for i in (2, 0, 1):
        evaluate(equal_bits, make_run(*METHODS, shard=(i, 3)), folder, print)
    return folder


@pytest.fixture
def copy(sharded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sharded, tmp_path / "copy"))


def numbers(content: dict[str, Any]) -> dict[str, Any]:
    """Without what depends on the clock."""
    for cells in content["results"].values():
        for cell in cells.values():
            for name in ("seconds", "seconds_interval"):
                del cell[name]
    for each in content["differences"].values():
        for one in each:
            for name in ("seconds", "seconds_interval"):
                del one[name]
    return {key: content[key] for key in ("results", "differences")}


def test_joined_shards_equal_an_unsharded_run_in_every_bit_with_equal_bits(
    equal_bits: LocalModel, make_run: MakeRun, copy: Path, tmp_path: Path
) -> None:
    evaluate(equal_bits, make_run(*METHODS), tmp_path / "whole", print)
    whole, joined = read_run(tmp_path / "whole"), read_run(copy)
    for method in METHODS:
        name = f"samples-words-{method}.jsonl"
        assert lines(copy / name) == lines(tmp_path / "whole" / name)
    assert numbers(joined.content) == numbers(whole.content)


def other_number(folder: Path) -> None:
    text = (folder / "run.shard-1-of-3.json").read_text()
    (folder / "run.shard-1-of-4.json").write_text(text.replace('"shards": 3', '"shards": 4'))


def swapped(folder: Path) -> None:
    first, second = (folder / f"samples-words-standard.shard-{i}-of-3.jsonl" for i in (0, 1))
    text = first.read_text()
    first.write_text(second.read_text())
    second.write_text(text)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (other_number, "shards is 4"),
        (swapped, "other questions"),
    ],
)
def test_what_is_not_one_whole_run_is_not_joined(
    copy: Path, damage: Callable[[Path], None], named: str
) -> None:
    damage(copy)
    with pytest.raises(InputError, match=named) as caught:
        read_run(copy)
    assert "\n" not in str(caught.value)
    assert not (copy / "results.json").exists()


def test_a_method_left_out_of_one_shard_is_left_out_of_all(copy: Path) -> None:
    (copy / "samples-words-standard.shard-1-of-3.left-out").write_text("left out: a reason")
    run = read_run(copy)
    assert list(run.answers["words"]) == ["self-ensemble"]
    assert run.left_out[0] == "left out: a reason"
    assert "vector-scaling" in run.left_out[1]
    assert json.loads((copy / "results.json").read_text())["differences"] == {"words": []}
