"""The samples file and the folder of a run: no sample is lost, and runs are not mixed."""

from __future__ import annotations

import errno
import json
import math
import os
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
    append_lines,
    drop_torn_line,
    open_folder,
    read_samples,
    samples_path,
)
from minise.files import write_file
from minise.methods.fitted import check_same_size
from minise.methods.sample import Sample

ONE = Sample("q1", 0, "hash", 1, 0, [0.1 + 0.2, 0.7], [1 / 3, 2e-310], 17, 0.25)
GROUP = {"choices": [0, 1], "probabilities": [0.5, 0.5], "null": None, "trial": 0, "tokens": 17}
TWO = replace(
    ONE,
    id="ü\u2028",
    logits=[-1.5, sys.float_info.max],
    groups=[GROUP],
    notes={"why": "because", "lead": None},
    text={"question": "Où?", "choices": ["ici", "là"], "answer": None},
    cluster="fact 1",
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

    def test_a_line_is_an_object_without_fields_that_are_none(self) -> None:
        names = [field.name for field in fields(Sample)]
        assert list(json.loads(ONE.line())) == names[:9]
        assert list(json.loads(TWO.line())) == names
        assert "seconds" not in json.loads(replace(ONE, seconds=None).line())
        assert json.loads(replace(ONE, answer=None).line())["answer"] is None
        assert "ü" in TWO.line()
        assert ONE.line().endswith("}\n")
        assert ONE.line().count("\n") == TWO.line().count("\n") == 1

    def test_a_sample_with_a_new_prediction_drops_what_describes_the_old_one(self) -> None:
        new = TWO.remade([0.25, 0.75])
        assert (new.prediction, new.probabilities, new.scores) == (1, [0.25, 0.75], [0.25, 0.75])
        assert (new.seconds, new.logits, new.groups, new.notes) == (None,) * 4
        assert (new.key, new.tokens, new.text) == (TWO.key, TWO.tokens, TWO.text)

    def test_a_method_of_one_size_names_the_sizes_of_the_samples(self) -> None:
        check_same_size("x", [4, 4])
        with pytest.raises(InputError) as error:
            check_same_size("x", [4, 3, 8])
        need, sizes, _ = str(error.value).split("; ")
        assert need == "x needs the same number of choices in every question"
        assert sizes == "found 3 to 8"

    def test_a_name_has_240_bytes_at_most(self, tmp_path: Path) -> None:
        task = "é" + "t" * 222
        assert len(samples_path(tmp_path, task, "a").name.encode()) == 240
        with pytest.raises(InputError, match="too long for the name of a file; shorten it"):
            samples_path(tmp_path, task + "t", "a")

    @pytest.mark.parametrize("below", ["", "new"])
    def test_a_folder_whose_name_no_system_allows_is_refused(
        self, tmp_path: Path, below: str
    ) -> None:
        with pytest.raises(InputError, match=r"written \((\[.*\] )?File name too long.*; choose"):
            samples.check_folder(tmp_path / below / ("x" * 256))
        samples.check_folder(tmp_path / below / ("x" * 255))

    def test_a_missing_file_has_no_samples(self, tmp_path: Path) -> None:
        drop_torn_line(tmp_path / "none.jsonl")
        assert read_samples(tmp_path / "none.jsonl") == []
        assert list(tmp_path.iterdir()) == []

    def test_a_file_cut_at_any_byte_keeps_its_complete_lines(self, tmp_path: Path) -> None:
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

    def test_a_last_line_with_zeros_is_torn_too(self, tmp_path: Path) -> None:
        """A loss of power may leave the end of a line without its beginning."""
        path, line = tmp_path / "samples.jsonl", ONE.line().encode()
        for lost in (1, 100):
            path.write_bytes(line + bytes(lost) + line[lost:])
            assert read_samples(path) == [ONE]
            drop_torn_line(path)
            assert path.read_bytes() == line
        path.write_bytes(bytes(9) + line[9:] + line)  # no loss of power leaves that
        with pytest.raises(InputError, match="line 1: not a sample"):
            read_samples(path)

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
            b"[" * 100_000,
            b"1" * 10_000,
            b'{"' + b"a" * 10_000 + b'": 1}',
            *(
                json.dumps({**json.loads(TWO.line()), **change}).encode()
                for change in (
                    {"id": 1},
                    {"id": []},
                    {"question_hash": None},
                    {"seed": True},
                    {"seed": 2**63},
                    {"answer": 2},
                    {"answer": -1},
                    {"prediction": 2},
                    {"prediction": 0.0},
                    {"tokens": "17"},
                    {"probabilities": [math.nan, 1.0]},
                    {"probabilities": [0.5, 0.4]},
                    {"probabilities": [1.5, -0.5]},
                    {"probabilities": [1.0]},
                    {"probabilities": "11"},
                    {"scores": []},
                    {"scores": [1.0, math.inf]},
                    {"scores": [1.0, 10**400]},
                    {"logits": [1.0]},
                    {"logits": [1.0, None]},
                    {"seconds": math.nan},
                    {"notes": []},
                    {"text": []},
                    {"text": {"question": "Où?"}},
                    {"text": {"question": "Où?", "choices": ["ici"]}},
                    {"text": {"question": 1, "choices": ["ici", "là"]}},
                    {"groups": [3]},
                    {"groups": [{"choices": [0]}]},
                    {"groups": [{**GROUP, "choices": [0, 2]}]},
                    {"groups": [{**GROUP, "choices": [0]}]},
                    {"groups": [{**GROUP, "null": "x"}]},
                    {"groups": [{**GROUP, "trial": None}]},
                )
            ),
        ],
    )
    def test_a_broken_line_is_named(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "samples.jsonl"
        other = replace(ONE, id="other").line().encode()
        path.write_bytes(other + line + b"\n" + ONE.line().encode())
        with pytest.raises(InputError, match=r"samples.jsonl, line 2: not a sample") as caught:
            read_samples(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
        assert str(caught.value).endswith("; delete the line, then go on with --resume")

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"seed": True}, "id, question_hash and cluster must be text; seed, answer, predict"),
            ({"cluster": 3}, "id, question_hash and cluster must be text; seed, answer, predict"),
            ({"answer": 2}, "answer 2 and prediction 0 must be choices"),
            ({"prediction": -1}, "answer 1 and prediction -1 must be choices"),
            ({"logits": [1.0]}, "[1.0] must be a finite number for each of 2 choices"),
            ({"probabilities": [0.5, 0.4]}, "the probabilities [0.5, 0.4] must sum to 1"),
            ({"notes": []}, "seconds must be a number, notes an object"),
            ({"text": {"question": "", "choices": []}}, "text must hold a question and 2 choices"),
            ({"groups": [{**GROUP, "trial": ""}]}, 'the group {"choices": [0, 1], "probabilities"'),
            ({"groups": [{**GROUP, "choices": [0]}]}, 'the group {"choices": [0], "probabilities"'),
            ({"answer": None, "probabilities": [1.0], "scores": [1.0], "logits": None}, ""),
            ({"answer": None, "groups": [GROUP | {"null": 1.0}]}, ""),
        ],
    )
    def test_an_impossible_sample_is_described(self, change: dict[str, Any], problem: str) -> None:
        sample = replace(TWO, **{"text": None, "groups": None} | change)
        assert sample.problem().startswith(problem)
        assert bool(sample.problem()) == bool(problem)

    def test_a_duplicate_sample_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "samples.jsonl"
        append_lines(path, [ONE.line(), replace(ONE, seed=1).line(), replace(ONE, answer=0).line()])
        with pytest.raises(InputError, match=r'line 3: .*question "q1" is there twice'):
            read_samples(path)

    def test_lines_are_on_the_disk_before_append_returns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, synced = tmp_path / "samples.jsonl", []
        monkeypatch.setattr(samples.os, "fsync", lambda _: synced.append(path.read_bytes()))
        append_lines(path, [ONE.line(), TWO.line()])
        assert synced[-1] == (ONE.line() + TWO.line()).encode()

    def test_a_full_disk_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(samples.os, "fsync", fails)
        path = tmp_path / "samples.jsonl"
        with pytest.raises(InputError) as caught:
            append_lines(path, [ONE.line()])
        message = "could not be written (No space left on device); make room, then go on with"
        assert str(caught.value) == f"{path}: {message} --resume"


