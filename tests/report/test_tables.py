"""Tables from results made by hand."""

from __future__ import annotations

import re

import pytest

from minise.errors import InputError
from minise.evaluation.experiments import EXPERIMENTS, NO_EXPERIMENT
from minise.report.results import Results
from minise.report.tables import TABLES, holm, render
from tests.support.results import DIFFERENCE, LLAMA, M4, cell, make, ours, table


def rows(text: str) -> list[list[str]]:
    """The texts in each line of all tables, without the lines below the headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[part.strip() for part in line.strip("|").split(" | ")] for line in lines]


class TestTables:
    def test_every_table_of_an_experiment_exists_and_every_table_is_used(self) -> None:
        named = {name for one in (*EXPERIMENTS.values(), NO_EXPERIMENT) for name in one.tables}
        assert named == set(TABLES)

    def test_without_an_experiment_a_row_has_every_metric_of_a_method(self) -> None:
        run = make(None, {"mine": {"standard": cell(auroc=None)}}, {"mine": ("mine", None)})
        run["timing"]["mine"]["standard"] = {"seconds_per_question": None, "peak_bytes": None}
        text = table(run)
        assert text.startswith(f"{LLAMA}\n\n| task | method ")
        row = dict(zip(*rows(text), strict=True))
        assert row["n"] == "926"
        assert row["accuracy"] == "80.0 [70.0, 90.0]"
        assert row["NLL"] == "0.800 [0.700, 0.900]"
        assert row["tokens"] == "1,234"
        assert row["AUROC"] == row["s/question"] == row["peak MiB"] == "-"
        assert "Paired differences" not in text
        assert text.endswith(f"\n- {LLAMA} (bfloat16, cuda): mine: 926 questions.\n")
        run["config"]["tasks"]["mine"]["questions"] = 1
        assert table(run).endswith("mine: 1 question.\n")

    def test_numbers_of_choices_are_columns(self) -> None:
        tasks = {"few": {"standard": cell(), "mine": ours()}, "many": {"standard": cell()}}
        text = table(make("choices", tasks, {"few": ("qasc", 2), "many": ("qasc", 4)}))
        head, standard, mine = rows(text)
        assert head == ["model", "method", "few", "many"]
        shown = "80.0 [70.0, 90.0]"
        assert standard[2:] == [f"{shown} (paper 91.90)", f"{shown} (paper 86.29)"]
        assert mine == [LLAMA, "mine", "80.0 [70.0, 90.0]", "-"]

    def test_main_has_a_table_for_each_metric(self) -> None:
        text = table(make("main", {"qasc": {"standard": cell(), "self-ensemble": ours()}}))
        titles = ("Accuracy", "NLL (nats)", "ECE (15 bins of equal width)", "Under-confidence")
        for title in (*titles, "Over-confidence", "Tokens a question"):
            assert re.search(rf"^{re.escape(title)}\n\n\| model ", text, re.MULTILINE)
        assert ["model", "method", "qasc"] in rows(text)

    def test_two_tasks_have_an_average_column(self) -> None:
        tasks = {"a": {"standard": cell(accuracy=0.5)}, "b": {"standard": cell(accuracy=0.7)}}
        head, line, *_ = rows(table(make("main", tasks)))
        assert dict(zip(head, line, strict=True))["average"].startswith("60.0")

    def test_main_has_the_papers_averages_and_improvements(self) -> None:
        """62.40, and 68.67 with +6.27, are printed in its last columns for LLaMA-3."""
        facts: dict[str, tuple[str, int | None]] = {
            **{"qasc": ("qasc", 8), "truthfulqa": ("truthfulqa", 6)},
            "biology": ("mmlu_pro_biology", None),
        }
        sizes = [({"group_size": 4, "trials": 20}, 926), ({"group_size": 3, "trials": 6}, 277)]
        sizes += [({"group_size": 5, "trials": 40}, 450)]
        tasks = {
            task: {
                "standard": cell(questions=n, accuracy=0.5),
                "mine": cell(
                    "self-ensemble", settings=settings, questions=n, accuracy=0.55 + extra
                ),
            }
            for task, (settings, n), extra in zip(facts, sizes, (0, 0, 0.03), strict=True)
        }
        head, standard, mine = rows(table(make("main", tasks, facts)))[:3]
        columns = [name for task in (*facts, "average") for name in (task, f"{task}: improve")]
        assert head == ["model", "method", *columns]
        assert standard[3::2] == ["-"] * 4
        assert standard[-2] == "50.0 (paper 62.40)"
        assert mine[3] == "+5.0 (paper +7.45)"
        assert mine[-2:] == ["56.0 (paper 68.67)", "+6.0 (paper +6.27)"]
        del tasks["qasc"]["standard"]
        head, mine, *_ = rows(table(make("main", tasks, facts)))
        row = dict(zip(head, mine, strict=True))
        assert row["qasc: improve"] == row["average: improve"] == "-"
        assert row["truthfulqa: improve"] == "+5.0 (paper +7.58)"

    @pytest.mark.parametrize("experiment", ["scale", "ablation"])
    def test_methods_are_columns(self, experiment: str) -> None:
        cells = {"without-mask": cell("without-mask", settings=M4), "self-ensemble": ours()}
        lines = rows(table(make(experiment, {"qasc": cells})))
        assert lines[0] == ["model", "task", "without-mask", "self-ensemble"]
        assert [text[-14:] for text in lines[1][2:]] == [" (paper 19.22)", " (paper 80.67)"]

    def test_sensitivity_reads_sizes_from_settings_and_not_from_names(self) -> None:
        cells = {
            "a": cell("first-trials", settings={"group_size": 3, "trials": 10, "of": "b"}),
            "b": cell("self-ensemble", settings={"group_size": 3, "trials": 80}, accuracy=0.6),
            "m9-n9": cell("first-trials", settings=M4, accuracy=0.5),
            "c": cell("self-ensemble", settings={**M4, "trials": 0, "grouping": "exact"}),
        }
        model = "Qwen/Qwen2.5-7B-Instruct"
        text = table(make("sensitivity", {"qasc": cells}, model=model))
        assert text.startswith(f"{model}, qasc: accuracy\n\n")
        assert rows(text) == [
            ["trials", "m=3", "m=4"],
            ["N=10", "80.0 [70.0, 90.0] (paper 78.73)", "-"],
            ["N=80", "60.0 [70.0, 90.0] (paper 80.45)", "-"],
            ["N=20", "-", "50.0 [70.0, 90.0] (paper 80.67)"],
            ["exact", "-", "80.0 [70.0, 90.0]"],
        ]

    def test_the_spread_over_seeds_is_shown_beside_the_papers(self) -> None:
        model = "mistralai/Mistral-7B-Instruct-v0.1"
        cells = {"standard": cell(), "self-ensemble": ours()}
        text = table(make("seeds", {"qasc": cells}, model=model, seeds=[0, 1]))
        head, standard, mine = rows(text)
        assert head == ["model", "task", "method", "mean", "each seed"]
        assert standard[3:] == ["75.00 ± 7.07", "70.00, 80.00"]
        # Mistral's row, which the paper prints as Qwen2's.
        assert mine[3] == "75.00 ± 7.07 (paper 65.87 ± 0.36)"
        assert "926 questions over seeds 0, 1." in text

    def test_confidence_shows_both_sides(self) -> None:
        """The paper prints their means over three data sets, so none stands beside QASC alone."""
        counts = {"qasc": 926, "truthfulqa": 277, "mmlu_pro_biology": 450}
        K = {"qasc": 8, "truthfulqa": 6, "mmlu_pro_biology": None}
        tasks = {
            task: {"standard": cell(questions=n), "self-ensemble": ours(questions=n)}
            for task, n in counts.items()
        }
        text = table(make("confidence", tasks, {task: (task, K[task]) for task in tasks}))
        head, *lines = rows(text)
        assert head[3:] == ["under", "over", "under, score", "over, score"]
        assert [line[1] for line in lines] == [*tasks, "average"] * 2
        assert lines[3][3:5] == ["80.0 (paper 43.45)", "80.0 (paper 25.09)"]
        assert lines[7][3:5] == ["80.0 (paper 35.33)", "80.0 (paper 20.53)"]
        assert text.count("(paper") == 4
        tasks["qasc"]["standard"]["questions"] = 925
        text = table(make("confidence", tasks, {task: (task, K[task]) for task in tasks}))
        assert text.count("(paper") == 2
        assert "with f < 0.5." in text

    def test_efficiency_compares_engines(self) -> None:
        engines = {"multi-pass": "separate", "single-pass": "dense", "tree": "tree"}
        cells = {name: ours(engine=engine) for name, engine in engines.items()}
        text = table(make("efficiency", {"qasc": cells}, differences={"qasc": [DIFFERENCE]}))
        head, *lines = rows(text)
        row_of = {line[2]: dict(zip(head, line, strict=True)) for line in lines}
        assert row_of["multi-pass"]["s/question"] == "0.2500 (paper, A40: 0.78)"
        assert row_of["multi-pass"]["accuracy"].endswith("(paper 78.62)")
        assert row_of["single-pass"]["accuracy"].endswith("(paper 80.67)")
        assert "paper" not in str(row_of["tree"])
        assert row_of["tree"]["decisions changed"] == "3 of 926"
        assert row_of["tree"]["peak MiB"] == "3"
        assert text.startswith("Multi-pass (separate) against single-pass (dense), and the tree")

    def test_full_precision_and_4_bits_of_a_checkpoint_share_a_row(self) -> None:
        full = make("quantized", {"qasc": {"standard": cell(), "self-ensemble": ours()}})
        packed = {"self-ensemble": ours(accuracy=0.7)}
        four_bits = make("quantized", {"qasc": packed}, quantize="nf4")
        head, *lines = rows(table(full, four_bits))
        assert head == [
            *("checkpoint", "task", "full precision"),
            *("full precision + self-ensemble", "nf4 + self-ensemble"),
        ]
        (line,) = [line for line in lines if line[0] == LLAMA]
        assert [text.split()[0] for text in line[2:]] == ["80.0", "80.0", "70.0"]

    def test_differences_between_runs_have_a_table_of_their_own(self) -> None:
        run = Results.from_json(make("main", {"qasc": {"standard": cell()}}))
        text = render([run], [{"task": "qasc", "questions": 1234, **DIFFERENCE}])
        title = "Paired differences between runs, over the questions that both asked\n\n"
        head, line = rows(text.partition(title)[2])
        assert head[:3] == ["task", "questions", "difference"]
        assert line[:4] == ["qasc", "1,234", "tree - multi-pass", "+5.00 [-1.00, +11.00]"]

    def test_paired_differences_are_listed_below_the_table(self) -> None:
        cells = {"multi-pass": cell(), "tree": cell()}
        run = make("main", {"qasc": cells}, differences={"qasc": [DIFFERENCE]})
        points = "+5.00 [-1.00, +11.00]"
        row = [LLAMA, "qasc", "tree - multi-pass", points, "0.18", "0.18", "7 / 2 of 40"]
        assert rows(table(run))[-1] == row

    def test_of_many_tests_the_p_values_are_corrected(self) -> None:
        """Holm 1979: the smallest of three p counts three times, the next twice, and none less
        than one before it."""
        assert holm([0.03, 0.01, 0.04]) == pytest.approx([0.06, 0.03, 0.06])
        assert holm([0.9, 0.8, 0.7]) == [1.0, 1.0, 1.0]
        assert holm([]) == []
        ds = [DIFFERENCE | {"mcnemar_p": p} for p in (0.03, 0.01, 0.04)]
        run = make("main", {"qasc": {"tree": cell()}}, differences={"qasc": ds})
        assert [row[4:6] for row in rows(table(run))[-3:]] == [
            *(["0.03", "0.06"], ["0.01", "0.03"], ["0.04", "0.06"])
        ]

    def test_if_questions_share_a_fact_the_intervals_are_labelled_so(self) -> None:
        text = table(make("main", {"q": {"standard": cell(clusters=500)}}))
        assert "intervals over questions, those about one fact drawn together (perc" in text
        assert ". McNemar's test takes the first question of each fact. Percent" in text

    def test_several_runs_make_one_table(self) -> None:
        one = make("main", {"qasc": {"standard": cell()}})
        two = make("main", {"mine": {"standard": cell(), "other": cell("x:Y")}}, model="weights/b")
        head, *lines = rows(table(one, two, one))[:5]
        assert head == ["model", "method", "qasc", "qasc: improve", "mine", "mine: improve"]
        assert [line[0] for line in lines] == [LLAMA, "b", "b", LLAMA]
        assert lines[1][2:] == ["-", "-", "80.0 [70.0, 90.0]", "-"]

    @pytest.mark.parametrize(
        "experiment", [None, "choices", "main", "scale", "seeds", "confidence"]
    )
    def test_runs_of_different_tasks_make_one_table_in_any_order(self, experiment: str) -> None:
        a = make(experiment, {"a": {"standard": cell()}, "both": {"standard": cell()}})
        b = make(experiment, {"both": {"standard": cell()}, "b": {"mine": cell("x:Y")}}, model="b")
        tables = []
        for runs in ((a, b), (b, a)):
            text = table(*runs)
            parts = [rows(part) for part in text.split("\n\n") if part.startswith("| ")]
            dicts = [dict(zip(head, line, strict=True)) for head, *lines in parts for line in lines]
            tables.append(sorted(tuple(sorted(row.items())) for row in dicts))
        assert tables[0] == tables[1]
        for name in ("a", "b", "both"):
            assert f" {name} " in text

    def test_a_fit_that_was_left_out_is_named(self) -> None:
        left_out = {"qasc": {"vector-scaling": "it did not converge"}}
        text = table(make("main", {"qasc": {"standard": cell()}}, left_out=left_out))
        note = ": qasc: 926 questions. vector-scaling of qasc is left out: it did not converge.\n"
        assert text.endswith(note)

    def test_names_are_printed_without_escape_sequences(self) -> None:
        run = make("main", {"a\x1b[2Jb\nc": {"stan\x07dard": cell()}}, model="x/\x9b31mred\ud800")
        text = table(run)
        assert "a\\x1b[2Jb c" in text
        assert not set(text) & set("\x1b\x07\x9b\ud800")

    def test_runs_of_different_experiments_are_refused(self) -> None:
        runs = [make(name, {"qasc": {"standard": cell()}}) for name in ("scale", None, "seeds")]
        with pytest.raises(InputError, match=r"different experiments \(None, scale, seeds\)"):
            table(*runs)

    def test_a_bar_in_a_name_does_not_end_a_column(self) -> None:
        text = table(make("main", {"a|b": {"standard": cell()}}))
        assert rows(text)[0] == ["model", "method", "a\\|b", "a\\|b: improve"]

    def test_a_run_that_is_not_complete_is_marked(self) -> None:
        run = make("main", {"qasc": {"standard": cell()}}, full_run=False, limit=5)
        assert table(run).endswith("926 questions. Not a full run: the first 5 questions.\n")

    def test_reasoning_is_shown_by_the_label_read_and_by_the_text_written(self) -> None:
        numbers = {"accuracy": 0.6, "interval": [0.5, 0.7], "names_none": 0.1, "cut": 0.2}
        cells = {"standard": cell(), "cot": cell("cot")}
        extra = {"reasoning": {"qasc": {"cot": {**numbers, "new_tokens": 123.4}}}}
        text = table(make("reasoning", {"qasc": cells}, extra=extra))
        lines = rows(text)
        assert [row for row in lines if row[:3] == ["model", "task", "method"]]
        assert "\nTokens a question" in text
        (row,) = [row for row in lines if len(row) == 9 and row[2] == "cot"]
        read = "80.0 [70.0, 90.0] (paper 74.62)"
        assert row[3:] == [read, "60.0 [50.0, 70.0]", "10.0", "20.0", "123", "1,234"]

    def test_a_report_explains_how_to_read_it(self) -> None:
        text = table(make("confidence", {"qasc": {"standard": cell()}}))
        assert text.startswith("Under-confidence: share of the right answers with f < 0.5. Over-")
        assert "\n\nBrackets: 95% bootstrap intervals over questions (percentile, 1,000 " in text

    def test_under_and_over_are_explained_where_they_are_columns(self) -> None:
        tasks = {"qasc": {"standard": cell(), "self-ensemble": ours()}}
        line = (
            "\n\nunder: share of the right answers with a probability below 0.5; "
            "over: share of the wrong ones with one above 0.5.\nBrackets: "
        )
        assert line in table(make(None, tasks))
        assert "under: " not in table(make("choices", {"few": tasks["qasc"]}))

    def test_settings_are_listed_below_the_table(self) -> None:
        few, many = ours(), cell("self-ensemble", settings={"group_size": 5, "trials": 40})
        facts: dict[str, tuple[str, int | None]] = {"a": ("qasc", 8), "b": ("own", 8)}
        one = make("main", {"a": {"x": few, "y": many}, "b": {"x": many, "y": many}}, facts)
        assert "(bfloat16, cuda): a: 926 questions, b: 926 questions.\n  Settings" in table(one)
        assert table(one).endswith(
            "  Settings: x: group_size=4, trials=20, preset=paper (a); "
            "y: group_size=5, trials=40; x: group_size=5, trials=40 (b).\n"
        )


class TestATerminal:
    """A table is as wide as it, and the end says what is left out."""

    RUN = Results.from_json(
        make(
            None,
            {"q": {"standard": cell(), "self-ensemble": cell("self-ensemble")}},
            model="weights/tiny",
        )
    )

    def first(self, width: int) -> list[str]:
        return render([self.RUN], (), width).split("\n\nunder: ")[0].splitlines()

    def test_intervals_are_left_out_first_then_the_last_columns(self) -> None:
        title = "tiny, q"
        assert self.first(86) == [
            title,
            "",
            "| method        | n   | accuracy          | NLL   | under | over | tokens | Brier |",
            "|---------------|-----|-------------------|-------|-------|------|--------|-------|",
            "| standard      | 926 | 80.0 [70.0, 90.0] | 0.800 | 80.0  | 80.0 | 1,234  | 0.800 |",
            "| self-ensemble | 926 | 80.0 [70.0, 90.0] | 0.800 | 80.0  | 80.0 | 1,234  | 0.800 |",
            "(more in report.md: matched NLL, ECE, AUROC, s/question, peak MiB)",
        ]
        assert len(self.first(86)[2]) == 83
        assert self.first(83) == self.first(86)
        more = "matched NLL, ECE, AUROC, s/question, peak MiB"
        assert self.first(82)[-1] == f"(more in report.md: Brier, {more})"

    def test_the_interval_of_accuracy_is_left_out_before_columns_that_matter(self) -> None:
        assert self.first(66)[4:] == [
            "| standard      | 926 | 80.0     | 0.800 | 80.0  | 80.0 | 1,234  |",
            "| self-ensemble | 926 | 80.0     | 0.800 | 80.0  | 80.0 | 1,234  |",
            "(more in report.md: Brier, matched NLL, ECE, AUROC, s/question, peak MiB)",
        ]
        assert self.first(20)[2] == "| method        | n   |"

    def test_a_difference_keeps_its_interval(self) -> None:
        cells = {"multi-pass": cell(), "tree": cell()}
        run = make("main", {"q": cells}, differences={"q": [DIFFERENCE]}, model="weights/tiny")
        text = render([Results.from_json(run)], (), 66)
        assert "| tree - multi-pass | +5.00 [-1.00, +11.00] | 0.18      |" in text
        assert "Paired differences, tiny, q\n" in text
        narrow = render([Results.from_json(run)], (), 48)
        assert narrow.startswith("Accuracy, tiny\n\n| method     | q                 | q: ")
        assert "| tree - multi-pass | +5.00 [-1.00, +11.00] |\n(more in report.md: McN" in narrow
        assert render([Results.from_json(run)], (), 35).startswith("Accuracy, tiny\n\n| method ")

    @pytest.mark.parametrize("width", [40, 60, 80])
    def test_no_note_below_the_tables_is_longer_than_it(self, width: int) -> None:
        notes = render([self.RUN], (), width).split("\n\nunder: ")[1]
        assert all(len(line) <= width for line in notes.splitlines())
        in_file = render([self.RUN]).split("\n\nunder: ")[1]
        assert notes.split() == in_file.split()

    def test_a_table_that_fits_is_the_same_as_in_the_file(self) -> None:
        assert render([self.RUN], (), 300) == render([self.RUN])
