"""What a question must be, and what its id is."""

from __future__ import annotations

import pytest

from minise import InputError, Question


class TestQuestion:
    @pytest.mark.parametrize(
        ("text", "choices", "complaint"),
        [
            ("Q", [], "has no choices; give at least two"),
            ("Q", ["a"], "has 1 choice; give at least two"),
            ("", ["a", "b"], "^the question is empty"),
            (" \n", ["a", "b"], "^the question is empty"),
            ("Q", ["a", " "], "^the choice 2 is empty"),
            ("Q", ["a", 3], "^the choice 2 is 3; it must be text"),
            ("Q", "ab", "give a list"),
            (None, ["a", "b"], "^the question is null; it must be text"),
        ],
    )
    def test_a_question_without_text_or_choices_is_refused(self, text, choices, complaint) -> None:
        with pytest.raises(InputError, match=complaint):
            Question(text, choices)

    def test_the_id_computed_from_the_content_never_changes(self) -> None:
        """It seeds the groups: another id would change all results of a question without one."""
        assert Question("Which is a bird?", ["wren", "trout"]).id == "6cf70344d59ac2a8"

    def test_two_to_a_thousand_choices_are_allowed(self) -> None:
        many = [f"choice {i}" for i in range(1001)]
        for number in (2, 1000):
            assert len(Question("Q", many[:number]).choices) == number
        with pytest.raises(InputError, match="has 1001 choices; give at least two, at most 1,000"):
            Question("Q", many)

    @pytest.mark.parametrize("answer", [-1, 2, "a", 0.5, True])
    def test_an_answer_that_is_no_choice_is_refused(self, answer) -> None:
        with pytest.raises(InputError, match="answer"):
            Question("Q", ["a", "b"], answer=answer)

    def test_the_first_and_the_last_choice_can_be_the_answer(self) -> None:
        assert [Question("Q", ["a", "b"], answer=i).answer for i in (0, 1)] == [0, 1]

    def test_an_id_that_is_no_text_is_refused(self) -> None:
        with pytest.raises(InputError, match="id is 7; it must be text"):
            Question("Q", ["a", "b"], id=7)

    def test_the_id_depends_on_the_content_unless_it_is_set(self) -> None:
        assert Question("Q", ["a", "b"]).id == Question("Q", ("a", "b")).id
        assert Question("Q", ["a", "b"]).cluster == ""
        assert Question("Q", ["a", "b"]).id != Question("Q", ["b", "a"]).id
        assert Question("Q", ["a", "b"], id="7").id == "7"

    def test_changing_the_callers_list_does_not_change_the_question(self) -> None:
        choices = ["a", "b"]
        question = Question("Q", choices)
        choices.append("c")
        assert question.choices == ("a", "b")
