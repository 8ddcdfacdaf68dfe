"""The study of where a model loses the right choice."""

from __future__ import annotations

import numpy as np
import pytest

from minise import Question, load
from minise.method import Standard, label_logits

pytest.importorskip("sklearn")

from tools.studies.binding import States, ends_of_choices, probe, read

QUESTION = Question("What is the capital of Canada?", ["New Delhi", "Ottawa", "Athens"], answer=1)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2"])
def test_a_choice_is_read_at_the_last_token_of_its_own_line(name: str) -> None:
    lm = load(f"weights/{name}")
    (prompt,) = Standard().plan(lm, QUESTION).prompts
    ids = lm.tokenizer.encode([prompt.text])[0]
    for choice, row in zip(QUESTION.choices, ends_of_choices(lm, QUESTION), strict=True):
        assert lm.tokenizer.decode(ids[: row + 1]).endswith(f"{choice}\n")


def test_the_states_are_those_of_the_run_that_answers() -> None:
    lm = load("weights/tiny-llama")
    states = read(lm, QUESTION)
    L, D = lm.config.num_hidden_layers, lm.config.hidden_size
    assert (states.choices.shape, states.end.shape) == ((L, 3, D), (L, D))
    (logits,) = label_logits(lm, Standard().plan(lm, QUESTION))
    assert states.said == int(logits.argmax())
    assert not np.allclose(states.choices[:, 2], states.end)


def test_a_probe_finds_what_is_marked_and_nothing_else() -> None:
    """The first of two layers marks the right choice and the right label; the second has noise."""
    draw, states = np.random.default_rng(0), []
    for number in range(200):
        answer = number % 4
        choices, end = draw.normal(size=(2, 4, 6)), draw.normal(size=(2, 6))
        choices[0, answer, 2] += 20
        end[0, answer] += 20
        states.append(States(choices, end, (answer + (number % 10 == 0)) % 4, answer, f"{number}"))
    (choice, label) = probe(states, ["a model", "4"])
    assert choice[:4] == ["a model", "4", "choice", "100.0"]
    assert label[2:4] == ["label", "100.0"]
    assert choice[-1] == label[-1] == "90.0"
    assert all(10 < float(row[4]) < 40 for row in (choice, label))
