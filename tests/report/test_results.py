"""The typed view of results.json, and the paper's numbers for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minise.errors import InputError
from minise.report import results
from minise.report.results import Results, and_averages, model_name, read_results, tell_apart
from tests.support.results import DIFFERENCE, LLAMA, M4, cell, make, ours, table


class TestPaper:
    @pytest.mark.parametrize(
        "other",
        [
            {"model": "weights/tiny-llama"},
            {"full_run": False, "limit": 5},
            {"as_in_paper": False},
            {"facts": {"qasc": ("own", 8)}},
            {"facts": {"qasc": ("qasc", 5)}},
        ],
    )
    def test_the_papers_number_is_shown_only_beside_a_comparable_one(
        self, other: dict[str, Any]
    ) -> None:
        cells = {"self-ensemble": ours(), "standard": cell()}
        assert table(make("ablation", {"qasc": cells})).count("(paper ") == 2
        assert "(paper" not in table(make("ablation", {"qasc": cells}, **other))

    @pytest.mark.parametrize(
        ("dataset", "K", "n"),
        [("qasc", 8, 926), ("truthfulqa", 6, 277), ("mmlu_pro_biology", None, 450)],
    )
    def test_the_papers_number_needs_the_papers_count_of_questions(
        self, dataset: str, K: int | None, n: int
    ) -> None:
        """The first release of TruthfulQA has 285 questions and Biology 717: other questions."""
        facts: dict[str, tuple[str, int | None]] = {"t": (dataset, K)}
        for questions in (4, 285, 717, n - 1, n + 1, n):
            cells = {"standard": cell(questions=questions)}
            shown = "(paper" in table(make("main", {"t": cells}, facts))
            assert shown == (questions == n)

    def test_other_settings_or_methods_have_no_number(self) -> None:
        cells = {
            "self-ensemble": cell("self-ensemble", settings={**M4, "trials": 10}),
            "standard": cell("./mine.py:Mine"),
        }
        assert "paper" not in table(make("ablation", {"qasc": cells}))

    def test_numbers_of_one_experiment_are_used_by_no_other(self) -> None:
        """Qwen2.5-7B at m = 4, N = 20: 81.43 in one table and 80.67 in another."""
        for experiment, number in {"sensitivity": 80.67, "scale": 81.43, None: 81.43}.items():
            run = make(experiment, {"qasc": {"x": ours()}}, model="Qwen/Qwen2.5-7B")
            assert Results.from_json(run).cells[0].paper("accuracy") == number

    def test_4_bit_weights_have_a_separate_name_and_separate_numbers(self) -> None:
        accuracies = {}
        for packed in (None, "nf4"):
            run = Results.from_json(make(None, {"qasc": {"x": ours()}}, quantize=packed))
            accuracies[run.model] = run.cells[0].paper("accuracy")
        assert accuracies[LLAMA] == 80.67
        assert accuracies[f"{LLAMA} (nf4)"] != 80.67

    def test_the_papers_accuracies_are_shares_of_its_questions(self) -> None:
        """926 questions of QASC, 277 of TruthfulQA, 450 of Biology: what a percentage can be. Two
        numbers that cannot be one (docs/paper.md) are copied as printed."""
        paper = json.loads(Path(results.__file__).with_name("paper.json").read_text())
        odd = []
        for number in paper["numbers"]:
            assert number["model"] in paper["models"]
            if number["dataset"] != "average" and (value := number.get("accuracy")):
                n = paper["questions"][number["dataset"]]
                if abs(round(value * n / 100) * 100 / n - value) > 0.0101:
                    odd.append(value)
        assert odd == [74.96, 62.24]

    def test_no_two_numbers_are_for_the_same_cell(self) -> None:
        paper = json.loads(Path(results.__file__).with_name("paper.json").read_text())
        facts = ("experiment", "four_bit", "dataset", "choices", "method", "settings", "engine")
        keys = [
            json.dumps([number.get(fact) for fact in (*facts, "model")])
            for number in paper["numbers"]
        ]
        assert len(set(keys)) == len(keys)


class TestReading:
    def test_a_cell_has_its_facts(self, tmp_path: Path) -> None:
        facts: dict[str, tuple[str, int | None]] = {"t": ("truthfulqa", 6)}
        run = make("choices", {"t": {"name": ours()}}, facts, extra={"asked": {"t": {"q": 1}}})
        (tmp_path / "results.json").write_text(json.dumps(run), encoding="utf-8")
        read = read_results(tmp_path)
        (one,) = read.cells
        assert (one.model, one.task, one.dataset, one.choices) == (
            LLAMA,
            "t",
            "truthfulqa",
            6,
        )
        assert (one.name, one.method, one.engine) == ("name", "self-ensemble", "tree")
        assert one.settings == {**M4, "preset": "paper"}
        assert one.metrics["accuracy"] == 0.8
        assert one.timing["seconds_per_question"] == 0.25
        assert one.comparable is True
        assert (read.raw, read.experiment, read.model) == (run, "choices", LLAMA)
        assert read.extra == {"asked": {"t": {"q": 1}}}

    @pytest.mark.parametrize(
        ("text", "part"),
        [
            (None, "no such file; finish the run with minise eval --resume"),
            ("{", "not readable as results"),
            ("[]", "not readable as results"),
            ('{"config": []}', "not readable as results"),
            ('{"config": {"experiment": null}}', "is missing"),
            (b"\xff\xfe", "not readable as results"),
            ("[" * 100_000, "minise eval --resume writes it again"),
            ("1" * 10_000, "minise eval --resume writes it again"),
            ('{"config": {"model": NaN}}', "(it holds NaN, which no run writes); minise eval"),
            ('{"config": {"model": 1e999}}', "it holds 1e999"),
            ('{"config": {"model": 3, "experiment": null}}', "not readable as results"),
        ],
    )
    def test_a_file_that_is_not_a_results_file_is_refused(
        self, tmp_path: Path, text: str | bytes | None, part: str
    ) -> None:
        path = tmp_path / "results.json"
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InputError) as error:
            read_results(tmp_path)
        assert str(error.value).startswith(f"{path}: ")
        assert part in str(error.value)
        assert "\n" not in str(error.value)

    def test_a_model_of_another_library_has_no_count_of_parameters(self) -> None:
        config = {"model_type": "gemma2", "num_hidden_layers": 2}
        (read,) = Results.from_json(make(None, {"q": {"standard": cell()}}, config=config)).cells
        assert read.parameters is None

    def test_a_folder_named_results_json_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "results.json").mkdir()
        with pytest.raises(InputError, match=r"\(it is no file\); minise eval --resume"):
            read_results(tmp_path)

    @pytest.mark.parametrize(
        "where",
        [
            ("config", "seeds"),
            ("config", "tasks", "qasc", "dataset"),
            ("results", "qasc", "x", "method"),
            ("results", "qasc", "x", "under_confidence"),
            ("results", "qasc", "x", "nll_interval"),
            ("timing", "qasc", "x", "peak_bytes"),
            ("timing", "qasc", "x"),
            ("differences",),
            ("results", "qasc", "x", "reliability"),
            ("results", "qasc", "x", "nll_matched"),
            ("config", "left_out"),
            ("config", "config", "head_dim"),
            ("asked",),
        ],
    )
    def test_incomplete_results_are_refused(self, tmp_path: Path, where: tuple[str, ...]) -> None:
        run: Any = make("choices", {"qasc": {"x": cell()}})
        run = inner = json.loads(json.dumps(run))
        for key in where[:-1]:
            inner = inner[key]
        del inner[where[-1]]
        (tmp_path / "results.json").write_text(json.dumps(run), encoding="utf-8")
        with pytest.raises(InputError, match=f"'{where[-1]}' is missing"):
            read_results(tmp_path)

    @pytest.mark.parametrize(
        ("model", "name"),
        [
            ("Qwen/Qwen2-7B", "Qwen/Qwen2-7B"),
            ("gpt2", "gpt2"),
            ("weights/tiny-llama", "tiny-llama"),
            ("./llama", "llama"),
            ("../llama/", "llama"),
            ("/data/models/llama", "llama"),
            ("some/where/llama", "llama"),
            ("/llama", "llama"),
            ("~/llama", "llama"),
            ("C:\\models\\llama", "llama"),
        ],
    )
    def test_a_name_does_not_depend_on_the_disk(
        self, model: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert model_name(model) == name
        (tmp_path / "Qwen" / "Qwen2-7B").mkdir(parents=True)
        assert model_name(model) == name


@pytest.mark.parametrize("preset", ["paper", "authors-code"])
def test_a_setting_that_is_left_to_the_preset_paper_is_shown_as_it_is_there(preset: str) -> None:
    settings = {"preset": preset, "grouping": None, "null_option": None, "trials": 3}
    run = make("main", {"q": {"x": cell("self-ensemble", settings=settings)}})
    there = {"grouping": "random", "null_option": True} if preset == "paper" else {}
    assert Results.from_json(run).cells[0].used == {**settings, **there}


class TestAverages:
    def test_a_method_of_all_tasks_has_a_mean_over_them(self) -> None:
        """It has no intervals, and none of the paper's numbers for one data set."""
        tasks = {
            "a": {"x": cell(accuracy=0.5, questions=10), "y": cell()},
            "b": {"x": cell(accuracy=0.75, questions=30)},
        }
        cells = Results.from_json(make("main", tasks, differences={"a": [], "b": []})).cells
        listed = and_averages(cells)
        tasks_of = [(one.task, one.name) for one in listed]
        assert tasks_of == [("a", "x"), ("b", "x"), ("average", "x"), ("a", "y")]
        mean = listed[2]
        assert (mean.dataset, mean.choices, mean.differences) == ("average", None, [])
        assert (mean.metrics["accuracy"], mean.metrics["questions"]) == (0.625, 40)
        assert mean.metrics["accuracy_interval"] is None

    def test_one_task_has_no_mean(self) -> None:
        cells = Results.from_json(make("main", {"a": {"x": cell()}})).cells
        assert and_averages(cells) == cells


