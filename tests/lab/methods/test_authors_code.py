"""The released code: by hand from its text, each departure alone, and golden values.

The golden values are of the shipped checkpoints. The method was compared with the authors' scripts,
which cannot run here: with their pinned transformers and the newest, three families, 20 QASC rows,
400 groups each. Token ids, positions, mask rows, label ids and index sets were equal, scores within
1e-6 in float32, and all predictions. So a change here is a departure from their code.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import Groups, InputError, LocalModel, Question, SelfEnsemble, ask, load
from minise.lab.methods.authors_code import (
    RELEASED_FAMILIES,
    AuthorsCode,
    AuthorsStandard,
    BareLabels,
)
from minise.lab.methods.groupings import independent_draws
from minise.method import GroupPlan
from minise.prompts import LabelLogits
from minise.template import DEFAULT_TEMPLATE, write_prompts
from tests.reference.core.test_template import sentencepiece_tokenizer
from tests.reference.support.questions import QUESTION
from tests.reference.support.tiny import QWEN3, load_tiny

GOLDEN = json.loads(Path(__file__).with_name("authors_code.json").read_text())
QUESTIONS = [
    Question(
        "What is the capital of Canada?",
        ["Kingston", "Ottawa", "Toronto", "Montreal", "Quebec", "Halifax", "Calgary", "Regina"],
    ),
    Question("Which of these swims?", ["wren", "trout", "oak", "moss", "owl", "elm", "fly", "ant"]),
]
# Every field at the value that leaves the paper's method as it is.
AS_PAPER: dict[str, Any] = {
    "group_size": 2,
    "trials": 3,
    "grouping": SelfEnsemble.grouping,
    "null_option": True,
    "template": DEFAULT_TEMPLATE,
    "groups_per_question": True,
    "null_in_softmax": True,
    "last_group_early": 0,
    "dtype": "float64",
}


def measure(lm: LocalModel, question: Question) -> dict[str, Any]:
    """What their scripts compute for one question: eight choices, 20 draws of four."""
    method = AuthorsCode(4, 20)
    plan, prompts = method.prompts(lm, question)
    ids = [[*prompts.prefix, *branch] for branch in prompts.branches]
    logits = lm.logits(prompts)
    answers = {
        "scores": method.answer(plan, logits).scores,
        "scores in float64": replace(method, dtype="float64").answer(plan, logits).scores,
        "standard": ask(lm, AuthorsStandard(), question).normalized,
    }
    return {
        "index sets": ["".join(map(str, group)) for group in plan.groups.flat],
        "label ids": sorted({tuple(label_ids) for label_ids in prompts.label_ids}),
        "first prompt": ids[0],
        "tokens": [len(prompt) for prompt in ids],
        "all prompts": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16],
        **{name: [round(p, 6) for p in of.tolist()] for name, of in answers.items()},
    }


@pytest.mark.parametrize("family", GOLDEN)
def test_the_numbers_are_still_those_compared_with_the_authors_scripts(family: str) -> None:
    lm = load(f"weights/tiny-{family}")
    for question, expected in zip(QUESTIONS, GOLDEN[family], strict=True):
        here = json.loads(json.dumps(measure(lm, question)))
        for name, value in expected.items():
            near = name.startswith(("scores", "standard"))
            # A rounding to bfloat16 can turn over on another processor.
            within = 4e-3 if name == "scores" else 2e-6
            assert here[name] == (pytest.approx(value, abs=within) if near else value), name
        pairs = zip(expected["scores"], expected["scores in float64"], strict=True)
        assert 1e-4 < max(abs(a - b) for a, b in pairs) < 0.01  # what bfloat16 changes


def test_it_computes_what_the_released_code_computes(lm: LocalModel, question: Question) -> None:
    family = lm.family
    answer = ask(lm, AuthorsCode(2, 20), question)
    groups = independent_draws(5, 2, 20, 0, "").flat
    assert [group.choices for group in answer.groups] == groups
    backend = lm.tokenizer.backend
    labels = [backend.encode(letter).ids[-1] for letter in "AB"]
    by_choice: list[list[torch.Tensor]] = [[] for _ in question.choices]
    for number, group in enumerate(groups):
        text = f"{question.text} \n"
        if family == "qwen2":
            text = (
                "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                "<|im_start|>user\n" + text
            )
        text += f"(A) {question.choices[group[0]]} (B) {question.choices[group[1]]}"
        text += " (C) None of the above" * (family != "qwen2") + " Answer: \n"
        ids = backend.encode(text).ids
        if family == "mistral" and number == len(groups) - 1:
            ids = ids[:-1]  # the last group is read one token early
        causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
        hidden = lm.decoder(torch.tensor(ids), torch.arange(len(ids)), causal)
        p = lm.decoder.logits(hidden[-1])[labels].bfloat16().softmax(0)
        for choice, probability in zip(group, p, strict=True):
            by_choice[choice].append(probability)
    # Every sum and quotient is rounded to bfloat16.
    scores = [float(sum(values, torch.tensor(0)) / len(values)) for values in by_choice]
    assert answer.scores.tolist() == scores
    exact = [float(torch.stack(values).double().mean()) for values in by_choice]
    assert scores != exact
    assert all(group.null is None for group in answer.groups)
    assert float(answer.normalized.sum()) == pytest.approx(1)
    assert answer.prediction == scores.index(max(scores))


def test_with_no_departure_it_is_self_ensemble(lm: LocalModel, question: Question) -> None:
    mine, ours = (ask(lm, one, question) for one in (AuthorsCode(**AS_PAPER), SelfEnsemble(2, 3)))
    assert (mine.scores - ours.scores).abs().max() <= 1e-12
    assert mine.prediction == ours.prediction


@pytest.mark.parametrize(
    "departure",
    [
        {"grouping": independent_draws},
        {"groups_per_question": False},
        {"null_option": False},
        {"null_in_softmax": False},
        {"template": RELEASED_FAMILIES["llama"].group},
        {"last_group_early": 1},
        {"dtype": "bfloat16"},
    ],
    ids=lambda departure: next(iter(departure)),
)
def test_each_departure_can_be_switched_alone_and_changes_the_scores(
    qwen: LocalModel, question: Question, departure: dict[str, Any]
) -> None:
    switched = ask(qwen, AuthorsCode(**(AS_PAPER | departure)), question)
    paper = ask(qwen, AuthorsCode(**AS_PAPER), question)
    assert (switched.scores - paper.scores).abs().max() > 1e-6


def test_more_tokens_early_than_the_last_prompt_has_are_refused(
    qwen: LocalModel, question: Question
) -> None:
    with pytest.raises(InputError, match="last_group_early is 10000"):
        AuthorsCode(last_group_early=10_000).prompts(qwen, question)


def test_a_family_without_released_code_is_refused(tmp_path: Path) -> None:
    lm = load_tiny(tmp_path, QWEN3)
    for method in (AuthorsCode(), AuthorsStandard()):
        with pytest.raises(InputError, match="qwen3"):
            method.prompts(lm, QUESTION)


def test_the_released_code_looks_a_label_up_alone() -> None:
    """And finds a piece that never follows a newline."""
    tokenizer = sentencepiece_tokenizer()
    prompts = write_prompts(tokenizer, BareLabels(cue="Answer: \n"), "Q", [["x", "y"]])
    piece = tokenizer.backend.token_to_id
    assert prompts.label_ids == [[piece("▁A"), piece("▁B")]]


def test_softmax_and_mean_are_rounded_to_the_dtype_of_the_released_code() -> None:
    groups = Groups((((0, 1),), ((1, 0),), ((0, 1),)))
    plan = GroupPlan(2, groups)
    rows = []
    for share in (0.61, 0.27, 0.53):
        logs = torch.tensor([share, 1 - share], dtype=torch.float64).log()
        rows.append(LabelLogits(logs, torch.tensor(0.0, dtype=torch.float64)))
    exact = AuthorsCode(dtype="float64").answer(plan, rows)
    rounded = AuthorsCode().answer(plan, rows)
    assert torch.equal(rounded.scores, rounded.scores.bfloat16().double())
    assert 0 < (rounded.scores - exact.scores).abs().max() < 0.01
    assert rounded.normalized.dtype == torch.float64
