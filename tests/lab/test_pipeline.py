"""Questions -> answers: the same ones whatever shares a pass, and after a cut at any place."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from minise import InputError, LocalModel, Prompts, Question, SelfEnsemble, Standard
from minise.engines import ENGINES
from minise.lab.data.asked import Asked
from minise.lab.evaluation.pipeline import (
    ROUND,
    TOGETHER,
    Answered,
    answers,
    join,
    most_together,
)
from minise.lab.methods.writes_first import Start, WritesFirst, Written
from minise.method import GroupPlan
from minise.prompts import LabelLogits, Limits
from minise.tokenizer import Tokenizer

QUESTIONS = [
    Asked(
        Question(f"Which is number {i}?", [f"one {i}", "two", "three", "four"], id=f"q{i}"), i % 3
    )
    for i in range(2 * ROUND + 5)
]
METHOD = SelfEnsemble(2, 3)


@dataclass
class Watched:
    """A model that remembers the prompts of each of its passes."""

    lm: LocalModel
    passes: list[Prompts] = field(default_factory=list)
    refuses: int = 10**9  # a pass with more prompts than this fails

    @property
    def name(self) -> str:
        return self.lm.name

    @property
    def family(self) -> str:
        return self.lm.family

    @property
    def engine(self) -> str:
        return self.lm.engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self.lm.tokenizer

    @property
    def limits(self) -> Limits:
        return self.lm.limits

    def logits(self, prompts: Prompts) -> list[LabelLogits]:
        self.passes.append(prompts)
        if len(prompts.branches) > self.refuses:
            raise InputError("too many prompts")
        return self.lm.logits(prompts)


def same(a: Answered, b: Answered) -> bool:
    return a.asked == b.asked and torch.equal(a.answer.normalized, b.answer.normalized)


def test_a_question_has_nearly_the_numbers_of_a_pass_of_its_own(lm: LocalModel) -> None:
    together = list(answers(lm, METHOD, QUESTIONS))
    assert [one.asked for one in together] == QUESTIONS
    for one in together:
        alone = METHOD.prompts(lm, one.asked.question, one.asked.seed)
        expected = METHOD.answer(alone[0], lm.logits(alone[1]))
        assert (one.answer.normalized - expected.normalized).abs().max() <= 1e-12
        assert one.prompts == alone[1]


@pytest.fixture
def share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions share passes also where a model is watched, which is then of another class."""
    monkeypatch.setattr("minise.lab.evaluation.pipeline.most_together", lambda lm: TOGETHER)


@pytest.mark.usefixtures("share")
def test_a_pass_holds_several_questions_and_none_crosses_a_block(qwen: LocalModel) -> None:
    watched = Watched(qwen)
    every = list(answers(watched, METHOD, QUESTIONS))
    assert 1 < len(watched.passes) < len(QUESTIONS)
    sizes = [len(one.branches) // 6 for one in watched.passes]
    assert sum(sizes) == len(QUESTIONS)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    assert {ROUND, 2 * ROUND} <= set(ends)
    assert join([one.prompts for one in every[: sizes[0]]]) == watched.passes[0]


@pytest.mark.usefixtures("share")
def test_after_a_cut_anywhere_the_passes_are_the_same(qwen: LocalModel) -> None:
    """So are the bits, on one machine."""
    watched = Watched(qwen)
    whole = list(answers(watched, METHOD, QUESTIONS))
    every = list(watched.passes)
    for done in range(len(QUESTIONS) + 1):
        watched.passes.clear()
        rest = list(answers(watched, METHOD, QUESTIONS, done))
        assert len(rest) == len(QUESTIONS) - done
        assert all(same(a, b) for a, b in zip(rest, whole[done:], strict=True))
        assert watched.passes == every[len(every) - len(watched.passes) :]


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "tree"])
def test_other_engines_take_a_pass_for_each_question(qwen: LocalModel, engine: str) -> None:
    lm = qwen.with_engine(engine)
    assert most_together(lm) == 0
    assert most_together(qwen) == 512


