"""`minise eval`: every answer is saved, an interrupted run continues where it stopped."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minise import InputError, LanguageModel, Question, load
from minise.commands.cli import main
from minise.data.tasks import Task
from minise.evaluation import asking, run
from minise.evaluation.run import Run
from minise.evaluation.samples import read_samples
from minise.loading import identity
from minise.loading.identity import sha256
from minise.methods.calibration import VectorScaling
from minise.methods.fitted import NotConverged
from minise.methods.registry import METHODS as METHODS_KNOWN
from minise.methods.registry import Variant
from minise.methods.sample import Sample
from tests.support.runs import METHODS, arguments, assert_resumes, copy_of, results, samples

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)
pytestmark = pytest.mark.usefixtures("undrawn")
STANDARD = Variant("standard", "standard", {})


class TestTheFiles:
    def test_results_name_the_model_data_and_methods(self, whole: Path, model: Path) -> None:
        report = json.loads((whole / "results.json").read_text())
        config = report["config"]
        assert config["model"] == str(model)
        assert set(config["weights_sha256"]) == {"model.safetensors"}
        assert config["config"]["rope_theta"] == 500.0
        assert config["tokenizer_sha256"] == sha256(model / "tokenizer.json")
        assert {"minise/layout.py", "minise/methods/priors.py"} <= set(config["code_sha256"])
        assert config["left_out"] == {"words": {}}
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

    def test_results_have_the_keys_of_the_contract(self, whole: Path) -> None:
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

    def test_samples_have_a_line_for_each_question_and_seed(self, whole: Path) -> None:
        for path in whole.glob("samples-*.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            assert [line["id"] for line in lines] == [f"q{i}" for i in range(30)]
            for line in lines:
                assert sum(line["probabilities"]) == pytest.approx(1)
                assert line["prediction"] == line["scores"].index(max(line["scores"]))
                assert ("logits" in line) == (path.name == "samples-words-standard.jsonl")
                assert ("seconds" in line) == (path.name != "samples-words-vector-scaling.jsonl")

    def test_time_and_memory_of_asking_are_in_the_results(self, whole: Path) -> None:
        timing = json.loads((whole / "results.json").read_text())["timing"]["words"]
        for name in METHODS.split(","):
            seconds = [s.seconds for s in read_samples(whole / f"samples-words-{name}.jsonl")]
            if name == "vector-scaling":
                assert timing[name] == {"seconds_per_question": None, "peak_bytes": None}
            else:
                assert timing[name]["seconds_per_question"] == pytest.approx(sum(seconds) / 30)

    def test_groups_are_kept_if_requested(self, model: Path, data: Path, tmp_path: Path) -> None:
        options = ("--method", "self-ensemble", "--limit", 2, "--keep-groups")
        assert main(arguments(model, data, tmp_path, *options)) == 0
        (sample, _) = read_samples(tmp_path / "samples-words-self-ensemble.jsonl")
        assert sample.groups is not None
        assert len(sample.groups) == 6
        assert set(sample.groups[0]) == {"choices", "probabilities", "null", "trial", "tokens"}
        assert [group["trial"] for group in sample.groups] == [0, 0, 1, 1, 2, 2]
        assert sample.groups[-1]["tokens"] == sample.tokens

    def test_a_method_that_a_fitted_one_needs_keeps_its_groups(self, whole: Path) -> None:
        for name in METHODS.split(","):
            per_sample = [
                sample.groups for sample in read_samples(whole / f"samples-words-{name}.jsonl")
            ]
            assert all((groups is not None) == (name == "standard") for groups in per_sample)

    def test_a_limited_run_is_marked(self, model: Path, data: Path, tmp_path: Path, capsys) -> None:
        options = ("--method", "standard", "--limit", 3)
        assert main(arguments(model, data, tmp_path, *options)) == 0
        report = json.loads((tmp_path / "results.json").read_text())
        assert (report["config"]["full_run"], report["config"]["limit"]) == (False, 3)
        assert report["results"]["words"]["standard"]["n"] == 3
        assert "Not a full run" in capsys.readouterr().out


class TestACutRun:
    """Real kills are in tests/evaluation/test_kill.py."""

    def test_no_finished_question_is_asked_again(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch
    ) -> None:
        folder = copy_of(whole, tmp_path)
        path = folder / "samples-words-self-ensemble.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:11]) + lines[11][:20])
        calls = []
        run_plans = asking.run_plans

        def counted(lm: Any, method: Any, plans: Any, seeds: Any, engine: str) -> Any:
            calls.extend((len(plan.groups.trials), plan.question.id) for plan in plans)
            return run_plans(lm, method, plans, seeds, engine)

        monkeypatch.setattr(asking, "run_plans", counted)
        assert_resumes(model, data, folder, whole)
        assert calls == [(3, f"q{i}") for i in range(11, 30)]

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
        monkeypatch.setattr(asking, "run_plans", None)
        assert_resumes(model, data, folder, whole)

    def test_a_finished_run_keeps_the_memory_measured_while_it_asked(
        self, model: Path, data: Path, whole: Path, tmp_path: Path
    ) -> None:
        folder = copy_of(whole, tmp_path)
        assert_resumes(model, data, folder, whole)
        again, first = (json.loads((at / "results.json").read_text()) for at in (folder, whole))
        assert again["timing"] == first["timing"]


class TestAQuestionThatFails:
    """The question is named, and the answers before it are saved."""

    def fail(self, monkeypatch: pytest.MonkeyPatch, id: str, method: str, value: float) -> None:
        run_plans = asking.run_plans

        def damaged_run(lm: Any, asking: Any, plans: Any, seeds: Any, engine: str) -> Any:
            ((plan, logits),) = run_plans(lm, asking, plans, seeds, engine)
            standard = plan.groups.flat == [(0, 1, 2, 3)]
            if plan.question.id == id and standard == (method == "standard"):
                logits[0][0] = value
            return [(plan, logits)]

        monkeypatch.setattr(asking, "run_plans", damaged_run)

    @pytest.mark.parametrize("method", ["standard", "self-ensemble"])
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_as_the_first_leaves_nothing_behind(
        self,
        model: Path,
        data: Path,
        tmp_path: Path,
        monkeypatch,
        capsys,
        method: str,
        value: float,
    ) -> None:
        self.fail(monkeypatch, "q0", method, value)
        folder = tmp_path / "a" / "b"
        assert main(arguments(model, data, folder, "--method", "standard,self-ensemble")) == 2
        out, err = capsys.readouterr()
        assert err.startswith(f'minise: question "q0", {method}: ')
        assert (out, err.count("\n")) == ("", 1)
        assert list(tmp_path.iterdir()) == []

    def test_midway_loses_no_answer(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        with monkeypatch.context() as patched:
            self.fail(patched, "q7", "self-ensemble", math.nan)
            assert main(arguments(model, data, tmp_path, "--method", METHODS)) == 2
        err = capsys.readouterr().err
        assert err.startswith('minise: question "q7", self-ensemble: ')
        assert "answers so far are kept, the same command with --resume goes on" in err
        counts = {name: len(lines) for name, lines in samples(tmp_path).items()}
        assert counts == {
            "samples-words-self-ensemble.jsonl": 7,
            "samples-words-standard.jsonl": 30,
        }
        assert_resumes(model, data, tmp_path, whole)


class TestAFitThatDoesNotConverge:
    @contextmanager
    def stopped(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        def stop(*_: Any) -> None:
            raise NotConverged("vector scaling did not converge: stopped")

        with monkeypatch.context() as patched:
            patched.setattr(VectorScaling, "_predict", stop)
            patched.setattr(VectorScaling, "check", lambda *_: None)
            yield

    def test_leaves_no_file_in_a_new_run(
        self, model: Path, data: Path, tmp_path: Path, monkeypatch
    ) -> None:
        folder, methods = tmp_path / "new", "standard,vector-scaling"
        with self.stopped(monkeypatch):
            assert main(arguments(model, data, folder, "--method", methods)) == 0
        assert list(samples(folder)) == ["samples-words-standard.jsonl"]

    def test_is_left_out_and_named_in_all_output(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        folder = copy_of(whole, tmp_path)
        with self.stopped(monkeypatch):
            assert main(arguments(model, data, folder, "--method", METHODS, "--resume")) == 0
        out, err = capsys.readouterr()
        message = (
            "vector-scaling is left out of the results: vector scaling did not converge: stopped"
        )
        assert err == f"minise: words: {message}\n"
        left_out = "vector-scaling of words is left out: vector scaling did not converge"
        assert left_out in " ".join(out.split())  # its lines are no longer than the terminal
        assert "| vector-scaling" not in out
        report = json.loads((folder / "results.json").read_text())
        assert list(report["results"]["words"]) == ["standard", "self-ensemble", "cyclic"]
        assert set(report["config"]["left_out"]["words"]) == {"vector-scaling"}
        assert not (folder / "samples-words-vector-scaling.jsonl").exists()
        assert_resumes(model, data, folder, whole)


class TestFromPython:
    def run(self, question: Question, *variants: Variant) -> Run:
        return Run({0: [Task("q", "own", [question], {})]}, {"q": list(variants)}, {})

    def test_a_folder_that_is_a_file_is_refused_before_any_question(
        self, lm: LanguageModel, question: Question, tmp_path: Path, monkeypatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setattr(run, "_try_each", lambda *_: pytest.fail("asked"))
        with pytest.raises(InputError, match="file is a file"):
            run.evaluate(lm, self.run(question, STANDARD), tmp_path / "file")

    def test_a_fitted_method_comes_after_the_method_that_it_needs(
        self, lm: LanguageModel, question: Question, tmp_path: Path
    ) -> None:
        alone = self.run(question, Variant("dirichlet", "dirichlet", {}))
        with pytest.raises(InputError, match="fitted on standard; name that method before it"):
            run.evaluate(lm, alone, tmp_path)

    def test_a_run_keeps_no_groups_unless_requested(
        self, lm: LanguageModel, question: Question, tmp_path: Path
    ) -> None:
        report = run.evaluate(lm, self.run(question, STANDARD), tmp_path)
        (sample,) = read_samples(tmp_path / "samples-q-standard.jsonl")
        assert (sample.groups, report["config"]["tasks"]["q"]["answered"]) == (None, False)

    def test_two_methods_of_one_name_are_refused(
        self, lm: LanguageModel, question: Question, tmp_path: Path
    ) -> None:
        with pytest.raises(InputError, match="q: two methods have one name"):
            run.evaluate(lm, self.run(question, STANDARD, STANDARD), tmp_path)

    def test_a_name_in_any_script_is_written_unescaped_into_the_results(
        self, lm: LanguageModel, question: Question, tmp_path: Path
    ) -> None:
        named = replace(self.run(question, STANDARD), about={"label": "größer 大"})
        run.evaluate(lm, named, tmp_path)
        assert '"label": "größer 大"' in (tmp_path / "results.json").read_text(encoding="utf-8")

    def test_the_number_of_tokens_that_a_method_writes_is_shown_with_the_progress(
        self, llama_folder: Path, question: Question, tmp_path: Path, monkeypatch
    ) -> None:
        folder = Path(shutil.copytree(llama_folder, tmp_path / "model"))
        (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
        shown = {}

        def progress(
            pending: Any, what: str, unit: str, beside: Any, whole: Any, work: float
        ) -> Iterator[Any]:
            for one in pending:
                yield one
                shown[what, unit] = beside()

        monkeypatch.setattr(run, "progress", progress)
        writes = Variant("cot", "cot", {"max_new_tokens": 3})
        run.evaluate(load(folder), self.run(question, STANDARD, writes), tmp_path / "run")
        (sample,) = read_samples(tmp_path / "run" / "samples-q-cot.jsonl")
        assert sample.notes
        note = f"{sample.notes['new_tokens']} tokens written"
        assert shown == {("q-standard", "question"): "", ("q-cot", "question"): note}

    def test_the_work_of_all_runs_is_shown_with_the_progress_of_each(
        self, lm: LanguageModel, question: Question, tmp_path: Path, monkeypatch
    ) -> None:
        """Also where a run is resumed: what is done already is no work."""
        shown: list[tuple[str, float, float, float]] = []

        def progress(
            pending: Any, what: str, unit: str, beside: Any, whole: Any, work: float
        ) -> Iterator[Any]:
            shown.append((whole.what, whole.total, work, len(pending)))
            yield from pending

        monkeypatch.setattr(run, "progress", progress)
        other = replace(question, id="other")
        ours = Variant("ours", "self-ensemble", {"trials": 2})
        plan = Run({0: [Task("q", "own", [question, other], {})]}, {"q": [STANDARD, ours]}, {})
        run.evaluate(lm, plan, tmp_path / "run")
        (_, total, first, _), (_, _, second, _) = shown
        assert shown[0][0] == "all 2 runs"
        assert total == 2 * first + 2 * second
        samples = read_samples(tmp_path / "run" / "samples-q-ours.jsonl")
        assert second == samples[0].tokens > first
        path = tmp_path / "run" / "samples-q-ours.jsonl"
        path.write_text(path.read_text().splitlines()[0] + "\n")
        run.evaluate(lm, plan, tmp_path / "run", resume=True)
        assert shown[2:] == [("all 2 runs", second, second, 1)]
        run.evaluate(lm, self.run(question, STANDARD), tmp_path / "one")
        assert shown[3][1] == 0  # of one run alone, its own bar says enough


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--task and --method say what to run"),
        (("--method", "magic"), 'method "magic" is unknown'),
        (("--method", "standard,standard"), "names a method twice"),
        (("--method", "standard", "--experiment", "main"), "leave --method out"),
        (("--method", "standard", "--seed", "0,0"), "names a seed twice"),
        (("--method", "standard", "--seed", "x"), '"x" is no list of whole numbers'),
        (("--method", "standard", "--limit", "0"), "limit"),
        (("--method", "standard", "--cut-to", "5"), "4"),
        (("--method", "dirichlet(folds=31)"), "fold"),
        (("--method", "self-ensemble", "--trials", "0"), "--trials 0 is below 1"),
        (("--method", "self-ensemble", "--group-size", "0"), "--group-size 0 is below 1"),
    ],
)
def test_bad_options_are_one_line_before_any_work(
    model: Path, data: Path, tmp_path: Path, capsys, options: tuple[str, ...], message: str
) -> None:
    folder = tmp_path / "run"
    fixed = ["eval", "--model", str(model), "--task", str(data), "--output-path", str(folder)]
    assert main([*fixed, *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
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
    pooled = read_samples(tmp_path / "samples-words-self-ensemble.jsonl")
    assert pooled[0].probabilities != pooled[8].probabilities
    right = [sample.prediction == sample.answer for sample in pooled if sample.seed == 1]
    assert cell["seeds"]["1"] == pytest.approx(sum(right) / 8)


@pytest.mark.parametrize(("variants", "pairs"), [(8, 28), (9, 8)])
def test_many_variants_are_compared_with_the_first_alone(
    variants: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minise.evaluation.metrics.RESAMPLES", 10)
    named = [Variant(f"v{i}", "standard") for i in range(variants)]
    one = Sample("q", 0, "", 0, 0, [1.0, 0.0], [1.0, 0.0], 3)
    answers = {variant.name: run.Answers([one]) for variant in named}
    differences = run._measure(Run({}, {"t": named}, {}), "t", answers, {})["differences"]
    assert len(differences) == pairs
    assert {d["b"] for d in differences} == {
        f"v{i}" for i in range(variants - 1 if pairs > 8 else 1)
    }


def test_every_file_that_decides_an_answer_is_in_the_identity() -> None:
    """Whatever the methods import, one from the other, is hashed."""
    package = Path(identity.__file__).parents[2]
    hashed, imported = identity.code_identity(), set()
    todo = [where.partition(":")[0] for where, _ in METHODS_KNOWN.values()]
    todo += ["minise.loading.checkpoint"]
    while todo:
        name = todo.pop().replace(".", "/") + ".py"
        if (package / name).is_file() and name not in imported:
            imported.add(name)
            # Imported, or named as "minise.module:object".
            named = r"(?:from |\"(?=minise\.))(minise[\w.]*)(?: import|:)"
            todo += re.findall(named, (package / name).read_text())
    assert len(imported) > 20
    only_measure = ("minise/checking/", "minise/evaluation/", "minise/explaining/")
    assert not {name for name in imported - set(hashed) if not name.startswith(only_measure)}
