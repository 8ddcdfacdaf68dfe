"""No fault of a disk loses an answer or leaves a torn file: neither an error of any call, nor a
loss of power between two calls."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minise import files
from minise.evaluation import samples
from tests.support.disk import ForgetfulDisk, Loss, problem
from tools.faults import ERRORS, Commands, check_all

for module in ("scipy", "sklearn", "matplotlib", "filelock"):
    pytest.importorskip(module)


@pytest.fixture(scope="module")
def commands(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Commands(tmp_path_factory.mktemp("commands").resolve(), model)


def run_on_a_forgetful_disk(commands: Commands, name: str) -> ForgetfulDisk:
    disk = ForgetfulDisk(commands.folder)
    append = samples.append_text

    def noting(path: Path, text: str, *more: Any) -> None:
        append(path, text, *more)
        disk.appended(path, text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "append_text", noting)
        assert commands.run(name, disk)[:2] == (0, "")
    return disk


class TestALossOfPower:
    @pytest.mark.parametrize("name", ["eval", "eval that goes on", "report", "explain"])
    def test_leaves_every_file_old_or_new_and_every_answer(
        self, commands: Commands, name: str
    ) -> None:
        disk = run_on_a_forgetful_disk(commands, name)
        assert len(disk.losses) > 30
        assert {problem(disk, loss) for loss in disk.losses} == {""}

    def test_lets_a_run_go_on_to_the_same_results(self, commands: Commands) -> None:
        disk = run_on_a_forgetful_disk(commands, "eval")
        torn = [loss for loss in disk.losses if self._is_torn(loss)]
        zeros = [loss for loss in torn if any(b"\0" in content for content in loss.files.values())]
        assert len(zeros) > 5
        for loss in [
            zeros[0],
            zeros[-1],
            torn[len(torn) // 2],
            *disk.losses[:: len(disk.losses) // 5],
        ]:
            shutil.rmtree(commands.output, ignore_errors=True)
            for path, content in loss.files.items():
                if Path(path).is_relative_to(commands.output):
                    Path(path).parent.mkdir(exist_ok=True)
                    Path(path).write_bytes(content)
            assert commands.run("eval", fresh=False)[:2] == (0, ""), loss.after
            assert commands.end("eval") == commands.ends["eval"], loss.after

    @staticmethod
    def _is_torn(loss: Loss) -> bool:
        return any(
            content not in (b"", loss.answers.get(path, b""))
            for path, content in loss.files.items()
            if path.endswith(".jsonl") and "vector" not in path
        )

    @pytest.mark.parametrize("forgotten", ["fsync", "sync_folder", "replace"])
    def test_is_noticed_where_a_step_is_left_out(
        self, commands: Commands, forgotten: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if forgotten == "fsync":
            monkeypatch.setattr(files, "os", _NoSync())
        elif forgotten == "sync_folder":
            monkeypatch.setattr(files, "sync_folder", lambda folder: None)
        else:
            monkeypatch.setattr(files, "_replace", _in_place)
        disk = run_on_a_forgetful_disk(commands, "report" if forgotten == "replace" else "eval")
        assert any(problem(disk, loss) for loss in disk.losses)


class _NoSync:
    """The module os, whose fsync does nothing."""

    def __getattr__(self, name: str) -> Any:
        return (lambda number: None) if name == "fsync" else getattr(os, name)


def _in_place(path: Path, data: bytes, mode: int | None) -> None:
    os.truncate(path, 0) if path.exists() else None
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class TestAnError:
    @pytest.mark.parametrize("name", ["eval", "eval that goes on", "report", "explain"])
    def test_is_one_line_and_loses_nothing(self, commands: Commands, name: str) -> None:
        """A sample; `python -m tools.faults` tries every call with every error."""
        some = commands.calls[name] * len(ERRORS) // 8
        cases = list(check_all(commands, [name], some))
        assert len(cases) >= 8
        assert [str(case) for case in cases if case.problem] == []

    def test_that_is_swallowed_is_noticed(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "_replace", _in_place)
        cases = check_all(commands, ["explain"])
        assert any("neither old nor new" in case.problem for case in cases)
