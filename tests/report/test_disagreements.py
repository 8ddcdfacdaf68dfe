"""Where two methods disagree."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minise import InputError
from minise.evaluation.samples import append_lines, samples_path
from minise.methods.sample import Sample
from minise.report.disagreements import SHOWN, Disagreement, disagreements

TEXT = {"question": "Which flies?", "choices": ["wren", "trout", "oak"], "answer": "wren"}


def sample(id: str = "q", seed: int = 0, prediction: int = 0, **changes: Any) -> Sample:
    """60% on its prediction; the first choice is right."""
    p = [0.6 if i == prediction else 0.2 for i in range(3)]
    fields = {"answer": 0, "probabilities": p, "scores": p, "text": TEXT, **changes}
    return Sample(id, seed, f"hash of {id}", prediction=prediction, tokens=9, **fields)


def disagreement(count: int, **changes: Any) -> Disagreement:
    pairs = [(sample(f"q{i}"), sample(f"q{i}", prediction=1, **changes)) for i in range(count)]
    return Disagreement("birds", ("a", "method-b"), 3000, pairs)


class TestADisagreement:
    def test_the_title_counts_how_often_each_method_is_right(self) -> None:
        title = "birds: a and method-b disagree on 1,200 of 3,000 questions"
        assert disagreement(1200).title() == f"{title}; right there: a 1,200, method-b 0"
        unknown = [(sample(answer=None), sample(prediction=1, answer=None))]
        unknown_title = Disagreement("birds", ("a", "b"), 1, unknown).title()
        assert unknown_title == "birds: a and b disagree on 1 of 1 questions"

    def test_rows_show_the_seed_and_a_missing_answer(self) -> None:
        fields = {"text": {**TEXT, "question": "Which  \n flies?"}, "answer": None}
        pair = (sample(seed=2, **fields), sample(seed=2, prediction=1, **fields))
        assert Disagreement("birds", ("a", "b"), 1, [pair]).rows() == [
            {
                **{"id": "q, seed 2", "question": "Which flies?", "answer": "not known"},
                **{"a": "wren (60.0%)", "b": "trout (60.0%)"},
            }
        ]

    def test_without_text_rows_have_ids_and_letters(self) -> None:
        pair = (sample(text=None), sample(prediction=2, text=None))
        text = Disagreement("birds", ("a", "b"), 1, [pair]).as_text()
        assert text.splitlines()[1:] == [
            *("", "q", "    answer  A"),
            *("    a       A (60.0%), right", "    b       C (60.0%), wrong"),
        ]

    def test_markdown_is_a_table(self) -> None:
        text = {"question": "Which | flies <b>?", "choices": ["wren", "trout", "oak"]}
        pair = (sample(text=text), sample(prediction=1, text=text))
        one = Disagreement("birds", ("a", "b"), 1, [pair])
        assert one.as_markdown().split("\n", 2)[2] == (
            "| id | question | answer | a | b |\n"
            "| --- | --- | --- | --- | --- |\n"
            "| q | Which \\| flies &lt;b>? | wren | wren (60.0%), right | trout (60.0%), wrong |\n"
        )

    def test_a_terminal_shows_the_first_twenty(self) -> None:
        assert SHOWN == 20
        assert "more" not in disagreement(20).as_text()
        text = disagreement(1021).as_text()
        assert text.splitlines()[-6:] == [
            "q19  Which flies?",
            "    answer    wren",
            "    a         wren (60.0%), right",
            "    method-b  trout (60.0%), wrong",
            "",
            "... and 1,001 more",
        ]
        assert text.count("Which flies?") == 20
        assert disagreement(30).as_markdown().count("Which flies?") == 30

    def test_long_texts_are_shortened_and_escape_sequences_are_shown(self) -> None:
        text = {"question": "\x1b[31m" + "q" * 999, "choices": ["c" * 999, "b", "d"], "answer": "b"}
        pair = (sample(text=text), sample(prediction=1, text=text))
        one = Disagreement("birds", ("a", "b"), 1, [pair])
        lines = one.as_text().splitlines()
        assert lines[2] == "q  \\x1b[31m" + "q" * 89 + "..."
        assert lines[3] == "    answer  " + "c" * 87 + "..."
        assert lines[4] == "    a       " + "c" * 57 + "... (60.0%), right"
        (row,) = [line for line in one.as_markdown().splitlines() if "cc" in line]
        assert "\\x1b[31m" + "q" * 292 + "..." in row

    def test_without_a_disagreement_there_is_no_table(self) -> None:
        none = disagreement(0)
        title = "birds: a and method-b disagree on 0 of 3,000 questions"
        assert none.as_text() == title
        assert none.as_markdown() == f"{title}\n\n"


def run(folder: Path, model: str = "m", **methods: list[Sample]) -> tuple[Path, Any]:
    """A folder with the samples of the task "birds" by method."""
    folder.mkdir()
    for name, samples in methods.items():
        append_lines(samples_path(folder, "birds", name), [one.line() for one in samples])
    named = [{"name": name} for name in methods]
    config = {"tasks": {"birds": {}, "none": {}}, "variants": {"birds": named}}
    return folder, SimpleNamespace(raw={"config": config}, model=model)


class TestDisagreements:
    def test_only_questions_that_both_answered_are_shared(self, tmp_path: Path) -> None:
        a = [sample("x"), sample("y"), sample("z", seed=1)]
        b = [sample("y", prediction=2), sample("x"), sample("z", seed=0, prediction=1)]
        (one_pair,) = disagreements([run(tmp_path / "1", a=a, b=b)], "a", "b")
        assert (one_pair.task, one_pair.names, one_pair.shared) == ("birds", ("a", "b"), 2)
        assert [(one.id, other.prediction) for one, other in one_pair.pairs] == [("y", 2)]

    def test_folders_that_have_both_are_named_by_model(self, tmp_path: Path) -> None:
        same = {"a": [sample()], "b": [sample(prediction=1)]}
        runs = [run(tmp_path / n, model=f"model-{n}", **same) for n in "12"]
        titles = [one.task for one in disagreements(runs, "a", "b")]
        assert titles == ["model-1, birds", "model-2, birds"]
        alone = run(tmp_path / "3", a=[sample()])
        assert [one.task for one in disagreements([runs[0], alone], "a", "b")] == ["birds"]

    def test_two_folders_with_one_each_are_compared(self, tmp_path: Path) -> None:
        runs = [
            run(tmp_path / "1", a=[sample()]),
            run(tmp_path / "2", b=[sample(prediction=1)]),
        ]
        (one_pair,) = disagreements(runs, "a", "b")
        assert (one_pair.task, one_pair.shared, len(one_pair.pairs)) == ("birds", 1, 1)

    def test_methods_without_a_common_question_are_refused(self, tmp_path: Path) -> None:
        runs = [run(tmp_path / "1", a=[sample("x")], b=[sample("y")])]
        with pytest.raises(InputError, match=r'^no task has answers of both "a" and "b"; the'):
            disagreements(runs, "a", "b")
        with pytest.raises(InputError, match='of both "a" and "c"; the methods are a, b'):
            disagreements(runs, "a", "c")

    def test_another_question_of_the_same_id_is_refused(self, tmp_path: Path) -> None:
        a, b = sample(), sample(prediction=1)
        other = Sample(**{**vars(b), "question_hash": "another"})
        with pytest.raises(InputError, match='birds: question "q" is not the same for both'):
            disagreements([run(tmp_path / "1", a=[a], b=[other])], "a", "b")
