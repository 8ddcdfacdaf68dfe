"""What a question is, and what its id is. test_checks.py holds what it must not be."""

from minise import Question


def test_the_id_computed_from_the_content_never_changes() -> None:
    """It seeds the groups: another id would change all results of a question without one."""
    assert Question("Which is a bird?", ["wren", "trout"]).id == "6cf70344d59ac2a8"


def test_the_id_depends_on_the_content_unless_it_is_set() -> None:
    assert Question("Q", ["a", "b"]).id == Question("Q", ("a", "b")).id
    assert Question("Q", ["a", "b"]).id != Question("Q", ["b", "a"]).id
    named = Question("Q", ["a", "b"], id="7")
    assert named.id == "7"
    assert named.content_hash == Question("Q", ["a", "b"]).id
    assert (named.cluster, named.answer) == ("", None)


def test_two_to_a_thousand_choices_are_allowed() -> None:
    for number in (2, 1000):
        assert len(Question("Q", [f"choice {i}" for i in range(number)]).choices) == number


def test_changing_the_callers_list_does_not_change_the_question() -> None:
    choices = ["a", "b"]
    question = Question("Q", choices)
    choices.append("c")
    assert question.choices == ("a", "b")
