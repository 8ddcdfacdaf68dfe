"""What is refused where input enters: one line each, with the offending thing in it."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from minise import (
    Decoder,
    LanguageModel,
    Question,
    SelfEnsemble,
    Standard,
    branch_logits,
    self_ensemble,
)
from minise.checks import MOST_GROUPS, check_finite, check_mask_fits, check_scores, check_sizes
from minise.errors import InputError
from minise.methods.groupings import grouping_named


def overflowing(decoder: Decoder) -> Decoder:
    huge = deepcopy(decoder)
    huge.model.embed_tokens.weight *= 1e300
    return huge


CHOICES = ["a", "b"]
LONG = "Q" * 5000
BY_NAME: dict[str, tuple[Callable[[LanguageModel], object], str]] = {
    "no choices": (lambda lm: Question("Q", []), "0 choices"),
    "one choice": (lambda lm: Question("Q", ["a"]), "1 choice"),
    "too many choices": (lambda lm: Question("Q", ["a"] * 1001), "1001 choices"),
    "an empty question": (lambda lm: Question(" \n", CHOICES), "question"),
    "a question that is no text": (lambda lm: Question(None, CHOICES), "null"),
    "an empty choice": (lambda lm: Question("Q", ["a", " "]), "choice 2"),
    "a choice that is no text": (lambda lm: Question("Q", ["a", 3]), "choice 2"),
    "choices that are one text": (lambda lm: Question("Q", "ab"), "columns A, B"),
    "half a surrogate pair": (lambda lm: Question("Q", ["a", "\ud800"]), "choice 2"),
    "an id that is no text": (lambda lm: Question("Q", CHOICES, id=7), "7"),
    "an answer below 0": (lambda lm: Question("Q", CHOICES, answer=-1), "-1"),
    "an answer beyond the choices": (lambda lm: Question("Q", CHOICES, answer=2), "2"),
    "an answer that is true": (lambda lm: Question("Q", CHOICES, answer=True), "true"),
    "an answer that is a letter": (lambda lm: Question("Q", CHOICES, answer="B"), '"B"'),
    "groups of none": (lambda lm: check_sizes(8, 0, 20), "group size 0"),
    "no trials": (lambda lm: check_sizes(8, 4, 0), "trials 0"),
    "too many groups": (lambda lm: check_sizes(4, 4, MOST_GROUPS + 1), "50001 trials"),
    "a huge number of groups": (lambda lm: check_sizes(8, 4, 10**5000), "over the limit"),
    "more choices than labels": (
        lambda lm: Standard().plan(lm, Question("Q", [f"c{i}" for i in range(27)])),
        "27 choices",
    ),
    "the null option beyond the labels": (
        lambda lm: self_ensemble(lm, Question("Q", [f"c{i}" for i in range(26)]), 26, 1),
        "27 choices",
    ),
    "an unknown engine": (lambda lm: branch_logits(lm, [1], [[2]], "fast"), '"fast"'),
    "an unknown grouping": (lambda lm: grouping_named("best"), '"best"'),
    "no branches": (lambda lm: branch_logits(lm, [1], []), "no token"),
    "an empty prompt": (lambda lm: branch_logits(lm, [], [[1], []]), "no token"),
    "a token beyond the vocabulary": (lambda lm: branch_logits(lm, [1], [[288]]), "288"),
    "a column beyond the vocabulary": (
        lambda lm: branch_logits(lm, [1], [[2]], columns=[288]),
        "288",
    ),
    "a prompt beyond the positions": (lambda lm: branch_logits(lm, [4] * 1024, [[5]]), "1025"),
    "a question far too long": (lambda lm: Standard().plan(lm, Question(LONG, CHOICES)), "1024"),
    "a choice far too long": (
        lambda lm: SelfEnsemble(2, 2).plan(lm, Question("Q", ["a", LONG])),
        "1024",
    ),
    "scores that are all 0": (lambda lm: check_scores(torch.zeros(2), "Q?", ""), "Q?"),
    "logits that overflow": (
        lambda lm: check_finite(lm, torch.tensor([[1.0, torch.inf]]), torch.ones(1, 4)),
        "torch.float32",
    ),
    "a run that overflows": (
        lambda lm: branch_logits(replace(lm, decoder=overflowing(lm.decoder)), [1], [[2]]),
        "torch.float64",
    ),
    "a hidden state that overflowed": (
        lambda lm: check_finite(lm, torch.ones(2, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]])),
        "torch.float32",
    ),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_it_is_refused_in_one_line_that_names_it(qwen: LanguageModel, name: str) -> None:
    act, offending = BY_NAME[name]
    with pytest.raises(InputError) as caught:
        act(qwen)
    message = str(caught.value)
    assert offending in message
    assert "\n" not in message
    assert len(message) < 400


def test_what_is_just_allowed_passes(qwen: LanguageModel) -> None:
    check_sizes(8, 4, MOST_GROUPS // 2)
    check_sizes(1, 1, 1)
    check_scores(torch.tensor([0.0, 1e-9]), "Q", "")
    check_finite(qwen, torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    branch_logits(qwen, [4] * 1023, [[287]], columns=[0, 287])


def test_a_text_far_too_long_is_refused_before_its_prompts_are_written(
    qwen: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minise.method.write_prompts", None)
    with pytest.raises(InputError):
        SelfEnsemble(2, 2).plan(qwen, Question(LONG, CHOICES))


class TestMemory:
    def test_a_mask_may_take_all_free_memory_but_no_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A byte for each cell, and a score before the softmax and one after it."""
        for score_bytes in (0, 4, 8):
            needed = 30**2 * (1 + 2 * score_bytes)
            monkeypatch.setattr("minise.checks.free_bytes", lambda n=needed: n)
            check_mask_fits(30, score_bytes)
            monkeypatch.setattr("minise.checks.free_bytes", lambda n=needed: n - 1)
            with pytest.raises(InputError, match="30 packed tokens"):
                check_mask_fits(30, score_bytes)
        monkeypatch.setattr("minise.checks.free_bytes", lambda: None)  # the system does not tell
        check_mask_fits(10**9)

    def test_plain_counts_the_scores_of_its_heads_and_dense_does_not(
        self, qwen: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[int, ...]] = []
        monkeypatch.setattr("minise.engines.check_mask_fits", lambda *sizes: asked.append(sizes))
        for dtype, size in ((torch.bfloat16, 4), (torch.float32, 4), (torch.float64, 8)):
            monkeypatch.setattr(type(qwen.decoder), "dtype", dtype)
            for engine in ("plain", "dense", "separate", "tree"):
                branch_logits(qwen, [40, 41], [[50], [51, 52]], engine)
            assert asked == [(5, 4 * size), (5,)]
            asked.clear()

    def test_a_mask_beyond_the_memory_names_an_engine_that_fits(
        self, qwen: LanguageModel, question: Question, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minise.checks.free_bytes", lambda: 10_000)
        for engine in ("dense", "plain"):
            with pytest.raises(InputError, match="engine tree"):
                self_ensemble(qwen, question, engine=engine)
        assert self_ensemble(qwen, question, trials=1, engine="tree")
