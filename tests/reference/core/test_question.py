"""What a question is, what its id is, and what is refused."""

from typing import Any

import pytest

from minise import InputError, Question


def test_the_id_computed_from_the_content_never_changes() -> None:
    """It seeds the groups: another id would change all results of a question without one."""
    assert Question("Which is a bird?", ["wren", "trout"]).id == "6cf70344d59ac2a8"


def test_the_id_depends_on_the_content_unless_it_is_set() -> None:
    assert Question("Q", ["a", "b"]).id == Question("Q", ("a", "b")).id
    assert Question("Q", ["a", "b"]).id != Question("Q", ["b", "a"]).id
    named = Question("Q", ["a", "b"], id="7")
    assert named.id == "7"
    assert named.content_hash == Question("Q", ["a", "b"]).id
    assert named.answer is None


def test_two_to_a_thousand_choices_are_allowed() -> None:
    for number in (2, 1000):
        assert len(Question("Q", [f"choice {i}" for i in range(number)]).choices) == number


def test_changing_the_callers_list_does_not_change_the_question() -> None:
    choices = ["a", "b"]
    question = Question("Q", choices)
    choices.append("c")
    assert question.choices == ("a", "b")


CHOICES = ["a", "b"]


@pytest.mark.parametrize(
    ("text", "choices", "settings", "named"),
    [
        ("Q", [], {}, "0 choices"),
        ("Q", ["a"], {}, "1 choice;"),
        ("Q", ["a"] * 1001, {}, "1001 choices"),
        (" \n", CHOICES, {}, "question"),
        (None, CHOICES, {}, "null"),
        ("Q", ["a", " "], {}, "choice 2"),
        ("Q", ["a", 3], {}, "choice 2 is 3"),
        ("Q", ["a", "b", " a"], {}, 'choices 1 and 3 are both "a"'),
        ("Q", "ab", {}, "columns A, B"),
        ("Q", None, {}, "columns A, B"),
        ("Q", ["a", "\ud800"], {}, "choice 2 is not UTF-8"),
        ("Q", CHOICES, {"id": 7}, "id is 7"),
        ("Q", CHOICES, {"answer": -1}, "-1"),
        ("Q", CHOICES, {"answer": 2}, "index from 0 to 1"),
        ("Q", CHOICES, {"answer": True}, "true"),
        ("Q", CHOICES, {"answer": "B"}, '"B"'),
    ],
    ids=str,
)
def test_what_is_no_question_is_refused_in_one_line_that_names_it(
    text: Any, choices: Any, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError) as caught:
        Question(text, choices, **settings)
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 400