@pytest.mark.usefixtures("share")
def test_an_error_comes_after_the_answers_before_it(qwen: LocalModel) -> None:
    """Where a method refuses a question, and where the model does."""
    long = Asked(Question("Q" * 3000, ["a", "b"]))
    asked = [*QUESTIONS[:3], long, *QUESTIONS[3:]]
    found = []
    with pytest.raises(InputError, match="1024"):
        found.extend(answers(qwen, METHOD, asked))
    assert [one.asked for one in found] == QUESTIONS[:3]

    wide = Asked(Question("Which?", [f"c{i}" for i in range(9)]))
    asked = [*QUESTIONS[:2], wide, *QUESTIONS[2:]]
    found.clear()
    with pytest.raises(InputError, match="too many"):
        # It fails as a whole, and then one by one.
        found.extend(answers(Watched(qwen, refuses=6), METHOD, asked))
    assert [one.asked for one in found] == QUESTIONS[:2]


def test_tokens_are_those_that_the_engine_runs(qwen: LocalModel) -> None:
    for engine in ("separate", "packed", "tree"):
        [one] = answers(qwen.with_engine(engine), Standard(), QUESTIONS[:1])
        assert one.tokens == len(one.prompts.prefix) + len(one.prompts.branches[0])
    [tree] = answers(qwen, METHOD, QUESTIONS[:1])
    [packed] = answers(qwen.with_engine("packed"), METHOD, QUESTIONS[:1])
    assert tree.tokens < packed.tokens
    assert tree.seconds > 0


@dataclass(frozen=True)
class Pretends(WritesFirst):
    """Writes the number of the question, in a block of texts."""

    name = "pretends"
    blocks: list[int] = field(default_factory=list)

    def start(self, lm: Any, asked: Asked) -> Start:
        if asked.question.text == "refused?":
            raise InputError("refused")
        return Start(asked.question.id, 5)

    def write(self, lm: Any, starts: Sequence[Start]) -> list[Written]:
        self.blocks.append(len(starts))
        return [Written(f"thoughts on {start.text}", 3, True) for start in starts]

    def prompts_after(self, lm: Any, asked: Asked, written: Written) -> tuple[GroupPlan, Prompts]:
        text = f"{asked.question.text} {written.text}"
        return Standard().prompts(lm, Question(text, asked.question.choices))


@dataclass
class Kept:
    blocks: dict[int, list[Written]] = field(default_factory=dict)

    def read(self, block: int, count: int) -> list[Written] | None:
        return self.blocks.get(block)

    def keep(self, block: int, texts: Sequence[Written]) -> None:
        self.blocks[block] = list(texts)


def test_texts_of_a_block_are_written_side_by_side_and_once(qwen: LocalModel) -> None:
    method, kept = Pretends(), Kept()
    whole = list(answers(qwen, method, QUESTIONS, texts=kept))
    assert method.blocks == [ROUND, ROUND, 5]
    for done in (
        1,
        ROUND - 1,
        ROUND,
        ROUND + 3,
        len(QUESTIONS) - 1,
    ):
        rest = list(answers(qwen, method, QUESTIONS, done, texts=kept))
        assert all(same(a, b) for a, b in zip(rest, whole[done:], strict=True))
    assert method.blocks == [ROUND, ROUND, 5]  # nothing was written again
    again = list(answers(qwen, method, QUESTIONS[:2]))  # without a place to keep them
    assert "thoughts on q0" in qwen.tokenizer.decode(again[0].prompts.prefix)


def test_a_question_that_cannot_be_started_is_refused_after_those_before_it(
    qwen: LocalModel,
) -> None:
    asked = [QUESTIONS[0], Asked(Question("refused?", ["a", "b"])), QUESTIONS[1]]
    found = []
    with pytest.raises(InputError, match="refused"):
        found.extend(answers(qwen, Pretends(), asked))
    assert [one.asked for one in found] == QUESTIONS[:1]
