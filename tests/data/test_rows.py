"""Questions of the user: the forms of their rows, their answers, and standard input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from minise import InputError, Question
from minise.data.question_file import read_question
from minise.data.rows import advice, ignored, read_row
from tests.support.commands import run
from tests.support.rows import load, refusal, write

CITIES = ["Kingston", "Ottawa", "Toronto"]
CAPITAL = Question("Capital of Canada?", CITIES, id="7", answer=1)
ROW = "7{0}Capital of Canada?{0}Kingston{0}Ottawa{0}Toronto{0}{1}\n"


def give_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


class TestShapes:
    @pytest.mark.parametrize(
        "columns",
        [
            ["A", "B", "C"],
            ["a", "b", "c"],
            ["choice_1", "choice_2", "choice_3"],
            ["Choice 1", "Choice 2", "Choice 3"],
            ["option1", "option2", "option3"],
            ["option_a", "option_b", "option_c"],
            ["Option A", "Option B", "Option C"],
            ["optionA", "optionB", "optionC"],
        ],
        ids=lambda columns: columns[0],
    )
    @pytest.mark.parametrize("names", [("id", "question", "answer"), ("ID", "Question", "Answer ")])
    def test_each_choice_may_have_its_own_column(
        self, tmp_path: Path, columns: list[str], names: tuple[str, str, str]
    ) -> None:
        header = ",".join([*names[:2], *columns, names[2]])
        path = tmp_path / "mine.csv"
        path.write_text(f"{header}\n{ROW.format(',', 'B')}")
        assert load(path).questions == [CAPITAL]
        assert read_question(path) == CAPITAL

    def test_another_column_of_one_letter_is_no_choice(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        path.write_text(
            "n,id,question,choice_1,choice_2,choice_3,answer\n9," + ROW.format(",", "B")
        )
        assert load(path).questions == [CAPITAL]

    def test_the_last_choices_may_be_blank(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        path.write_text("question,A,B,C,D,answer\nUp?,yes,no,, ,B\n")
        assert load(path).questions == [Question("Up?", ["yes", "no"], answer=1)]

    @pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
    def test_each_choice_may_have_its_own_column_in_every_kind_of_file(
        self, tmp_path: Path, kind: str
    ) -> None:
        row = {"id": 7, "question": CAPITAL.text, "A": CITIES[0], "B": CITIES[1], "C": CITIES[2]}
        fewer = {"id": 8, "question": "Up?", "A": "yes", "B": "no", "C": None, "answer": "A"}
        path = write(tmp_path / f"mine.{kind}", [{**row, "answer": "Ottawa"}, fewer])
        assert load(path).questions == [CAPITAL, Question("Up?", ["yes", "no"], "8", 0)]

    def test_a_cell_of_csv_may_hold_a_list(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        cell = json.dumps(CITIES).replace('"', '""')
        path.write_text(f'id,question,choices,answer\n7,Capital of Canada?,"{cell}",B\n')
        assert load(path).questions == [CAPITAL]
        path.write_text("id,question,choices,answer\n7,Capital of Canada?,[Ottawa|Rome],B\n")
        assert 'row 1: choices is "[Ottawa|Rome]"; it must be a list in JSON' in refusal(str(path))

    @pytest.mark.parametrize(("mark", "kind"), [(",", "csv"), (";", "csv"), ("\t", "csv")])
    def test_a_comma_a_semicolon_or_a_tab_separates_cells(
        self, tmp_path: Path, mark: str, kind: str
    ) -> None:
        path = tmp_path / f"mine.{kind}"
        header = mark.join(["id", "question", "A", "B", "C", '"answer, or; none"', "answer"])
        path.write_text(f"{header}\n{ROW.format(mark, mark + 'B')}")
        assert load(path).questions == [CAPITAL]
        path = path.rename(tmp_path / "mine.tsv")
        assert load(path).questions == [CAPITAL]


class TestAnswers:
    @pytest.mark.parametrize(
        "answer", ["B", "b", "(B)", "B.", "B)", "[B]", " Ottawa ", "ottawa", "1", 1]
    )
    def test_an_answer_is_a_letter_a_text_or_an_index_from_0(
        self, tmp_path: Path, answer: str | int
    ) -> None:
        row = {"id": "7", "question": CAPITAL.text, "choices": CITIES, "answer": answer}
        path = write(tmp_path / "mine.json", [row])
        assert load(path).questions == [CAPITAL]
        assert read_question(path) == CAPITAL

    @pytest.mark.parametrize(
        ("choices", "answer", "reason"),
        [
            (["a", "b", "c", "d"], "E", 'answer "E" is not one of A-D'),
            (["a", "b"], "(C)", 'answer "(C)" is not one of A-B'),
            (
                ["wren", "oak"],
                "fir",
                'answer "fir" is no choice; write a letter A-B, the choice\'s text, or an index '
                "from 0 to 1",
            ),
            (["wren", "oak"], "5", "answer 5 is no choice; give an index from 0 to 1"),
            (
                ["B", "A"],
                "A",
                'answer "A" is a letter and the text of choice 2; write the index, counted from 0',
            ),
            (
                ["3", "1", "4"],
                "1",
                None,  # both ways the second
            ),
            (["3", "4", "1"], "1", None),  # the column holds indices
            (["Ion", "ion"], "ION", "the text of choice 1 and the text of choice 2"),
            (["oak", "oak", "fir"], "oak", 'two choices are "oak", the right one'),
        ],
    )
    def test_an_invalid_or_ambiguous_answer_is_refused(
        self, tmp_path: Path, choices: list[str], answer: str, reason: str | None
    ) -> None:
        rows = [
            {"question": "First?", "choices": ["x", "y"], "answer": 0},
            {"question": "Which?", "choices": choices, "answer": answer},
        ]
        path = write(tmp_path / "mine.csv", rows)
        if reason is None:
            assert load(path).questions[1].answer == 1
        else:
            message = refusal(str(path))
            assert message.startswith(f"{path}, row 2: ")
            assert reason in message

    def test_an_answer_stored_as_a_number_is_an_index(self, tmp_path: Path) -> None:
        row = {"question": "1 + 2?", "choices": ["3", "4", "1"], "answer": 1}
        zero = {"question": "1 + 1?", "choices": ["2", "3"], "answer": 0}
        assert load(write(tmp_path / "mine.json", [row, zero])).questions[0].answer == 1

    def test_answers_that_must_be_counted_from_1_are_refused(self, tmp_path: Path) -> None:
        rows = [{"question": f"{i}?", "choices": ["x", "y", "z"], "answer": i} for i in (1, 2, 3)]
        for kind in ("csv", "json"):
            path = write(tmp_path / f"mine.{kind}", rows)
            for skip in (False, True):
                assert refusal(str(path), skip_bad_rows=skip) == (
                    f"{path}: answers seem to be counted from 1 (row 3: answer 3 of 3 choices, "
                    "and no answer is 0); give --answers index1"
                )
        path = write(tmp_path / "mine.json", [*rows, {**rows[0], "answer": 0, "id": "zero"}])
        assert "row 3: answer 3 is no choice" in refusal(str(path))

    def test_a_notice_is_printed_if_none_of_20_answers_is_0(self, tmp_path: Path) -> None:
        rows = [{"question": f"{i}?", "choices": ["x", "y", "z"], "answer": 1} for i in range(20)]
        path = write(tmp_path / "mine.csv", rows)
        notice = "none of 20 answers is 0; if they are counted from 1, give --answers index1"
        assert load(path).notices == [f"{path}: {notice}"]
        assert load(write(path, rows[:19])).notices == []
        assert load(write(path, [*rows, {**rows[0], "question": "?", "answer": 0}])).notices == []
        letters = [{**row, "answer": "B"} for row in rows]
        assert load(write(path, letters)).notices == []

    def test_either_all_or_no_answers_may_be_absent(self, tmp_path: Path) -> None:
        rows = [{"question": f"{i}?", "choices": ["x", "y"]} for i in range(3)]
        path = write(tmp_path / "mine.csv", rows)
        task = load(path)
        assert [question.answer for question in task.questions] == [None] * 3
        assert task.notices == [f"{path}: has no answers, so nothing can be scored"]
        assert load(write(path, [{**row, "answer": ""} for row in rows])).questions == (
            task.questions
        )
        write(path, [{**rows[0], "answer": "A"}, *rows[1:]])
        assert "row 2: answer is empty (2 bad rows" in refusal(str(path))
        write(path, rows)
        assert "has no answers, so choices cannot be left out" in refusal(str(path), cut_to=[2])


class TestTheFormOfAColumn:
    def test_two_choices_that_are_letters_do_not_spoil_300_letters(self, tmp_path: Path) -> None:
        usual, odd = ["wren", "trout", "oak"], ["B", "A", "oak"]
        rows = [
            {"question": f"{i}?", "choices": odd if i in (7, 90) else usual, "answer": "ABC"[i % 3]}
            for i in range(300)
        ]
        task = load(write(tmp_path / "mine.csv", rows))
        assert [question.answer for question in task.questions] == [i % 3 for i in range(300)]
        assert task.notices == []

    @pytest.mark.parametrize(
        ("answers", "meant"),
        [
            (["oak", "B"], 0),  # texts: B is the first choice
            (["C", "B"], 1),
            (["0", "1"], 1),
            (["5", "1"], 2),  # 5 is a text alone
        ],
    )
    def test_an_answer_of_two_meanings_has_the_form_that_all_have(
        self, tmp_path: Path, answers: list[str], meant: int
    ) -> None:
        odd = ["B", "A", "c"] if answers[1] == "B" else ["3", "4", "1"]
        choices = [["wren", "5", "oak"], odd]
        rows = [
            {"question": f"{i}?", "choices": choices[i], "answer": answers[i]} for i in range(2)
        ]
        assert load(write(tmp_path / "mine.csv", rows)).questions[1].answer == meant

    def test_a_column_of_two_forms_is_refused_with_the_way_out(self, tmp_path: Path) -> None:
        rows = [
            {"question": "1?", "choices": ["B", "A"], "answer": "A"},
            {"question": "2?", "choices": ["A", "B"], "answer": "A"},
        ]
        path = write(tmp_path / "mine.csv", rows)
        for skip in (False, True):
            assert refusal(str(path), skip_bad_rows=skip) == (
                f'{path}: the answers may be letters or texts of choices (row 1: "A" is choice 1 '
                "or choice 2); say which: --answers letter or --answers text"
            )
        for form, answer in (("letter", 0), ("text", 1)):
            assert load(path, answers=form).questions[0].answer == answer
        digits = {"question": "1?", "choices": ["2", "1", "0"], "answer": "0"}
        message = refusal(str(write(path, [digits])))
        assert "texts of choices or indices counted from 0 (row 1" in message

    def test_a_number_beside_letters_makes_a_mixed_column(self, tmp_path: Path) -> None:
        rows = [
            {"question": "1?", "choices": ["x", "y"], "answer": 0},
            {"question": "2?", "choices": ["B", "A"], "answer": "A"},
        ]
        message = refusal(str(write(tmp_path / "mine.json", rows)))
        assert "row 2" in message
        assert "write the index, counted from 0, or give --answers text or" in message

    @pytest.mark.parametrize(
        ("form", "answer", "meant"),
        [
            ("letter", "b", 1),
            ("text", "1", 2),
            ("index0", "1", 1),
            ("index1", "1", 0),
            ("index1", 3, 2),
            ("index0", 2, 2),
        ],
    )
    def test_a_given_form_is_the_only_one(self, form: str, answer: str | int, meant: int) -> None:
        row = {"question": "1 + 0?", "choices": ["3", "b", "1"], "answer": answer}
        assert read_row(row, form)["answer"] == meant

    @pytest.mark.parametrize(
        ("form", "answer", "kind"),
        [
            ("letter", "oak", "a letter A-B"),
            ("letter", 1, "a letter A-B"),
            ("text", "A", "the text of a choice"),
            ("index0", "A", "an index from 0 to 1"),
            ("index1", "0", "an index from 1 to 2"),
            ("index1", 3, "an index from 1 to 2"),
        ],
    )
    def test_an_answer_of_another_form_is_refused(
        self, form: str, answer: str | int, kind: str
    ) -> None:
        row = {"question": "Which?", "choices": ["wren", "oak"], "answer": answer}
        with pytest.raises(InputError) as caught:
            read_row(row, form)
        assert str(caught.value).endswith(f" is not {kind}, the form of this column")

    def test_answers_counted_from_1_are_read_if_that_is_said(self, tmp_path: Path) -> None:
        rows = [{"question": f"{i}?", "choices": ["x", "y", "z"], "answer": i} for i in (1, 2, 3)]
        for kind in ("csv", "json"):
            task = load(write(tmp_path / f"mine.{kind}", rows * 1), answers="index1")
            assert [question.answer for question in task.questions] == [0, 1, 2]
            assert task.notices == []


class TestColumnsOfOtherNames:
    HEADER = ("Nr.", "Question", "A", "B", "Correct Answer", "Topic")

    def test_ignored_columns_are_named_with_a_guess(self) -> None:
        assert ignored(self.HEADER) == (
            'ignored columns: "Nr.", "Correct Answer", "Topic"; if "Nr." holds the id and '
            "\"Correct Answer\" holds the answer: --columns 'id=Nr.,answer=Correct Answer'"
        )
        assert ignored(("id", "question", "A", "B", "answer", "")) == ""
        assert ignored(("question", "A", "B", "answer", "Topic")) == 'ignored columns: "Topic"'

    def test_the_guess_is_the_closest_name_and_only_for_what_is_missing(self) -> None:
        found = advice(("question", "A", "B", "Answer explanation (long)", "correctAnswer"))
        assert found.endswith(": --columns answer=correctAnswer")
        assert advice(("question", "A", "B", "answer", "Correct Answer", "id", "Nr.")) == ""
        assert "choices=options" in advice(("question", "options", "answer"))

    @pytest.mark.parametrize(
        ("field", "words"),
        [
            ("id", "ID nr No. Num number QID #"),
            ("question", "Question Prompt stem query text"),
            ("choices", "choices options alternatives"),
            ("answer", "answer correct right solution key label gold target"),
        ],
    )
    def test_usual_words_in_the_name_of_a_column_are_guessed(self, field: str, words: str) -> None:
        others = ["id", "question", "choices", "answer"]
        others.remove(field)
        for word in words.split():
            column = f"My {word}"
            assert f"{field}={column}" in advice((*others, column))

    def test_a_header_of_several_lines_leaves_one_line(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        path.write_text('"the\nquestion",A,B,"right\nanswer"\nUp?,yes,no,A\n')
        assert "the question, A, B, right answer" in refusal(str(path), columns={"answer": "x"})
        form = "--columns question=COLUMN,A=COLUMN,B=COLUMN,answer=COLUMN"  # and no guess to paste
        assert refusal(str(path)).endswith(f"; say which is which: {form}")

    def test_what_a_user_pastes_runs_nothing(self) -> None:
        assert advice(("answer $(reboot)", "question")).endswith("'answer=answer $(reboot)'")

    @pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
    def test_named_columns_are_read_and_others_of_these_names_are_not(
        self, tmp_path: Path, kind: str
    ) -> None:
        row = {"Nr.": 7, "Frage": CAPITAL.text, "one": CITIES[0], "two": CITIES[1]}
        row |= {"three": CITIES[2], "Correct Answer": "Ottawa", "answer": "Rome", "ID": "x"}
        columns = {"id": "Nr.", "question": "Frage", "answer": "Correct Answer"}
        columns |= {"A": "one", "B": "two", "C": "three"}
        path = write(tmp_path / f"mine.{kind}", [row])
        task = load(path, columns=columns)
        assert (task.questions, task.notices) == ([CAPITAL], [])
        assert read_question(path, columns) == CAPITAL

    def test_a_named_column_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        path.write_text("question,A,B,right\nUp?,yes,no,A\n")
        assert refusal(str(path), columns={"answer": "Right"}) == (
            f'{path}: --columns: no column is called "Right"; its columns are question, A, B, right'
        )

    def test_a_missing_question_column_is_guessed(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.csv"
        path.write_text("prompt,A,B,answer\nUp?,yes,no,A\n")
        message = refusal(str(path))
        assert message.endswith('; if "prompt" holds the question: --columns question=prompt')


class TestStandardInput:
    @pytest.mark.parametrize(
        "content",
        [
            b'{"id": 7, "question": "Capital of Canada?", "choices": %s, "answer": "B"}',
            b'[\n{"id": 7, "question": "Capital of Canada?", "choices": %s, "answer": 1}]',
            b'{"id": 7,\n"question": "Capital of Canada?", "choices": %s, "answer": 1}\n',
        ],
    )
    def test_the_kind_of_standard_input_follows_from_its_content(
        self, monkeypatch, content: bytes
    ) -> None:
        give_stdin(monkeypatch, content % json.dumps(CITIES).encode())
        assert read_question(Path("-")) == CAPITAL
        task = load(Path("-"))
        assert (task.name, task.questions, task.source["file"]) == ("stdin", [CAPITAL], "-")

    def test_standard_input_may_be_csv_json_lines_or_parquet(
        self, monkeypatch, tmp_path: Path
    ) -> None:
        give_stdin(monkeypatch, b"id;question;A;B;C;answer\n" + ROW.format(";", "B").encode())
        assert read_question(Path("-")) == CAPITAL
        rows = [{"question": f"{i}?", "choices": CITIES, "answer": i} for i in range(3)]
        for kind in ("jsonl", "parquet"):
            give_stdin(monkeypatch, write(tmp_path / f"mine.{kind}", rows).read_bytes())
            assert [question.answer for question in load(Path("-")).questions] == [0, 1, 2]

    def test_bad_standard_input_is_refused_in_one_line(self, monkeypatch) -> None:
        for content, message in [
            (b"", "standard input: is empty"),
            (b"[{}, {}]", "standard input: holds 2 rows; give one question, or ask all of them"),
            (b"{", "standard input: not readable as JSON"),
        ]:
            give_stdin(monkeypatch, content)
            with pytest.raises(InputError) as caught:
                read_question(Path("-"))
            assert str(caught.value).startswith(message)

    def test_ask_reads_standard_input(self, capsys, monkeypatch, llama_folder: Path) -> None:
        give_stdin(monkeypatch, b"question,A,B,remark\nUp?,yes,no,easy\n")
        status, out, _ = run(
            capsys, "ask", "--file", "-", "--json", "--trials", 2, "--model", llama_folder
        )
        assert status == 0
        assert '"Up?"' in out
