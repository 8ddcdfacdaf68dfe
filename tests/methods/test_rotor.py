"""RoToR: positions by hand, the answer by a second implementation, equal bits for all orders."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from minise import InputError, LanguageModel, Layout, Question, load
from minise import ask as ask_method
from minise.methods.pine import Pine
from minise.methods.rotor import Reordered, RoToR, shifts
from minise.names import ENGINES
from tests.support.reordered import key_positions, text_log_probability

THREE = Question("Fly?", ["eel", "a cat", "ant"], answer=2)
LAID_OUT = ["ant", "a cat", "eel"]  # by token ids: that of a space is above those of letters
METHODS = pytest.mark.parametrize("method", [RoToR(), Pine()])
SHIPPED = ("tiny-llama", "tiny-mistral", "tiny-qwen2")


def circular(t: int, owner: list[int], q: Tensor, k: Tensor) -> list[int]:
    C = max(owner)
    first = owner[t] if owner[t] < C else 0
    return [*range(first, C), *range(first)]


def layout_of(lm: LanguageModel, question: Question) -> Reordered:
    layout = RoToR().plan(lm, question).layout
    assert isinstance(layout, Reordered)
    return layout


def test_the_answer_equals_a_second_implementation(lm: LanguageModel) -> None:
    log_p = [text_log_probability(lm, THREE, one, circular, LAID_OUT) for one in THREE.choices]
    answer = ask_method(lm, RoToR(), THREE)
    expected = torch.tensor(log_p, dtype=torch.float64).softmax(0)
    torch.testing.assert_close(answer.probabilities, expected, rtol=0, atol=1e-6)
    assert answer.prediction == int(expected.argmax())


def test_the_order_of_three_choices_by_hand(lm: LanguageModel) -> None:
    """Lines of 2, 3 and 4 tokens. For a reader in the second one, the first is farthest, the third
    before it: it begins at |Q|, they end where the cue begins."""
    layout = layout_of(lm, Question("Q", ["a", "bb", "ccc"]))
    assert layout.lengths.tolist() == [2, 3, 4]
    nothing = torch.empty(0)
    order = layout.nearest(nothing, nothing)[0]
    pushed = shifts(order, layout.lengths)
    Q = layout.owner.tolist().count(-1)
    by_reader = {0: [0, 2, 5], 1: [7, 0, 3], 2: [4, 6, 0], 3: [0, 2, 5]}
    for owner, expected in by_reader.items():
        assert pushed[layout.owner.tolist().index(owner)].tolist() == expected
    begins = [int(layout.positions[layout.owner.tolist().index(i)]) for i in range(4)]
    assert begins == [Q + 7, Q + 6, Q + 5, Q + 9]
    of_second = key_positions(layout.owner.tolist(), [2, 3, 4], [1, 2, 0])
    assert of_second[Q : Q + 9] == [Q, Q + 1, Q + 6, Q + 7, Q + 8, Q + 2, Q + 3, Q + 4, Q + 5]


def test_choices_see_each_other_whole_and_themselves_up_to_each_token(lm: LanguageModel) -> None:
    layout = layout_of(lm, Question("Q", ["b", "aa"]))
    owner, mask = layout.owner, layout.mask
    for row in range(len(owner)):
        for column in range(len(owner)):
            between = 0 <= owner[row] < 2 and 0 <= owner[column] < 2 and owner[row] != owner[column]
            if owner[row] < 2:
                assert mask[row, column] == (between or column <= row)
            elif owner[column] < 2:
                assert mask[row, column]


@METHODS
def test_a_prompt_is_as_long_as_its_positions_go(lm: LanguageModel, method: RoToR) -> None:
    plan = method.plan(lm, THREE)
    assert plan.layout is not None
    longest = max(len(plan.prefix) + len(prompt.ids) for prompt in plan.prompts)
    assert longest == int(plan.layout.positions.max()) + 1
    with pytest.raises(InputError, match="positions for 1024"):
        ask_method(lm, method, Question("Q", [letter * 300 for letter in "abcd"]))


@METHODS
@pytest.mark.parametrize("name", SHIPPED)
def test_all_orders_of_the_choices_give_the_same_bits(name: str, method: RoToR) -> None:
    model = load(f"weights/{name}")
    question = Question("What is the capital of Canada?", ["New Delhi", "Ottawa", "Athens"])
    answer = ask_method(model, method, question)
    for order in permutations(range(3)):
        turned = Question(question.text, [question.choices[i] for i in order])
        turned_answer = ask_method(model, method, turned)
        assert torch.equal(turned_answer.probabilities, answer.probabilities[list(order)])
        assert order[turned_answer.prediction] == answer.prediction


@METHODS
def test_every_engine_gives_the_same_answer(lm: LanguageModel, method: RoToR) -> None:
    p = [ask_method(lm, method, THREE, engine=engine).probabilities for engine in ENGINES]
    assert all(torch.equal(p[0], one) for one in p)


@METHODS
def test_equal_choices_get_equal_shares(lm: LanguageModel, method: RoToR) -> None:
    answer = ask_method(lm, method, Question("Q", ["owl", "cat", "owl"]))
    assert answer.probabilities[0] == answer.probabilities[2]


def test_replacing_a_part_gives_a_layout_that_its_mask_describes(lm: LanguageModel) -> None:
    layout = layout_of(lm, THREE)
    assert type(layout.replace(mask=layout.mask)) is Layout
