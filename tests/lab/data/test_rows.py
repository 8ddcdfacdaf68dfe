"""The columns of a user's own file, and the forms of its answers."""

import json
from pathlib import Path

import pytest

from minise import Question
from minise.lab.data import rows
from tests.lab.support.rows import load, refusal, write

CITIES = ["Kingston", "Ottawa", "Toronto"]
CAPITAL = Question("Capital of Canada?", CITIES, id="7", answer=1)
ROW = "7,Capital of Canada?,Kingston,Ottawa,Toronto,{}\n"


@pytest.mark.parametrize(
    "choices",
    [
        ("A", "B", "C"),
        ("choice_1", "choice_2", "choice_3"),
        ("option1", "option2", "option3"),
        ("option_a", "option_b", "option_c"),
        ("Option A", "Option B", "Option C"),
    ],
)
@pytest.mark.parametrize("names", [("id", "question", "answer"), ("ID", "Question", "Answer ")])
def test_each_choice_may_have_its_own_column(
    tmp_path: Path, choices: tuple[str, ...], names: tuple[str, ...]
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{','.join([*names[:2], *choices, names[2]])}\n{ROW.format('B')}")
    assert load(path).questions == [CAPITAL]


def test_a_column_of_one_letter_is_no_choice_and_the_last_choices_may_be_blank(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"n,id,question,choice_1,choice_2,choice_3,answer\n9,{ROW.format('B')}")
    assert load(path).questions == [CAPITAL]
    path.write_text("question,A,B,C,D,answer\nUp?,yes,no,, ,B\n")
    assert load(path).questions == [Question("Up?", ["yes", "no"], answer=1)]
    rows = [{"id": 7, "question": CAPITAL.text, "A": "Kingston", "B": "Ottawa", "C": "Toronto"}]
    rows.append({"id": 8, "question": "Up?", "A": "yes", "B": "no", "C": None})
    for kind in ("jsonl", "parquet"):
        task = load(write(tmp_path / f"mine.{kind}", rows))
        assert [len(question.choices) for question in task.questions] == [3, 2]


@pytest.mark.parametrize("last", [0, False, 0.0])
def test_a_last_choice_that_is_no_text_is_named_and_not_dropped(
    tmp_path: Path, last: object
) -> None:
    row = {"question": "How many?", "A": "two", "B": "one", "C": last, "answer": "A"}
    path = write(tmp_path / "mine.jsonl", [row])
    assert f"choice 3 is {json.dumps(last)}" in refusal(str(path))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("answer", ["answer", "Answer_Letter"])
def test_named_columns_are_read_and_others_of_these_names_are_not(
    tmp_path: Path, kind: str, answer: str
) -> None:
    row = {"Nr.": 7, "Frage, kurz": CAPITAL.text, "one": CITIES[0], "two": CITIES[1]}
    row |= {"three": CITIES[2], "Correct Answer": "(b)", "answer": "Rome", "ID": "x"}
    columns = f"id=Nr.,question=Frage, kurz, {answer} = Correct Answer,A=one,B=two,C=three"
    assert load(write(tmp_path / f"mine.{kind}", [row]), columns=columns).questions == [CAPITAL]


def test_without_a_column_of_ids_it_is_said_how_to_name_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("nr,question,A,B\n1,Up?,no,yes\n2,Down?,no,yes\n")
    rows._tell.cache_clear()
    assert [question.id for question in load(path, columns="id=nr").questions] == ["1", "2"]
    assert caplog.messages == []
    load(path)
    assert caplog.messages == [
        "minise: no column id: ids are hashes; name yours by --columns id=HEADER"
    ]


def test_headers_in_another_language_are_named_by_columns(tmp_path: Path) -> None:
    """The refusal lists them and says how."""
    path = tmp_path / "mine.csv"
    row = ROW.format("B").replace(",", ";")
    path.write_text(f"id;Frage;Antwort A;Antwort B;Antwort C;Lösung\n{row}", "utf-8")
    message = refusal(str(path))
    assert "--columns question=HEADER,A=HEADER,B=HEADER,answer=HEADER" in message
    assert '"Antwort B", "Antwort C", "L' in message
    columns = "question=Frage,A=Antwort A,B=Antwort B,C=Antwort C,answer=Lösung"
    assert load(path, columns=columns).questions == [CAPITAL]


@pytest.mark.parametrize(
    "columns", ["answer=Right", "answers=right", "answer", "answer_roman=right"]
)
def test_a_wrong_column_option_is_refused_with_roles_and_headers(
    tmp_path: Path, columns: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text('question,A,B,"right\none"\nUp?,yes,no,A\n')
    message = refusal(str(path), columns=columns)
    for part in (str(path), columns, "answer_index1", '"right\\none"'):
        assert part in message


FORMS = {
    "letter": ["B", "b", "(B)", "B.", "B)", "[B]", " B "],
    "text": ["Ottawa", " Ottawa "],
    "index0": ["1", 1],
    "index1": ["2", 2],
}


@pytest.mark.parametrize(("form", "answer"), [(f, a) for f, each in FORMS.items() for a in each])
def test_an_answer_has_one_of_four_forms(tmp_path: Path, form: str, answer: str | int) -> None:
    row = {"id": "7", "question": CAPITAL.text, "choices": CITIES, "answer": answer}
    path = write(tmp_path / "mine.json", [row])
    assert load(path, columns=f"answer_{form}=answer").questions == [CAPITAL]
    if form != "index1":
        assert load(path).questions == [CAPITAL]
    for other in FORMS.keys() - {form, "index0", "index1"}:
        assert "answer" in refusal(str(path), columns=f"answer_{other}=answer")


@pytest.mark.parametrize(
    ("answers", "last"),
    [
        (["oak", "B"], 0),  # texts: B is the first choice
        (["C", "B"], 1),  # letters
        (["0", "1"], 1),  # indices: 1 is a text, too
        (["5", "1"], 2),  # texts: 5 is no index
    ],
)
def test_an_answer_of_two_meanings_has_the_form_that_all_have(
    tmp_path: Path, answers: list[str], last: int
) -> None:
    odd = ["B", "A", "c"] if answers[1] == "B" else ["3", "4", "1"]
    choices = [["wren", "5", "oak"], odd]
    rows = [{"question": f"{i}?", "choices": choices[i], "answer": answers[i]} for i in range(2)]
    assert load(write(tmp_path / "mine.csv", rows)).questions[1].answer == last


def test_a_number_in_json_is_an_index_whatever_the_texts_are(tmp_path: Path) -> None:
    row = {"question": "1 + 2?", "choices": ["3", "4", "1"], "answer": 1}
    zero = {"question": "1 + 1?", "choices": ["2", "3"], "answer": 0}
    assert load(write(tmp_path / "mine.json", [row, zero])).questions[0].answer == 1


@pytest.mark.parametrize(
    ("choices", "answers", "say"),
    [
        (["B", "A"], ["A", "B"], "answer_text=answer or answer_letter=answer"),
        (["2", "1", "0"], ["0", "1"], "answer_text=answer or answer_index0=answer"),
        (["x", "y", "z"], ["1", "2", "3"], "answer_index1=answer"),
        (["x", "y", "z"], [1, 2, 3], "answer_index1=answer"),
    ],
)
def test_answers_of_no_clear_form_are_refused_with_the_way_out(
    tmp_path: Path, choices: list[str], answers: list[str | int], say: str
) -> None:
    rows = [{"question": f"{a}?", "choices": choices, "answer": a} for a in answers]
    path = write(tmp_path / "mine.json", rows)
    assert refusal(str(path)).endswith(f"--columns {say}")
    for columns in say.split(" or "):
        assert None not in [question.answer for question in load(path, columns=columns).questions]


def test_some_or_all_answers_may_be_absent(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "choices": ["x", "y"]} for i in range(3)]
    path = write(tmp_path / "mine.csv", rows)
    questions = load(path).questions
    assert [question.answer for question in questions] == [None] * 3
    assert load(write(path, [{**row, "answer": ""} for row in rows])).questions == questions
    write(path, [{**rows[0], "answer": "B"}, *({**row, "answer": ""} for row in rows[1:])])
    assert [question.answer for question in load(path).questions] == [1, None, None]
    write(
        path,
        [{**row, "answer": answer} for row, answer in zip(rows, ("", "1.0", "0.0"), strict=True)],
    )
    columns = "answer_index0=answer"  # as pandas writes whole numbers beside empty cells
    assert [one.answer for one in load(path, columns=columns).questions] == [None, 1, 0]
    write(
        path, [{**row, "answer": answer} for row, answer in zip(rows, ("B", "C", ""), strict=True)]
    )
    assert 'line 3: answer "C" is none of its choices' in refusal(str(path))
    jsonl = tmp_path / "mine.jsonl"
    jsonl.write_text(
        "".join(
            json.dumps({**row, "answer": answer}) + "\n"
            for row, answer in zip(rows, (1.0, float("nan"), None), strict=True)
        )
    )
    assert [one.answer for one in load(jsonl, columns=columns).questions] == [1, None, None]
    assert "--cut-to" in refusal(str(write(path, rows)), cut_to=[2])
