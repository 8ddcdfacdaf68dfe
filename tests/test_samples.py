"""The samples file and the folder of a run: nothing is lost, nothing is mixed up."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("filelock")

from minise.errors import InputError
from minise.evaluation import samples
from minise.evaluation.samples import (
    Sample,
    append_lines,
    drop_torn_line,
    open_folder,
    read_samples,
    replace_file,
    samples_path,
)

ONE = Sample("q1", 0, "hash", 1, 0, [0.1 + 0.2, 0.7], [1 / 3, 2e-310], 17, 0.25)
TWO = replace(
    ONE,
    id="ü\u2028",
    logits=[-1.5, 3e300],
    groups=[{"choices": [0, 1], "probabilities": [0.5, 0.5], "null": None}],
    notes={"why": "because", "lead": None},
)
DESCRIPTION = {"model": "m", "seeds": [0, 1], "tasks": {"words": {"hash": "a", "n": 3}}}


def fails(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestTheFile:
    def test_samples_read_back_as_they_were_written(self, tmp_path: Path) -> None:
        path = samples_path(tmp_path, "words", "standard")
        assert path == tmp_path / "samples-words-standard.jsonl"
        fitted = replace(ONE, seed=1, seconds=None)
        append_lines(path, [ONE.line(), TWO.line()])
        append_lines(path, [fitted.line()])
        assert read_samples(path) == [ONE, TWO, fitted]
        assert [sample.key for sample in read_samples(path)] == [(0, "q1"), (0, TWO.id), (1, "q1")]

    def test_a_line_is_an_object_without_what_is_none(self) -> None:
        names = [field.name for field in fields(Sample)]
        assert list(json.loads(ONE.line())) == names[:9]
        assert list(json.loads(TWO.line())) == names
        assert "seconds" not in json.loads(replace(ONE, seconds=None).line())
        assert "ü" in TWO.line()
        assert ONE.line().endswith("}\n")
        assert ONE.line().count("\n") == TWO.line().count("\n") == 1

    def test_no_file_holds_no_samples(self, tmp_path: Path) -> None:
        drop_torn_line(tmp_path / "none.jsonl")
        assert read_samples(tmp_path / "none.jsonl") == []
        assert list(tmp_path.iterdir()) == []

    def test_wherever_it_is_cut_its_complete_lines_remain(self, tmp_path: Path) -> None:
        path = tmp_path / "samples.jsonl"
        content = (ONE.line() + TWO.line()).encode()
        first = len(ONE.line().encode())
        for length in range(len(content) + 1):
            path.write_bytes(content[:length])
            complete = [ONE, TWO][: (length >= first) + (length == len(content))]
            assert read_samples(path) == complete
            drop_torn_line(path)
            assert path.read_bytes() == "".join(sample.line() for sample in complete).encode()
            append_lines(path, [replace(ONE, seed=9).line()])
            assert read_samples(path) == [*complete, replace(ONE, seed=9)]

    @pytest.mark.parametrize(
        "line",
        [
            b"rubbish",
            b"",
            b"[]",
            b"3",
            b"{}",
            ONE.line().encode()[:-9],
            ONE.line().encode().replace(b'"seed"', b'"sead"'),
            ONE.line().encode().replace(b"q1", b"\xff"),
        ],
    )
    def test_a_broken_line_is_named(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "samples.jsonl"
        path.write_bytes(TWO.line().encode() + line + b"\n" + ONE.line().encode())
        with pytest.raises(InputError, match=r"samples.jsonl, line 2: not a sample") as caught:
            read_samples(path)
        assert "\n" not in str(caught.value)

    def test_a_sample_that_is_there_twice_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "samples.jsonl"
        append_lines(path, [ONE.line(), replace(ONE, seed=1).line(), replace(ONE, answer=0).line()])
        with pytest.raises(InputError, match=r"samples.jsonl, line 3: question q1 is there twice"):
            read_samples(path)

    def test_lines_are_on_the_disk_before_it_returns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, synced = tmp_path / "samples.jsonl", []
        monkeypatch.setattr(samples.os, "fsync", lambda _: synced.append(path.read_bytes()))
        append_lines(path, [ONE.line(), TWO.line()])
        assert synced == [(ONE.line() + TWO.line()).encode()]

    def test_a_full_disk_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        replace_file(tmp_path / "results.json", "old")
        monkeypatch.setattr(samples.os, "fsync", fails)
        said = "could not be written (No space left on device); make room, then go on with --resume"
        for name, call in [
            ("samples.jsonl", lambda path: append_lines(path, [ONE.line()])),
            ("results.json", lambda path: replace_file(path, "new")),
        ]:
            with pytest.raises(InputError) as caught:
                call(tmp_path / name)
            assert str(caught.value) == f"{tmp_path / name}: {said}"
        assert (tmp_path / "results.json").read_text() == "old"

    def test_a_file_is_replaced_as_a_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "results.json"
        replace_file(path, "old")
        moved = []
        move = samples.os.replace

        def watched(source: Path, target: Path) -> None:
            moved.append((source.read_text(encoding="utf-8"), target.read_text()))
            move(source, target)

        monkeypatch.setattr(samples.os, "replace", watched)
        (tmp_path / "results.json.partial").write_text("what a killed process left")
        replace_file(path, "nëw\n")
        assert moved == [("nëw\n", "old")]
        assert path.read_bytes() == "nëw\n".encode()
        assert list(tmp_path.iterdir()) == [path]


class TestTheFolder:
    def test_it_is_created_with_the_description(self, tmp_path: Path) -> None:
        folder = tmp_path / "a" / "b"
        with open_folder(folder, DESCRIPTION, resume=False):
            assert json.loads((folder / "run.json").read_text()) == DESCRIPTION

    def test_the_same_run_goes_on_with_resume_only(self, tmp_path: Path) -> None:
        with open_folder(tmp_path, DESCRIPTION, resume=True):
            pass
        written = (tmp_path / "run.json").read_bytes()
        with open_folder(tmp_path, {**DESCRIPTION, "seeds": (0, 1)}, resume=True):
            pass
        assert (tmp_path / "run.json").read_bytes() == written
        with (
            pytest.raises(InputError, match="holds this run; go on with --resume"),
            open_folder(tmp_path, DESCRIPTION, resume=False),
        ):
            raise AssertionError

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"model": "n"}, 'model is "m" there and "n" here'),
            ({"seeds": [0, 2]}, "seeds.1 is 1 there and 2 here"),
            ({"seeds": [0]}, 'seeds.1 is 1 there and "missing" here'),
            (
                {"tasks": {"words": {"hash": "b", "n": 4}}},
                'tasks.words.hash is "a" there and "b" here',
            ),
            ({"limit": None}, 'limit is "missing" there and null here'),
            ({"tasks": {"words": {"hash": "a"}}}, 'tasks.words.n is 3 there and "missing" here'),
            ({"limit": 5, "seeds": None}, 'seeds.0 is 0 there and "missing" here'),
        ],
    )
    def test_another_run_is_refused_by_its_first_difference(
        self, tmp_path: Path, change: dict[str, Any], difference: str
    ) -> None:
        with open_folder(tmp_path, DESCRIPTION, resume=False):
            pass
        for resume in (False, True):
            with (
                pytest.raises(InputError) as caught,
                open_folder(tmp_path, {**DESCRIPTION, **change}, resume),
            ):
                raise AssertionError
            said = f"{tmp_path} holds another run ({difference}); choose another folder"
            assert str(caught.value) == said
        assert json.loads((tmp_path / "run.json").read_text()) == DESCRIPTION

    def test_samples_of_an_unknown_run_are_refused(self, tmp_path: Path) -> None:
        append_lines(samples_path(tmp_path, "words", "standard"), [ONE.line()])
        assert_refused(tmp_path, "run.json: not readable")

    def test_an_unreadable_description_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text('{"model"')
        assert_refused(tmp_path, "run.json: not readable")

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert_refused(tmp_path / "file", "could not be created")
        assert_refused(tmp_path / "file" / "inside", "could not be created")

    def test_only_one_process_writes_and_a_killed_one_lets_go(self, tmp_path: Path) -> None:
        hold = (
            "import sys, time; from pathlib import Path; "
            "from minise.evaluation.samples import open_folder; "
            "folder = open_folder(Path(sys.argv[1]), {}, True); folder.__enter__(); "
            "print('held', flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", hold, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert_refused(tmp_path, "another run is writing here", {})
            other.kill()
        with open_folder(tmp_path, {}, resume=True):
            assert_refused(tmp_path, "another run is writing here", {})

    def test_an_error_inside_releases_it(self, tmp_path: Path) -> None:
        for _ in range(2):
            with (
                pytest.raises(ZeroDivisionError),
                open_folder(tmp_path, DESCRIPTION, resume=True),
            ):
                raise ZeroDivisionError
        assert_refused(tmp_path, "holds another run", {})
        with open_folder(tmp_path, DESCRIPTION, resume=True):
            pass


def assert_refused(folder: Path, complaint: str, description: dict[str, Any] | None = None) -> None:
    with (
        pytest.raises(InputError, match=complaint) as caught,
        open_folder(folder, DESCRIPTION if description is None else description, resume=True),
    ):
        raise AssertionError
    assert "\n" not in str(caught.value)
