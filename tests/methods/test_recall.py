"""Recall: the text that the model writes is compared with the choices."""

from __future__ import annotations

import pytest
import torch

from minise import InputError, LanguageModel, Question, load
from minise import ask as ask_method
from minise.errors import Unsuited
from minise.grouping import Groups
from minise.methods.reasoning import TextPlan
from minise.methods.recall import Recall, recalled
from minise.rounds import run_plan
from minise.writing.generation import generate

CAPITAL = Question("What is the capital of Canada?", ["New Delhi", "Ottawa", "Athens"], answer=1)


def test_the_model_writes_after_the_question_alone_and_the_choice_is_named() -> None:
    lm, method = load("weights/tiny-llama"), Recall()
    plan, logits = run_plan(lm, method, method.plan(lm, CAPITAL), 0)
    assert isinstance(plan, TextPlan)
    (written,) = generate(lm, [f"{CAPITAL.text}\nAnswer:"], 32, stop_texts=["\n"])
    assert plan.text == written.text
    assert plan.text.strip() == "Ottawa"
    assert all(choice not in plan.prompts[0].text for choice in ("New Delhi", "Athens"))
    answer = method.answer(plan, logits)
    assert (answer.prediction, answer.probabilities.tolist()) == (1, [0, 1, 0])
    assert answer.probabilities.dtype == torch.float64
    notes = method.notes(lm, plan, answer, 0)
    assert notes == {"written": " Ottawa", "new_tokens": len(written.tokens), "recalled": 1}
    start = len(lm.tokenizer.encode([f"{CAPITAL.text}\nAnswer:"])[0])
    assert plan.tokens("tree") == start + len(written.tokens)


def test_what_the_model_writes_is_shown_while_it_writes() -> None:
    lm, pieces = load("weights/tiny-llama"), list[tuple[int, str]]()
    plan = Recall().plan(lm, CAPITAL)
    Recall().write(lm, plan, on_text=lambda number, piece: pieces.append((number, piece)))
    assert {number for number, _ in pieces} == {0}
    assert "".join(piece for _, piece in pieces) == " Ottawa"


def test_the_text_ends_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = load("weights/tiny-llama")
    start = len(lm.tokenizer.encode([""])[0])
    ids = iter(lm.tokenizer.encode([" Ottawa\nQuestion: and then?"])[0][start:])
    monkeypatch.setattr("minise.writing.generation.choose", lambda *_: next(ids))
    plan, _ = run_plan(lm, Recall(), Recall().plan(lm, CAPITAL), 0)
    assert isinstance(plan, TextPlan)
    assert plan.text.strip() == "Ottawa"


def test_a_text_without_an_end_has_32_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = load("weights/tiny-llama")
    same = lm.tokenizer.encode(["x"])[0][-1]
    monkeypatch.setattr("minise.writing.generation.choose", lambda *_: same)
    plan, _ = run_plan(lm, Recall(), Recall().plan(lm, CAPITAL), 0)
    assert isinstance(plan, TextPlan)
    assert plan.new_tokens == 32


def test_a_text_that_is_no_choice_says_nothing_about_them() -> None:
    plan = TextPlan(CAPITAL, Groups((((0, 1, 2),),)), [], [], text=" Kingston")
    answer = Recall().answer(plan, [])
    assert answer.probabilities.tolist() == pytest.approx([1 / 3] * 3)
    assert answer.prediction == 0


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        *((" Ottawa", 1), ("ottawa.", 1), ("  NEW DELHI ", 0), ("Ottawa is", None), ("", None)),
        *(("New", None), ("Delhi", None), ("New  Delhi", None), ("OttawaX", None)),
    ],
)
def test_a_choice_is_recalled_by_its_whole_text(text: str, choice: int | None) -> None:
    assert recalled(text, CAPITAL.choices) == choice


def test_the_text_ends_at_the_budget_and_where_positions_end() -> None:
    lm = load("weights/tiny-llama")
    plan, _ = run_plan(lm, Recall(1), Recall(1).plan(lm, CAPITAL), 0)
    assert isinstance(plan, TextPlan)
    assert plan.new_tokens == 1
    limit = lm.config.max_position_embeddings
    start = len(lm.tokenizer.encode(["Q\nAnswer:"])[0])
    text = "Q" + "!" * (limit - start)
    last = Question(text.removesuffix("!"), ["a", "b"])  # one position is left
    plan, _ = run_plan(lm, Recall(), Recall().plan(lm, last), 0)
    assert isinstance(plan, TextPlan)
    assert plan.new_tokens == 1
    full = Question(text, ["a", "b"])
    assert len(Recall().plan(lm, full).prompts[0].ids) == limit
    with pytest.raises(InputError, match=f"the prompt has {limit} tokens, which leaves none"):
        ask_method(lm, Recall(), full)


def test_a_model_without_a_stop_token_is_unsuited(lm: LanguageModel) -> None:
    with pytest.raises(Unsuited, match="names no stop token"):
        Recall().plan(lm, CAPITAL)
