"""Results, tables and pictures of a folder, made from its lines alone."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from minise import LocalModel
from minise.commands.cli import main
from minise.errors import InputError
from minise.lab.commands import report
from minise.lab.data.asked import Asked
from minise.lab.evaluation import figures, tables
from minise.lab.evaluation.experiments import EXPERIMENTS, Variant
from minise.lab.evaluation.request import Run, TaskRun, hash_of
from minise.lab.evaluation.results import Results, between, read_run
from minise.lab.evaluation.rows import key_of, line_of
from minise.lab.evaluation.run import evaluate
from minise.lab.methods.fitted import Fitted, remade
from minise.lab.methods.saved import SavedAnswer
from minise.lab.methods.templates import template_named
from tests.lab.evaluation.conftest import ABOUT, saved

MakeRun = Callable[..., Run]


def made(folder: Path, methods: dict[str, list[SavedAnswer]], **facts: Any) -> Results:
    """A finished run with these lines, by method; `facts` change run.json."""
    folder.mkdir()
    task = facts.pop("task", "words")
    answers = next(iter(methods.values()))
    one = {"engine": "tree", "fitted": False, "settings": {"group_size": 4, "trials": 20}}
    one["template"] = "default"
    what = {
        **{"experiment": None, "quantize": None, "limit": None, "seeds": [0], "shards": 1},
        **{"model": "weights/tiny-llama", "dtype": "float32", "device": "cpu"},
        **{"parameters": 2 * 10**9, "template": "default", "shots": "0"},
        "tasks": {
            task: {
                **{"dataset": task, "choices": 8, "questions": len(answers), "options": {}},
                "hash": hash_of([key_of(answer) for answer in answers]),
                "methods": {name: {**one, "kind": name, "text": name} for name in methods},
            }
        },
    } | facts
    (folder / "run.json").write_text(json.dumps(what))
    for name, answers in methods.items():
        text = "".join(json.dumps(line_of(answer)) + "\n" for answer in answers)
        (folder / f"samples-{task}-{name}.jsonl").write_text(text)
    return read_run(folder)


def answers_of(n: int, right: int) -> list[SavedAnswer]:
    """The first `right` of n answers are right."""
    answers = []
    for i in range(n):
        p = [0.1 / 7] * 8
        p[0 if i < right else 1] = 0.9
        answers.append(saved(i, p, 0))
    return answers


def table_text(runs: list[Results], between: list[dict[str, Any]] | None = None) -> str:
    return tables.report(runs, between or [])


# results.json


def test_results_keep_the_contract(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    read_run(folder)
    content = json.loads((folder / "results.json").read_text())
    assert content.keys() == {"config", "results", "differences", "warnings"}
    cell = content["results"]["words"]["self-ensemble"]
    low, high = cell["accuracy_interval"]
    assert low <= cell["accuracy"] <= high
    assert {"n", "nll", "brier", "ece", "auroc", "matched_nll", "tokens"} <= cell.keys()
    (difference,) = content["differences"]["words"]
    assert (difference["a"], difference["b"]) == ("self-ensemble", "standard")
    assert {"accuracy", "interval", "mcnemar_p", "holm_p"} <= difference.keys()


def test_every_method_is_compared_with_the_first_and_corrected_over_the_table(
    tmp_path: Path,
) -> None:
    methods = {"first": answers_of(40, 10), "b": answers_of(40, 20), "c": answers_of(40, 16)}
    found = made(tmp_path / "run", methods).content["differences"]["words"]
    assert [(one["a"], one["b"]) for one in found] == [("b", "first"), ("c", "first")]
    ps = [one["mcnemar_p"] for one in found]
    assert ps == [0.001953125, 0.03125]
    assert [one["holm_p"] for one in found] == [2 * ps[0], ps[1]]


def test_fitted_methods_are_made_from_the_lines(
    equal_bits: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(
        "vector-scaling(folds=2)",
        "first-trials(of=self-ensemble,trials=2)",
        "standard",
        "self-ensemble",
        "self-ensemble(trials=2)",
    )
    evaluate(equal_bits, run, tmp_path, print)
    answers = read_run(tmp_path).answers["words"]
    fewer = answers["first-trials(of=self-ensemble,trials=2)"]
    for one, other in zip(fewer, answers["self-ensemble(trials=2)"], strict=True):
        for name in ("normalized", "scores", "prediction", "tokens"):
            assert getattr(one, name) == getattr(other, name)
    assert next(iter(answers)) == "vector-scaling(folds=2)"
    assert (tmp_path / "samples-words-vector-scaling(folds=2).jsonl").exists()


@dataclass(frozen=True)
class After(Fitted):
    """Has the answers of another method."""

    name: ClassVar[str] = "after"
    of: str = "standard"

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.of,)

    def fit(self, answers: dict[str, list[SavedAnswer]]) -> list[SavedAnswer]:
        return [remade(answer, answer.normalized) for answer in answers[self.of]]


def chain(asked: list[Asked], **needs: str) -> TaskRun:
    """A task with fitted methods, and what each of them needs."""
    variants = [Variant("standard", "standard")]
    for name, need in needs.items():
        variants.append(Variant(name, f"{__name__}:After(of={need})"))
    return TaskRun("words", "own", asked, variants, {})


def test_fitted_methods_may_need_each_other_in_any_order(
    lm: LocalModel, asked: list[Asked], tmp_path: Path
) -> None:
    task = chain(asked, a="b", b="c", c="d", d="standard")
    evaluate(lm, Run([task], ABOUT), tmp_path, print)
    results = read_run(tmp_path, [variant.text for variant in task.variants])
    assert results.left_out == []
    assert list(results.answers["words"]) == ["standard", "a", "b", "c", "d"]


@pytest.mark.parametrize("needs", [{"a": "a"}, {"a": "b", "b": "a", "c": "standard"}])
def test_methods_that_need_each_other_are_refused_before_any_is_asked(
    asked: list[Asked], needs: dict[str, str]
) -> None:
    with pytest.raises(InputError, match=r"^a.* need each other"):
        chain(asked, **needs)


def test_tables_and_pictures_are_made_for_a_paper(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells of the LaTeX tables are those of report.md; a picture is in three formats."""
    shutil.copytree(finished, tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--format", "latex"]) == 0
    text = (tmp_path / "run/report.tex").read_text()
    assert text in capsys.readouterr().out
    page = (tmp_path / "run/report.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "---" not in line]
    assert text.count("\\begin{tabular}") == text.count("\\toprule") > 1
    found = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if " & " in line]
    expected = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        expected.append([cell.replace("%", r"\%").replace("_", r"\_") for cell in cells])
    assert found == expected
    [picture] = {path.stem for path in (tmp_path / "run").glob("accuracy*.png")}
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF-"}
    for form, bytes_of_form in begins.items():
        content = (tmp_path / f"run/{picture}.{form}").read_bytes()
        assert content.startswith(bytes_of_form)
        assert main(["report", str(tmp_path / "run")]) == 0
        assert (tmp_path / f"run/{picture}.{form}").read_bytes() == content


def test_a_fit_that_is_unsuited_is_left_out_with_its_reason(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    evaluate(lm, make_run("standard", "vector-scaling(folds=50)"), tmp_path, print)
    results = read_run(tmp_path)
    assert list(results.answers["words"]) == ["standard"]
    assert "vector-scaling(folds=50)" in results.left_out[0]
    assert "50 folds" in table_text([results])


def test_where_no_method_is_left_the_reason_is_given(
    lm: LocalModel, make_run: MakeRun, tmp_path: Path
) -> None:
    evaluate(lm, make_run("reasoning"), tmp_path, print)
    with pytest.raises(InputError, match="chat template"):
        read_run(tmp_path)


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=what):
        read_run(tmp_path / what)


def test_an_unfinished_run_is_refused(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    path = folder / "samples-words-standard.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(InputError, match=r"samples-words-standard.*4 of 6"):
        read_run(folder)


def test_questions_without_answers_are_predicted_and_warned_of_alike(
    lm: LocalModel,
    make_run: MakeRun,
    asked: list[Asked],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With little probability on the labels: on the terminal, in report.md and results.json."""
    (tmp_path / "odd.json").write_text(json.dumps({"cue": ""}))
    warned = []
    for name in ("none", "some", "all"):
        questions = []
        for number, one in enumerate(asked):
            is_known = name == "all" or (name == "some" and number < 2)
            answer = one.question.answer if is_known else None
            questions.append(Asked(replace(one.question, answer=answer), one.seed))
        folder = tmp_path / name
        run = make_run("standard", "cyclic", questions=questions)
        odd = template_named(str(tmp_path / "odd.json"))
        for task in run.tasks:
            for variant, method in task.methods.items():
                task.methods[variant] = replace(method, template=odd)
        evaluate(lm, run, folder, print)
        capsys.readouterr()
        assert report.run(report.Options((folder,))) == 0
        content = json.loads((folder / "results.json").read_text())
        assert bool(content["differences"]["words"]) == (name != "none")
        found = [one for one in content["warnings"] if "of the probability is on the labels" in one]
        assert len(found) == 2
        for text in ((folder / "report.md").read_text(), capsys.readouterr().out):
            for one in found:
                assert one in " ".join(text.split())
        counted = [one for one in content["warnings"] if "scored are" in one]
        numbers = {"none": 0, "some": 2}
        wanted = f"words: scored are {numbers.get(name)} of 6; the others have no answer"
        assert counted == ([wanted] if name in numbers else [])
        warned.append(found)
    assert warned[0] == warned[1] == warned[2]


# Tables


def test_few_probability_on_the_labels_is_said(tmp_path: Path) -> None:
    methods = {}
    for name, share in {"few": 0.3, "many": 0.9, "none": None}.items():
        methods[name] = [replace(answer, on_labels=share) for answer in answers_of(40, 9)]
    methods["few"][0] = replace(methods["few"][0], on_labels=0.1)
    run = made(tmp_path / "run", methods)
    few = run.content["results"]["words"]["few"]
    assert few["on_labels"] == pytest.approx((39 * 0.3 + 0.1) / 40)
    assert (few["on_labels_p5"], few["template"]) == (0.3, "default")
    assert run.content["results"]["words"]["none"]["on_labels_p5"] is None
    text = tables.report([run])
    assert "words, few: only 29% of the probability is on the labels" in text
    assert text.count("on the labels") == 1


def test_a_method_that_picks_one_label_looks_like_it(tmp_path: Path) -> None:
    always = [saved(i, [0.1, 0.8, 0.1], i % 3) for i in range(96)]
    text = table_text([made(tmp_path / "run", {"standard": always})])
    counts = {
        words[3]: words[5:10:2] for line in text.splitlines() if len(words := line.split()) == 11
    }
    assert counts["standard"] == ["0", "96", "0"]
    assert counts["(answers)"] == ["32", "32", "32"]


@pytest.mark.slow
def test_the_paper_stands_beside_what_it_ran(tmp_path: Path) -> None:
    methods = {"standard": answers_of(926, 678), "self-ensemble": answers_of(926, 747)}
    facts = {"task": "qasc", "model": "meta-llama/Meta-Llama-3-8B"}
    whole = made(tmp_path / "whole", methods, **facts)
    assert re.search(r"73\.2 \[[\d., ]+\] \(paper 73\.22\)", table_text([whole]))
    assert "(paper 80.67)" in table_text([whole])
    for change in ({"limit": 926}, {"quantize": "nf4"}, {"model": "another/model"}):
        other = made(tmp_path / str(*change), methods, **(facts | change))
        assert "(paper 73.22)" not in table_text([other])
    *_, cell = tables.cells_of([whole])
    assert tables.paper(cell, "accuracy") == 80.67
    for change in ({"trials": 7}, {"grouping": "<function independent_draws>"}):
        assert tables.paper(cell | {"settings": cell["settings"] | change}, "accuracy") is None
    for engine, printed in (("without-mask", 19.22), ("packed", 80.67), ("mine.py:soft", None)):
        assert tables.paper(cell | {"engine": engine}, "accuracy") == printed
    before = cell | {"kind": "without-mask"}  # of a run in which ablations were methods
    assert tables.paper(before, "accuracy") == 19.22
    under_seeds = {}
    for name, answers in methods.items():
        under_seeds[name] = [replace(one, seed=seed) for seed in range(3) for one in answers]
    seeds = made(tmp_path / "seeds", under_seeds, seeds=[0, 1, 2], **facts)
    assert "(paper 80.67)" in table_text([seeds])
    fewer = {name: answers[:900] for name, answers in methods.items()}
    assert "paper" not in table_text([made(tmp_path / "fewer", fewer, **facts)])


def test_averages_over_tasks_have_the_papers_average(tmp_path: Path) -> None:
    cell = {"model": "m", "method": "standard", "dataset": "a", "accuracy": 0.4}
    cell |= {"asked": 10, "n": 12}
    cell |= {name: 0.5 for name in tables.NAMES if name != "accuracy"}
    *_, average = tables.with_averages([cell, cell | {"dataset": "b", "accuracy": 0.8}])
    assert (average["task"], average["asked"], average["n"]) == ("average", 20, 24)
    assert average["accuracy"] == pytest.approx(0.6)
    assert average["accuracy_interval"] is None


def test_only_what_is_in_the_tables_is_explained(tmp_path: Path) -> None:
    run = made(tmp_path / "run", {"standard": answers_of(12, 4)})
    whole = tables.report([run])
    assert "under: of the right answers" in whole
    assert "flips:" not in whole  # of one seed there are none
    narrow = tables.report([run], width=80)
    assert "more in report.md" in narrow
    assert "under: of the right answers" not in narrow


def test_columns_line_up_and_fit_the_terminal(tmp_path: Path) -> None:
    run = made(
        tmp_path / "run", {"standard": answers_of(12, 4), "self-ensemble": answers_of(12, 9)}
    )
    for width in (80, 120):
        lines = tables.report([run], width=width).splitlines()
        assert all(len(line) <= width for line in lines)
    tables_of = [part for part in table_text([run]).split("\n\n") if part.startswith("|")]
    assert len(tables_of) == 3
    for part in tables_of:
        assert len({len(line) for line in part.splitlines()}) == 1


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("same", "the same answers"),
        ("other mistakes", "+0.00, no interval"),
        ("one more right", "+2.50 ["),
    ],
)
def test_no_difference_of_two_methods_looks_like_a_proof_that_they_are_equal(
    tmp_path: Path, second: str, said: str
) -> None:
    """An interval of no width: all resamples of no difference are 0."""
    first = answers_of(40, 9)
    other = list(first)
    if second == "other mistakes":
        other[-1] = saved(39, [0.0, 0.0, 0.9, 0.1, 0.0, 0.0, 0.0, 0.0], 0)
    if second == "one more right":
        other[-1] = saved(39, [0.9, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 0)
    run = made(tmp_path / "run", {"a": first, "b": other})
    for width in (None, 100):
        assert said in tables.report([run], width=width)
        assert "[+0.00, +0.00]" not in tables.report([run], width=width)


def test_a_table_has_how_many_are_scored_also_where_that_is_all(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", {"standard": answers_of(12, 4)}, task="whole")
    half = answers_of(6, 2) + [saved(6 + i, [0.5, 0.5], None) for i in range(6)]
    part = made(tmp_path / "part", {"standard": half}, task="part")
    shown = {}
    for line in table_text([whole, part]).splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) > 6:
            shown.setdefault(words[2], words[4:6])
    assert shown["task"] == ["n", "scored"]
    assert (shown["whole"], shown["part"]) == (["12", "12"], ["12", "6"])
    assert "scored" not in table_text([whole])


def test_a_terminal_shows_the_tokens_and_says_where_the_other_numbers_are(tmp_path: Path) -> None:
    run = made(tmp_path / "run", {"standard": answers_of(40, 9)})
    text = tables.report([run], width=100)
    assert re.search(r"\| accuracy +\| nll +\| tokens +\|", text)
    assert re.search(r"\(more in report.md: .*seconds", text, re.DOTALL)


def test_names_cannot_break_a_table_or_command_a_terminal() -> None:
    assert tables.clean("a|b\n\x1b[31m") == "a\\|b \\x1b[31m"


def test_of_several_runs_each_is_named(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / name, {"standard": answers_of(30, right)}, model=f"weights/{name}")
        for name, right in (("one", 10), ("two", 25))
    ]
    found = between(tables.labels(runs), runs)
    assert [(one["a"], one["b"]) for one in found] == [("two: standard", "one: standard")]
    assert found[0]["accuracy"] == 0.5
    text = table_text(runs, found)
    assert "two: standard - one: standard" in text
    assert "| one " in text
    same = [runs[0], made(tmp_path / "again", {"standard": answers_of(30, 9)}, model="weights/one")]
    assert tables.labels(same) == [str(tmp_path / "one"), str(tmp_path / "again")]


def test_a_report_says_how_the_prompts_ran_where_it_is_not_as_usual(tmp_path: Path) -> None:
    rows = {"standard": answers_of(12, 4)}
    usual = made(tmp_path / "usual", rows)
    assert "float32, cpu; questions" in table_text([usual])
    what = json.loads((usual.folder / "run.json").read_text())
    what["tasks"]["words"]["methods"]["standard"]["engine"] = "mine.py:soft"
    (usual.folder / "run.json").write_text(json.dumps({**what, "equal_bits": True}))
    assert "float32, cpu, equal bits, engine mine.py:soft;" in table_text([read_run(usual.folder)])
    served = made(tmp_path / "served", rows, dtype="Q4_K", device=None, server="llamacpp")
    assert "Q4_K, llamacpp; questions" in table_text([served])


# The command


@pytest.mark.slow
def test_the_report_of_several_folders_leaves_each_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [Path(shutil.copytree(finished, tmp_path / name)) for name in "ab"]
    assert report.run(report.Options(tuple(folders), tmp_path / "both")) == 0
    assert "b: standard - " in capsys.readouterr().out.replace(f"{tmp_path}/", "")
    assert {path.name for path in (tmp_path / "both").iterdir()} >= {"report.md", "accuracy.png"}
    assert not (folders[0] / "report.md").exists()


def test_a_report_needs_no_model_and_can_be_made_again(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    report.run(report.Options((folder,)))
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    report.run(report.Options((folder,)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert {"report.md", "results.json", "accuracy.png"} <= first.keys()
    for name in first:
        if name.endswith(".png"):
            assert f"({name})" in first["report.md"].decode()


# Pictures


REST = [pytest.param(x, marks=pytest.mark.slow) for x in EXPERIMENTS if x != "choices"]


@pytest.mark.parametrize("experiment", ["choices", *REST])
def test_each_experiment_is_shown_in_its_tables_and_pictures(
    lm: LocalModel, asked: list[Asked], tmp_path: Path, experiment: str
) -> None:
    """Each with its own variants, on two tasks of two questions."""
    found = EXPERIMENTS[experiment]
    variants = found.variants
    if experiment == "sensitivity":  # fewer trials
        variants = (
            Variant("m3-n10", "first-trials(of=m3-n80,trials=1)"),
            Variant("m3-n80", "self-ensemble(group_size=3,trials=2)"),
        )
    options = {"group_size": 2, "trials": 2, "max_new_tokens": 2}
    tasks = [TaskRun(name, "own", asked[:2], variants, options) for name in "ab"]
    about = {"experiment": experiment, "quantize": None, "limit": 2, "seeds": [0]}
    about |= {"template": "default", "shots": "0"}
    evaluate(lm, Run(tasks, about, peak=found.peak), tmp_path, lambda line: None)
    report.run(report.Options((tmp_path,)))
    text = (tmp_path / "report.md").read_text()
    for name in found.tables:
        assert tables.TABLES[name].title in text
    for name in found.figures:
        assert list(tmp_path.glob(f"{name}*.png"))
    compares = len(variants) > 1  # `confidence` asks one method, which has nothing beside it
    assert ("Paired differences" in text) == compares


def test_figures_draw_what_the_cells_say(tmp_path: Path) -> None:
    run = made(
        tmp_path / "run", {"standard": answers_of(20, 5), "self-ensemble": answers_of(20, 15)}
    )
    cells = tables.cells_of([run])
    figure = figures.sheet(
        {"": cells}, lambda each, ax: figures.lines("task", "method", each, ax), "", ""
    )
    heights = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert heights == pytest.approx([25, 75])
    curves = figures.sheet(
        {"": cells}, lambda each, *axes: figures.curves("method", each, *axes), "", "", ""
    )
    assert [len(ax.lines) for ax in curves.axes] == [2, 2]
    assert curves.axes[0].lines[0].get_ydata()[0] == 100