class TestTheFolder:
    def test_a_new_folder_gets_the_description_of_the_run(self, tmp_path: Path) -> None:
        folder = tmp_path / "a" / "b"
        with open_folder(folder, DESCRIPTION, resume=False):
            assert json.loads((folder / "run.json").read_text()) == DESCRIPTION

    def test_the_same_run_is_continued_only_with_resume(self, tmp_path: Path) -> None:
        with open_folder(tmp_path, DESCRIPTION, resume=True):
            pass
        description = (tmp_path / "run.json").read_bytes()
        with open_folder(tmp_path, {**DESCRIPTION, "seeds": (0, 1)}, resume=True):
            pass
        assert (tmp_path / "run.json").read_bytes() == description
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
            ({"limit": 5, "seeds": None}, "seeds is [0, 1] there and null here"),
            ({"seeds": ["0" * 99, 1]}, f'seeds.0 is 0 there and "{"0" * 66}... here'),
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
            message = f"{tmp_path} holds another run ({difference}); choose another folder"
            assert str(caught.value) == message
        assert json.loads((tmp_path / "run.json").read_text()) == DESCRIPTION

    def test_samples_of_an_unknown_run_are_refused(self, tmp_path: Path) -> None:
        append_lines(samples_path(tmp_path, "words", "standard"), [ONE.line()])
        assert_refused(tmp_path, "run.json: not readable")

    def test_an_unreadable_description_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "run.json").write_text('{"model"')
        assert_refused(tmp_path, "run.json: not readable")

    def test_a_file_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert_refused(tmp_path / "file", "could not be written")
        assert_refused(tmp_path / "file" / "inside", "could not be written")

    @pytest.mark.parametrize("text", [b"[" * 100_000, b"[]", b"3", b"null", b"[1e999]", b"\xff"])
    def test_a_damaged_description_is_refused(self, tmp_path: Path, text: bytes) -> None:
        (tmp_path / "run.json").write_bytes(text)
        assert_refused(tmp_path, "run.json: not readable|holds another run")

    @pytest.mark.parametrize(
        "name",
        [
            *(".lock", "run.json", "results.json", "samples-a-b.jsonl", "predictions-a.csv"),
            *("report.md", "run.json.partial"),
        ],
    )
    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
    def test_an_entry_that_is_not_a_file_is_named(
        self, tmp_path: Path, name: str, make: Any
    ) -> None:
        make(tmp_path / name)
        refused = rf"{name} in it is no file\); choose another folder$"
        assert_refused(tmp_path, refused)

    @pytest.mark.parametrize(
        "name", ["a" * 300, f"new/{'a' * 300}", "a/" * 3000, "nul\0byte", "\ud800"]
    )
    def test_an_impossible_name_is_refused(self, tmp_path: Path, name: str) -> None:
        assert_refused(tmp_path / name, "could not be written")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("inside", ["", "new", "new/er"])
    def test_a_folder_without_permission_is_refused_before_it_is_touched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
    ) -> None:
        # For root every folder is writable.
        monkeypatch.setattr(samples.os, "access", lambda path, _: Path(path) != tmp_path)
        assert_refused(tmp_path / inside, f"{tmp_path} may not be written")
        assert list(tmp_path.iterdir()) == []

    def test_another_machine_gives_a_message_and_does_not_stop_a_run(self, tmp_path: Path) -> None:
        old = {"versions": {"torch": "2.6.0"}, "threads": 2}
        new = {"versions": {"torch": "2.7.1"}, "threads": 2}
        for machine, warnings in [
            (old, ""),
            (new, 'versions.torch is "2.6.0" there and "2.7.1" here'),
            (old, ""),
            (None, ""),
        ]:
            with open_folder(tmp_path, DESCRIPTION, True, machine) as moved:
                assert moved == warnings

    def test_half_a_surrogate_pair_is_written_as_a_json_escape(self, tmp_path: Path) -> None:
        path = tmp_path / "results.json"
        write_file(path, json.dumps({"é": "\udcff"}, ensure_ascii=False))
        assert json.loads(path.read_text(encoding="utf-8")) == {"é": "\udcff"}

    def test_only_one_process_holds_the_lock_and_a_killed_one_releases_it(
        self, tmp_path: Path
    ) -> None:
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

    def test_a_disk_without_locks_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def acquire(*_: Any, timeout: float) -> Any:
            assert timeout == 0  # nobody waits for another run
            raise NotImplementedError("no flock here")

        monkeypatch.setattr("filelock.FileLock.acquire", acquire)
        assert_refused(tmp_path, r"could not be locked \(no flock here\)$")

    def test_an_error_releases_the_lock(self, tmp_path: Path) -> None:
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
    assert len(str(caught.value)) < 400
