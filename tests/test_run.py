"""`minise eval`: every answer is kept, a cut run goes on where it stopped, nothing is mixed up."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from minise.cli import main
from minise.evaluation import run
from minise.evaluation.samples import read_samples
from tests.tiny import FAMILIES, write_checkpoint

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)

ROOT = Path(__file__).parents[1]
METHODS = "standard,self-ensemble,cyclic,vector-scaling"
WORDS = ["oak", "wren", "zinc", "silk", "rain", "salt", "wool", "clay", "moss", "fern", "lime"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), FAMILIES["llama"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty questions of four choices."""
    draw = random.Random("questions")
    path = tmp_path_factory.mktemp("data") / "words.jsonl"
    with path.open("w") as file:
        for number in range(30):
            row = {"question": f"Number {number}?", "choices": draw.sample(WORDS, 4)}
            file.write(json.dumps({**row, "answer": draw.randrange(4), "id": f"q{number}"}) + "\n")
    return path


def arguments(model: Path, data: Path, folder: Path, *more: Any) -> list[str]:
    fixed = ["eval", "--model", model, "--task", data, "--trials", 3, "--group-size", 2]
    return [str(part) for part in [*fixed, "--output-path", folder, *more]]


@pytest.fixture(scope="module")
def whole(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    assert main(arguments(model, data, folder, "--method", METHODS)) == 0
    return folder


def results(folder: Path) -> tuple[Any, Any]:
    """What must be the same however a run went: the numbers, not the clock."""
    found = json.loads((folder / "results.json").read_text())
    return found["results"], found["differences"]


def samples(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        path.name: [
            {name: value for name, value in json.loads(line).items() if name != "seconds"}
            for line in path.read_text().splitlines()
        ]
        for path in sorted(folder.glob("samples-*.jsonl"))
    }


class TestTheFiles:
    def test_results_say_what_was_run_on_what(self, whole: Path, model: Path) -> None:
        found = json.loads((whole / "results.json").read_text())
        config = found["config"]
        assert config["model"] == str(model)
        assert set(config["weights_sha256"]) == {"model.safetensors"}
        assert config["command"].startswith("minise eval --model")
        assert config["seeds"] == [0]
        assert (config["dtype"], config["device"], config["full_run"]) == ("float32", "cpu", True)
        assert config["sources"]["words"]["sha256"]
        assert set(config["prompts"]["words"]["label_ids"]) == {"A", "B", "C", "D"}
        assert config["prompts"]["words"]["templates"]["group"]["cue"] == "Answer:"
        assert {"torch", "python", "minise", "scipy"} <= set(config["versions"])
        assert config["wall_seconds"] > 0
        assert [variant["engine"] for variant in config["variants"]["words"]] == ["tree"] * 4
        assert "w" in config["regularisation"]["vector-scaling"]
        facts = {"questions": 30, "dataset": "own", "choices": 4}
        assert facts.items() <= config["tasks"]["words"].items()

    def test_results_are_the_contracts(self, whole: Path) -> None:
        cells, differences = results(whole)
        assert list(cells["words"]) == METHODS.split(",")
        sizes = {"group_size": 2, "trials": 3}
        assert sizes.items() <= cells["words"]["self-ensemble"]["settings"].items()
        assert cells["words"]["standard"]["settings"] == {"preset": "paper"}
        for name, cell in cells["words"].items():
            assert (cell["method"], cell["engine"], cell["n"]) == (name, "tree", 30)
            low, high = cell["accuracy_interval"]
            assert low <= cell["accuracy"] <= high
            assert cell["nll"] > 0
        pairs = differences["words"]
        assert len(pairs) == 6
        first = pairs[0]
        assert (first["a"], first["b"]) == ("self-ensemble", "standard")
        a, b = (cells["words"][first[side]]["accuracy"] for side in "ab")
        assert first["accuracy"] == pytest.approx(a - b)
        assert 0 <= first["mcnemar_p"] <= 1

    def test_a_line_for_each_question_with_what_was_said(self, whole: Path) -> None:
        for path in whole.glob("samples-*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            assert [line["id"] for line in lines] == [f"q{i}" for i in range(30)]
            for line in lines:
                assert sum(line["probabilities"]) == pytest.approx(1)
                assert line["prediction"] == line["scores"].index(max(line["scores"]))
                assert ("logits" in line) == (path.name == "samples-words-standard.jsonl")
                assert ("seconds" in line) == (path.name != "samples-words-vector-scaling.jsonl")

    def test_time_and_memory_are_those_of_asking(self, whole: Path) -> None:
        timing = json.loads((whole / "results.json").read_text())["timing"]["words"]
        for name in METHODS.split(","):
            seconds = [s.seconds for s in read_samples(whole / f"samples-words-{name}.jsonl")]
            if name == "vector-scaling":
                assert timing[name] == {"seconds_per_question": None, "peak_bytes": None}
            else:
                assert timing[name]["seconds_per_question"] == pytest.approx(sum(seconds) / 30)

    def test_groups_are_kept_if_asked_for(self, model: Path, data: Path, tmp_path: Path) -> None:
        options = ("--method", "self-ensemble", "--limit", 2, "--keep-groups")
        assert main(arguments(model, data, tmp_path, *options)) == 0
        (sample, _) = read_samples(tmp_path / "samples-words-self-ensemble.jsonl")
        assert sample.groups is not None
        assert len(sample.groups) == 6
        assert set(sample.groups[0]) == {"choices", "probabilities", "null", "trial", "tokens"}
        assert [group["trial"] for group in sample.groups] == [0, 0, 1, 1, 2, 2]
        assert sample.groups[-1]["tokens"] == sample.tokens

    def test_what_a_fitted_method_needs_keeps_its_groups(self, whole: Path) -> None:
        for name in METHODS.split(","):
            kept = [sample.groups for sample in read_samples(whole / f"samples-words-{name}.jsonl")]
            assert all((groups is not None) == (name == "standard") for groups in kept)

    def test_a_limited_run_is_marked(self, model: Path, data: Path, tmp_path: Path, capsys) -> None:
        options = ("--method", "standard", "--limit", 3)
        assert main(arguments(model, data, tmp_path, *options)) == 0
        found = json.loads((tmp_path / "results.json").read_text())
        assert (found["config"]["full_run"], found["config"]["limit"]) == (False, 3)
        assert found["results"]["words"]["standard"]["n"] == 3
        assert "Not a full run" in capsys.readouterr().out


class TestACutRun:
    def test_killed_at_random_instants_it_ends_in_the_same_results(
        self, model: Path, data: Path, whole: Path, tmp_path: Path
    ) -> None:
        """kill -9, again and again; each time the run gets a little further."""
        command = [sys.executable, "-m", "minise"]
        command += arguments(model, data, tmp_path, "--method", METHODS, "--resume")
        # As many threads as this process has: another number would round otherwise.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        draw, kills = random.Random("kills"), 0
        files = {path.name: path.stat().st_size for path in whole.glob("samples-*.jsonl")}

        def written() -> int:
            return sum(path.stat().st_size for path in tmp_path.glob("samples-*.jsonl"))

        for share in (0.0, 0.2, 0.5, 0.8):
            target = share * sum(files.values()) * draw.uniform(0.8, 1.2)
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while process.poll() is None and written() <= target:
                time.sleep(0.001)
            time.sleep(draw.random() * 0.02)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
            # What a cut in the middle of a write would leave.
            for path in tmp_path.glob("samples-*.jsonl"):
                if draw.random() < 0.5 and path.stat().st_size > 10:
                    os.truncate(path, path.stat().st_size - 7)
        assert kills >= 3
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert samples(tmp_path) == samples(whole)
        assert results(tmp_path) == results(whole)

    def test_no_finished_question_is_asked_again(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch
    ) -> None:
        folder = copy_of(whole, tmp_path)
        path = folder / "samples-words-self-ensemble.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:11]) + lines[11][:20])
        asked = []
        logits = run.label_logits

        def counted(lm: Any, plan: Any, engine: str) -> Any:
            asked.append((len(plan.groups.trials), plan.question.id))
            return logits(lm, plan, engine)

        monkeypatch.setattr(run, "label_logits", counted)
        assert_resumes(model, data, folder, whole)
        assert asked == [(3, f"q{i}") for i in range(11, 30)]

    def test_fitted_methods_follow_what_they_need(
        self, model: Path, data: Path, whole: Path, tmp_path: Path
    ) -> None:
        folder = copy_of(whole, tmp_path)
        path = folder / "samples-words-standard.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:6]))
        fitted = folder / "samples-words-vector-scaling.jsonl"
        fitted.write_text("".join(fitted.read_text().splitlines(keepends=True)[:9]))
        assert_resumes(model, data, folder, whole)

    def test_a_finished_run_is_measured_again_without_asking(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch
    ) -> None:
        folder = copy_of(whole, tmp_path)
        (folder / "results.json").unlink()
        monkeypatch.setattr(run, "label_logits", None)
        assert_resumes(model, data, folder, whole)

    def test_its_memory_is_the_one_measured_when_it_asked(
        self, model: Path, data: Path, whole: Path, tmp_path: Path
    ) -> None:
        folder = copy_of(whole, tmp_path)
        assert_resumes(model, data, folder, whole)
        again, first = (json.loads((at / "results.json").read_text()) for at in (folder, whole))
        assert again["timing"] == first["timing"]


class TestAFolder:
    def test_of_another_configuration_is_refused(
        self, model: Path, data: Path, whole: Path, capsys
    ) -> None:
        before = samples(whole)
        options = ("--method", METHODS, "--resume")
        for changed, named in [
            (("--seed", 1), "seeds.0 is 0 there and 1 here"),
            (("--dtype", "float64"), 'dtype is "float32" there and "float64" here'),
            (("--limit", 5), "limit is null there and 5 here"),
            (("--engine", "dense"), 'engine is "tree" there and "dense" here'),
        ]:
            assert main(arguments(model, data, whole, *options, *changed)) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert named in err
            assert err.count("\n") == 1
        assert samples(whole) == before

    def test_of_other_weights_is_refused(
        self, data: Path, whole: Path, tmp_path: Path, capsys
    ) -> None:
        other = write_checkpoint(tmp_path, FAMILIES["llama"], seed=1)
        assert main(arguments(other, data, whole, "--method", METHODS, "--resume")) == 2
        assert "holds another run (model is" in capsys.readouterr().err

    def test_of_other_questions_is_refused(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, capsys
    ) -> None:
        changed = tmp_path / "words.jsonl"
        changed.write_text(data.read_text().replace("Number 7?", "Number seven?"))
        assert main(arguments(model, changed, whole, "--method", METHODS, "--resume")) == 2
        assert "holds another run (tasks.words.hash" in capsys.readouterr().err

    def test_with_a_run_in_it_asks_for_resume(
        self, model: Path, data: Path, whole: Path, capsys
    ) -> None:
        assert main(arguments(model, data, whole, "--method", METHODS)) == 2
        assert "go on with --resume" in capsys.readouterr().err

    def test_with_a_line_that_is_no_sample_is_refused(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, capsys
    ) -> None:
        folder = copy_of(whole, tmp_path)
        path = folder / "samples-words-cyclic.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:3], "rubbish\n", *lines[3:]]))
        assert main(arguments(model, data, folder, "--method", METHODS, "--resume")) == 2
        assert "samples-words-cyclic.jsonl, line 4: not a sample" in capsys.readouterr().err

    def test_is_written_by_one_run_at_a_time(
        self, model: Path, data: Path, tmp_path: Path, capsys
    ) -> None:
        hold = (
            "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); "
            "print('held', flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", hold, str(tmp_path / ".lock")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert main(arguments(model, data, tmp_path, "--method", "standard")) == 2
            assert "another run is writing here" in capsys.readouterr().err
            other.kill()
        assert main(arguments(model, data, tmp_path, "--method", "standard")) == 0

    def test_that_cannot_be_written_is_one_line(
        self, model: Path, data: Path, tmp_path: Path, capsys
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert main(arguments(model, data, blocked, "--method", "standard")) == 2
        assert capsys.readouterr().err.startswith(f"minise: {blocked}: could not be")


class TestTheReport:
    def test_it_is_redrawn_without_a_model(self, whole: Path, tmp_path: Path, capsys) -> None:
        assert main(["report", str(whole), "--output-path", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        accuracy = results(whole)[0]["words"]["self-ensemble"]["accuracy"]
        assert f"{100 * accuracy:.1f} [" in out
        text = (tmp_path / "report.md").read_text()
        assert text.split("\n\n")[0] in out
        assert "![confidence-words](confidence-words.png)" in text
        assert (tmp_path / "confidence-words.png").read_bytes()[:4] == b"\x89PNG"

    def test_it_says_so_where_it_cannot_write(self, whole: Path, tmp_path: Path, capsys) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert main(["report", str(whole), "--output-path", str(blocked)]) == 2
        assert f"{blocked}: could not be written" in capsys.readouterr().err

    def test_an_unfinished_run_is_one_line(self, tmp_path: Path, capsys) -> None:
        assert main(["report", str(tmp_path)]) == 2
        assert "finish the run with minise eval --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--task and --method say what to run"),
        (("--method", "magic"), 'method "magic" is unknown'),
        (("--method", "standard,standard"), "names a method twice"),
        (("--method", "standard", "--experiment", "main"), "leave --method out"),
        (("--method", "standard", "--seed", "0,0"), "names a seed twice"),
        (("--method", "standard", "--seed", "x"), "'x' is no list of whole numbers"),
        (("--method", "standard", "--limit", "0"), "limit"),
        (("--method", "standard", "--cut-to", "5"), "4"),
        (("--method", "dirichlet", "--folds", "31"), "fold"),
        (("--method", "self-ensemble", "--trials", "0"), "--trials 0 is below 1"),
        (("--method", "self-ensemble", "--group-size", "0"), "--group-size 0 is below 1"),
    ],
)
def test_bad_options_are_one_line_before_any_work(
    model: Path, data: Path, tmp_path: Path, capsys, options: tuple[str, ...], said: str
) -> None:
    folder = tmp_path / "run"
    fixed = ["eval", "--model", str(model), "--task", str(data), "--output-path", str(folder)]
    assert main([*fixed, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert not list(folder.glob("samples-*"))


def test_fitted_methods_need_one_number_of_choices(
    model: Path, data: Path, tmp_path: Path, capsys
) -> None:
    mixed = tmp_path / "mixed.jsonl"
    more = {"question": "And?", "choices": ["oak", "wren"], "answer": 0}
    mixed.write_text(data.read_text() + json.dumps(more) + "\n")
    folder = tmp_path / "run"
    assert main(arguments(model, mixed, folder, "--method", "dirichlet")) == 2
    err = capsys.readouterr().err
    assert "dirichlet needs the same number of choices in every question" in err
    assert "2 to 4" in err


def test_seeds_are_pooled_and_their_spread_reported(
    model: Path, data: Path, tmp_path: Path
) -> None:
    options = ("--method", "self-ensemble", "--seed", "0,1,2", "--limit", 8)
    assert main(arguments(model, data, tmp_path, *options)) == 0
    cell = results(tmp_path)[0]["words"]["self-ensemble"]
    assert (cell["n"], cell["questions"]) == (24, 8)
    assert list(cell["seeds"]) == ["0", "1", "2"]
    found = read_samples(tmp_path / "samples-words-self-ensemble.jsonl")
    assert found[0].probabilities != found[8].probabilities
    right = [sample.prediction == sample.answer for sample in found if sample.seed == 1]
    assert cell["seeds"]["1"] == pytest.approx(sum(right) / 8)


def test_no_progress_bar_where_there_is_no_terminal(
    model: Path, data: Path, tmp_path: Path, capsys
) -> None:
    assert main(arguments(model, data, tmp_path, "--method", "standard")) == 0
    assert capsys.readouterr().err == ""


def assert_resumes(model: Path, data: Path, folder: Path, whole: Path) -> None:
    """The run in `folder` goes on, to the files and results of the uninterrupted one."""
    assert main(arguments(model, data, folder, "--method", METHODS, "--resume")) == 0
    assert samples(folder) == samples(whole)
    assert results(folder) == results(whole)


def copy_of(folder: Path, target: Path) -> Path:
    for path in folder.iterdir():
        if path.name != ".lock":
            (target / path.name).write_bytes(path.read_bytes())
    return target
