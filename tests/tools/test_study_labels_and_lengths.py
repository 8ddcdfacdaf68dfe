"""The study of labels and lengths, each alone."""

from __future__ import annotations

import pytest

from minise import LanguageModel, load
from minise.data.miniature import evaluation_questions
from minise.method import Standard, label_logits
from minise.prompt import DEFAULT_TEMPLATE

pytest.importorskip("scipy")
pytest.importorskip("sklearn")

from tools.studies import labels_and_lengths as study
from tools.studies.labels_and_lengths import CONDITIONS, cells, length

FEW, MANY = (evaluation_questions(6, K, seed=3) for K in (4, 8))


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return load("weights/tiny-qwen2")


@pytest.fixture
def texts(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The prompts of each condition."""
    written: list[str] = []
    monkeypatch.setattr(study, "is_right", lambda lm, text, *more: written.append(text) or True)
    prompts = {}
    for name, write in CONDITIONS.items():
        for pair in zip(FEW, MANY, strict=True):
            write(lm, *pair)
        prompts[name], written[:] = [*written], []
    return prompts


def test_the_plain_conditions_are_standard_inference(lm: LanguageModel) -> None:
    for name, questions in (("A to D", FEW), ("eight choices", MANY)):
        for question, few, many in zip(questions, FEW, MANY, strict=True):
            (logits,) = label_logits(lm, Standard().plan(lm, question))
            is_right = int(logits.argmax()) == question.answer
            assert CONDITIONS[name](lm, few, many) == is_right


def test_other_labels_change_nothing_else(texts: dict[str, list[str]]) -> None:
    for name, labels in (("E to H", "EFGH"), ("Q to T", "QRST")):
        for plain, other in zip(texts["A to D"], texts[name], strict=True):
            for label, new in zip("ABCD", labels, strict=True):
                plain = plain.replace(f"\n({label})", f"\n({new})")
            assert plain == other


def test_neutral_text_makes_the_prompt_as_long_as_with_eight_choices(
    lm: LanguageModel, texts: dict[str, list[str]]
) -> None:
    for name in ("far from the question", "far from the end", "behind other text"):
        for padded, long in zip(texts[name], texts["eight choices"], strict=True):
            assert 0 <= length(lm, padded) - length(lm, long) < 20


def test_neutral_text_stands_at_its_place_and_names_no_choice(texts: dict[str, list[str]]) -> None:
    for number, question in enumerate(FEW):
        plain = texts["A to D"][number]
        start = DEFAULT_TEMPLATE.prefix(question.text)
        lines = plain.removeprefix(start).removesuffix("Answer:")
        around = {
            "far from the question": (start, f"{lines}Answer:"),
            "far from the end": (start + lines, "Answer:"),
            "behind other text": ("", plain),
        }
        for name, (before, after) in around.items():
            text = texts[name][number]
            assert text.startswith(before)
            assert text.endswith(after)
            between = text.removeprefix(before).removesuffix(after)
            assert len(between) > 10
            assert between.endswith(".\n")
            assert not any(choice in between for choice in question.choices)


def test_differences_are_of_the_same_questions_and_intervals_of_facts() -> None:
    right, base = [True, True, False, False], [True, False, True, True]
    assert cells(right, base, ["a", "a", "b", "b"]) == [
        "50.0 [0.0, 100.0]",
        "-25.0 [-100.0, +50.0]",
    ]
    assert cells(base, base, ["a", "b", "c", "d"])[1] == "-"
