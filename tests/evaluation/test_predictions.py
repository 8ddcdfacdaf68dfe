"""What each method predicts: the table for a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from minise.evaluation.predictions import predictions_csv, with_text
from minise.methods.sample import Sample

TEXT = {"question": "Which flies?", "choices": ["wren", "trout", "oak"], "answer": "wren"}


def sample(id: str = "q", seed: int = 0, prediction: int = 0, **changes: Any) -> Sample:
    """60% on its prediction; the first choice is right."""
    p = [0.6 if i == prediction else 0.2 for i in range(3)]
    fields = {"answer": 0, "probabilities": p, "scores": p, "text": TEXT, **changes}
    return Sample(id, seed, f"hash of {id}", prediction=prediction, tokens=9, **fields)


def rows(samples: dict[str, list[Sample]]) -> list[dict[str, str]]:
    text = predictions_csv(samples)
    assert text.startswith("\ufeff")
    return list(csv.DictReader(io.StringIO(text[1:], newline="")))


class TestTheTable:
    def test_a_row_is_a_seed_and_question_with_the_prediction_of_each_method(self) -> None:
        both, one = sample(seed=0), sample(seed=1, prediction=1)
        first, second = rows({"a": [both, one], "b": [both]})
        assert first == {
            **{"id": "q", "seed": "0", "question": "Which flies?", "answer": "wren"},
            **{"a": "wren", "a: letter": "A", "a: probability": "0.6000", "a: right": "right"},
            **{"a: tokens": "9", "b: tokens": "9"},
            **{"b": "wren", "b: letter": "A", "b: probability": "0.6000", "b: right": "right"},
        }
        assert second["a: letter"] == "B"
        assert (second["seed"], second["a"], second["a: right"]) == ("1", "trout", "wrong")
        assert second["b"] == second["b: probability"] == second["b: right"] == ""

    def test_a_row_has_its_number_in_the_file(self) -> None:
        places = {"x": "my, odd file 9.csv, row 41", "y": "m.csv, row 7"}
        text = predictions_csv({"a": [sample("x"), sample("y")]}, places)
        table = list(csv.DictReader(io.StringIO(text[1:], newline="")))
        assert [(row["row"], row["id"]) for row in table] == [("41", "x"), ("7", "y")]
        assert list(table[0])[:2] == ["row", "id"]
        assert "row" not in rows({"a": [sample("x")]})[0]

    def test_the_columns_of_the_file_come_last(self) -> None:
        """Also those that minise does not read. What is here already is not there twice."""
        originals = {
            "x": {"id": "x", "answer": "A", "Topic": "=1+1", "Level": 3, "empty": "", "A": "wren"},
            "y": {"id": "y", "answer": "B", "Topic": "\x1b[31m", "Level": None, "tags": ["a", "é"]},
        }
        text = predictions_csv({"a": [sample("x"), sample("y")]}, None, originals)
        first, second = csv.DictReader(io.StringIO(text[1:], newline=""))
        assert list(first)[-5:] == ["file: answer", "Topic", "Level", "A", "tags"]
        assert [first[name] for name in list(first)[-5:]] == ["A", "'=1+1", "3", "wren", ""]
        assert [second[n] for n in list(first)[-5:]] == ["B", "\\x1b[31m", "", "", '["a", "é"]']
        assert (first["id"], first["answer"]) == ("x", "wren")

    def test_a_column_keeps_apart_from_those_of_minise(self) -> None:
        taken = {"a: letter": "x", "file: a: letter": "y", "seed": "z"}
        text = predictions_csv({"a": [sample("x")]}, None, {"x": taken})
        (row,) = csv.DictReader(io.StringIO(text[1:], newline=""))
        assert (row["a: letter"], row["seed"]) == ("A", "z")
        assert (row["file: a: letter"], row["file: file: a: letter"]) == ("x", "y")

    def test_a_method_that_stops_says_whether_it_decided_and_after_how_many_trials(self) -> None:
        yes = sample("x", notes={"decided": True, "trials": 8})
        no = sample("y", notes={"decided": False, "trials": 80})
        first, second = rows({"a": [yes, no], "b": [sample("x")]})
        assert (first["a: decided"], first["a: trials"]) == ("decided", "8")
        assert (second["a: decided"], second["a: trials"]) == ("undecided", "80")
        assert "b: decided" not in first

    def test_one_seed_has_no_column(self) -> None:
        assert "seed" not in rows({"a": [sample(seed=3)]})[0]

    def test_a_question_that_only_a_later_method_answered_has_a_row(self) -> None:
        table = rows({"a": [sample("x")], "b": [sample("y"), sample("x")]})
        assert [(row["id"], row["a"], row["b"]) for row in table] == [
            ("x", "wren", "wren"),
            ("y", "", "wren"),
        ]

    def test_text_comes_from_any_sample_that_has_it(self) -> None:
        bare, full = sample(text=None), sample()
        assert with_text(bare, full) is full
        assert with_text(bare, bare) is bare
        (row,) = rows({"a": [bare], "b": [full]})
        assert (row["question"], row["a"]) == ("Which flies?", "wren")

    def test_without_text_a_choice_is_its_letter_or_its_number(self) -> None:
        p = [0.0] * 28
        for index, name in [(0, "A"), (25, "Z"), (26, "27"), (27, "28")]:
            p = [float(i == index) for i in range(28)]
            (row,) = rows({"a": [sample(prediction=index, probabilities=p, text=None)]})
            assert (row["question"], row["answer"], row["a"]) == ("", "A", name)

    @pytest.mark.parametrize("before", ["", ";", "a;", "a; b;", "\n", "\r\n", "a\n", "\t", "a\t"])
    def test_no_part_of_a_cell_is_a_formula(self, before: str) -> None:
        hidden = ("", " ", "   ", "\u3000", "\xa0", "\u200b", "\ufeff", "\ufe0f", " \u200b ")
        signs = (*"=+-@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\ufe66")
        formulas = [space + sign + "cmd()" for space in hidden for sign in signs]
        table = rows({"a": [sample(before + formula) for formula in formulas]})
        shown = before.replace("\r\n", "\n")
        assert [row["id"] for row in table] == [f"{shown}'{formula}" for formula in formulas]

    @pytest.mark.parametrize(
        "text", ["a = b", "x, -y", "-4", "1;-4;+2.5", "a - b\nc", "(=)", "é;è"]
    )
    def test_an_ordinary_text_stays_as_it_is(self, text: str) -> None:
        (row,) = rows({"a": [sample(text)]})
        assert row["id"] == text

    def test_no_cell_commands_a_terminal(self) -> None:
        text = "red \x1b[31m \u202e turned\r\nmore \r \x00 \x9b \x7f \ud800"
        (row,) = rows({"a": [sample(text)]})
        shown = "red \\x1b[31m \\u202e turned\nmore \\r \\x00 \\x9b \\x7f \\ud800"
        assert row["id"] == shown

    @pytest.mark.parametrize("start", ["=", "+", "-", "@"])
    def test_no_cell_is_a_formula_and_a_number_stays_one(self, start: str) -> None:
        text = {"question": f"{start}SUM(A1)", "choices": ["-4", "+1,000.5", "-"], "answer": "-4"}
        (row,) = rows({"@a": [sample(f"{start}x", text=text)], "b": [sample(f"{start}x", 0, 1)]})
        assert row["id"] == f"'{start}x"
        assert row["question"] == f"'{start}SUM(A1)"
        assert (row["answer"], row["'@a"], row["b"]) == ("-4", "-4", "+1,000.5")
        (row,) = rows({"a": [sample(text=text, prediction=2)]})
        assert row["a"] == "'-"
