"""A run says itself when it began and ended, on which commit and which machine."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from minise import InputError, LocalModel
from minise.lab.evaluation import cuts
from minise.lab.evaluation.cuts import noted, read_cuts
from minise.lab.evaluation.folder import WHOLE
from minise.lab.evaluation.run import evaluate
from minise.loading.machine import processor


def test_a_run_has_its_beginning_and_end_with_commit_and_processor(finished: Path) -> None:
    began, ended = read_cuts(finished / "cuts.jsonl")
    assert (began["event"], ended["event"]) == ("began", "ended")
    assert began["cpu"] == processor()
    assert began["threads"] >= 1
    assert ended["cpu_seconds"] > 0
    at = [datetime.fromisoformat(one["at"]) for one in (began, ended)]
    assert at[0] <= at[1]
    assert timedelta(0) <= datetime.now(timezone.utc) - at[1] < timedelta(hours=2)


def test_the_commit_is_the_one_that_is_checked_out() -> None:
    try:
        head = cuts.git("rev-parse", "HEAD", folder=Path(__file__).parent)
    except Exception:
        pytest.skip("these tests are in no checkout")
    assert (cuts.commit() or "").removesuffix("-dirty") == head


def test_code_outside_of_a_checkout_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuts, "__file__", str(tmp_path / "cuts.py"))
    assert cuts.commit() is None


def test_an_interrupted_run_and_a_killed_one_are_told_apart(tmp_path: Path) -> None:
    def interrupted() -> None:
        with noted(tmp_path, WHOLE):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    path = tmp_path / "cuts.jsonl"
    assert [cut["event"] for cut in read_cuts(path)] == ["began", "interrupted"]
    path.write_text(
        path.read_text().splitlines()[0] + "\n" + '{"event": "int'
    )  # as a kill leaves it
    (tmp_path / "samples-words-standard.jsonl").write_text("")
    with noted(tmp_path, WHOLE):
        pass
    assert [cut["event"] for cut in read_cuts(path)] == ["began", "killed", "began", "ended"]
    assert read_cuts(path)[1]["last_answer"] is not None


def test_a_run_that_goes_on_adds_a_cut_and_keeps_those_before(
    lm: LocalModel, make_run: Callable[..., object], tmp_path: Path
) -> None:
    for _ in range(2):
        evaluate(lm, make_run(), tmp_path, print)  # type: ignore[arg-type]
    events = [cut["event"] for cut in read_cuts(tmp_path / "cuts.jsonl")]
    assert events == ["began", "ended"] * 2


@pytest.mark.parametrize("line", ["[1]", json.dumps({"at": 1}), "no JSON"])
def test_a_file_of_cuts_that_holds_something_else_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "cuts.jsonl").write_text(line + "\n")
    with pytest.raises(InputError, match=r"cuts\.jsonl, line 1"), noted(tmp_path, WHOLE):
        pass