class TestTellApart:
    @pytest.mark.parametrize(
        ("fact", "value"),
        [("dtype", "float32"), ("device", "cpu"), ("seeds", [0, 1]), ("limit", 5)],
    )
    def test_runs_of_one_model_are_named_by_the_facts_that_differ(
        self, fact: str, value: Any
    ) -> None:
        tasks = {"q": {"x": cell()}}
        one, other = (Results.from_json(make("main", tasks, **m)) for m in ({}, {fact: value}))
        elsewhere = Results.from_json(make("main", tasks, model="gpt2", dtype="float16"))
        shown = tell_apart([one, other, elsewhere])
        assert shown[1].model == f"{LLAMA}, {fact} {value}"
        assert shown[0].model == f"{LLAMA}, {fact} {one.config[fact]}"
        assert [run.cells[0].label for run in shown] == [run.model for run in shown]
        assert shown[2] == elsewhere
        assert tell_apart([one, one]) == [one, one]

    def test_methods_of_one_name_are_named_by_the_settings_that_differ(self) -> None:
        few = cell("self-ensemble", settings={**M4, "trials": 10, "preset": "paper"})
        differences = {"q": [{**DIFFERENCE, "a": "x", "b": "standard"}], "r": []}
        tasks = {"q": {"standard": cell(), "x": ours()}, "r": {"x": few}}
        one = Results.from_json(make("main", tasks, differences=differences))
        other = Results.from_json(make("main", {"q": {"x": few}}))
        shown, shown_other = tell_apart([one, other])
        names = [(each.task, each.name) for each in shown.cells]
        assert names == [("q", "standard"), ("q", "x (trials=20)"), ("r", "x (trials=10)")]
        (d,) = shown.cells[1].differences
        assert (d["a"], d["b"]) == ("x (trials=20)", "standard")
        assert shown_other.cells[0].name == "x (trials=10)"

    def test_a_label_names_a_run_and_is_not_longer_than_a_line(self) -> None:
        raw = make("main", {"q": {"x": cell()}}, label="mine")
        assert Results.from_json(raw).model == f"{LLAMA}, mine"
        run = Results.from_json(raw, "y" * 99)
        assert run.model == f"{LLAMA}, {'y' * 57}..."
        assert run.cells[0].label == run.model
