"""The method computes what Section 3 of the paper defines, starting from the text of the
prompts."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from minise import (
    Answer,
    Group,
    Groups,
    InputError,
    LocalModel,
    Method,
    Question,
    SelfEnsemble,
    Standard,
    ask,
    self_ensemble,
    standard,
)
from minise.errors import Unsuited
from minise.grouping import random_partitions
from minise.method import GroupPlan, combine
from minise.prompts import LabelLogits
from tests.reference.support.questions import OTHER, QUESTION, Served, read

LETTERS = "ABCDEFGHIJ"


def logs(*p: float) -> Tensor:
    """Logits of these probabilities, shifted: a constant must change nothing."""
    return torch.tensor(p, dtype=torch.float64).log() + 3


def of_choices(K: int, groups: Sequence[tuple[int, ...]]) -> GroupPlan:
    return GroupPlan(K, Groups((tuple(groups),)))


def close(answer: Answer, scores: list[float], prediction: int) -> None:
    assert answer.scores.tolist() == pytest.approx(scores, abs=1e-12)
    shares = [score / sum(scores) for score in scores]
    assert answer.normalized.tolist() == pytest.approx(shares, abs=1e-12)
    assert answer.prediction == prediction


class TestFromLogits:
    """By hand, on small numbers."""

    def test_a_group_is_a_softmax_over_its_labels_in_the_order_of_its_prompt(self) -> None:
        answer = Method().answer(of_choices(3, [(2, 0, 1)]), read(logs(0.5, 0.3, 0.2)))
        close(answer, [0.3, 0.2, 0.5], 2)
        (group,) = answer.groups
        assert group.choices == (2, 0, 1)
        assert group.probabilities.tolist() == pytest.approx([0.5, 0.3, 0.2])
        assert (group.null, answer.null) == (None, None)

    def test_the_null_option_takes_its_share_and_belongs_to_no_choice(self) -> None:
        """Its label comes last. What it takes is missing in the group's choices."""
        plan = of_choices(4, [(1, 3), (0, 2)])
        answer = Method().answer(plan, read(logs(0.1, 0.2, 0.7), logs(0.6, 0.3, 0.1)))
        close(answer, [0.6, 0.1, 0.3, 0.2], 0)
        assert [group.null for group in answer.groups] == pytest.approx([0.7, 0.1])
        assert [len(group.probabilities) for group in answer.groups] == [2, 2]

    def test_a_score_is_the_mean_over_the_groups_in_which_a_choice_is(self) -> None:
        """The mean (Eq. 2) is a conditional mean, not a sum times the chance of being drawn."""
        plan = of_choices(4, [(2, 0), (1,), (0, 1, 2)])
        rows = read(logs(0.6, 0.3, 0.1), logs(0.2, 0.8), logs(0.1, 0.2, 0.7))
        close(Method().answer(plan, rows), [0.2, 0.2, 0.65, 0.0], 2)

    def test_the_null_option_has_its_mean_over_the_prompts_that_list_it(self) -> None:
        plan = of_choices(2, [(0,), (1,), (0, 1)])
        rows = read(logs(0.9, 0.1), logs(0.5, 0.5), logs(0.6, 0.4))
        assert Method().answer(plan, rows).null == pytest.approx(0.3)

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    def test_ties_go_to_the_lower_index(self, order: tuple[int, ...]) -> None:
        third = torch.full((3,), 1 / 3, dtype=torch.float64)
        assert combine(5, [Group(order, third, None)]).prediction == 0
        p = dict(zip(range(3), (0.2, 0.4, 0.4), strict=True))
        row = torch.tensor([p[i] for i in order], dtype=torch.float64)
        assert combine(5, [Group(order, row, None)]).prediction == 1

    def test_scores_that_are_all_0_are_no_answer(self) -> None:
        none = torch.tensor([-torch.inf, -torch.inf, 0.0], dtype=torch.float64)
        with pytest.raises(InputError, match=r"None of the above .* leave the null option out"):
            Method().answer(of_choices(2, [(0, 1)]), read(none))
        tiny = torch.tensor([0.0, 1e-9], dtype=torch.float64)
        assert combine(2, [Group((0, 1), tiny, 1.0)]).prediction == 1

    def test_every_group_knows_its_trial(self) -> None:
        plan = GroupPlan(3, Groups((((0, 1), (2,)), ((2, 0), (1,)))))
        rows = read(logs(0.6, 0.4), logs(0.5, 0.5), logs(0.6, 0.4), logs(0.5, 0.5))
        assert [group.trial for group in Method().answer(plan, rows).groups] == [0, 0, 1, 1]

    def test_the_share_on_the_labels_is_the_mean_over_the_prompts(self) -> None:
        rows = []
        for share in (0.9, 0.4):
            labels = logs(0.7, 0.3)
            rows.append(LabelLogits(labels, labels.logsumexp(dim=0) - torch.tensor(share).log()))
        answer = Method().answer(of_choices(2, [(0, 1), (1, 0)]), rows)
        assert answer.on_labels == pytest.approx(0.65)


def by_definition(lm: LocalModel, prompt: str, labels: str) -> Tensor:
    """Softmax over the labels' logits after `prompt`, run alone; ids from the text."""
    backend = lm.tokenizer.backend
    ids = backend.encode(prompt).ids
    label_ids = [backend.encode(f"{prompt} {label}").ids[-1] for label in labels]
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    hidden = lm.decoder(torch.tensor(ids), torch.arange(len(ids)), causal)
    return lm.decoder.logits(hidden[-1])[label_ids].softmax(dim=0)


def written(question: Question, listed: Sequence[str]) -> str:
    lines = [f"({letter}) {choice}\n" for letter, choice in zip(LETTERS, listed, strict=False)]
    return f"{question.text}\n" + "".join(lines) + "Answer:"


@pytest.mark.parametrize("null_option", [True, False])
def test_self_ensemble_is_its_definition(
    lm: LocalModel, question: Question, null_option: bool
) -> None:
    m, trials, seed = 2, 7, 3
    answer = self_ensemble(lm, question, m, trials, seed, null_option=null_option)
    by_choice: list[list[float]] = [[] for _ in question.choices]
    groups = random_partitions(len(question.choices), m, trials, seed, question.id).flat
    assert [group.choices for group in answer.groups] == groups
    for group, result in zip(groups, answer.groups, strict=True):
        listed = [question.choices[i] for i in group] + ["None of the above"] * null_option
        p = by_definition(lm, written(question, listed), LETTERS[: len(listed)]).tolist()
        assert result.probabilities.tolist() == pytest.approx(p[: len(group)], abs=1e-12)
        assert result.null == (pytest.approx(p[-1], abs=1e-12) if null_option else None)
        for choice, probability in zip(group, p, strict=False):
            by_choice[choice].append(probability)
    scores = [sum(values) / len(values) for values in by_choice]
    close(answer, scores, scores.index(max(scores)))


def test_standard_inference_is_one_prompt_with_all_choices_and_no_null_option(
    lm: LocalModel, question: Question
) -> None:
    answer = standard(lm, question)
    expected = by_definition(lm, written(question, question.choices), "ABCDE")
    assert (answer.normalized - expected).abs().max() < 1e-12
    assert torch.equal(answer.scores, answer.groups[0].probabilities)
    assert answer.groups[0].choices == (0, 1, 2, 3, 4)
    assert answer.groups[0].null is None


@pytest.mark.lab
def test_the_defaults_are_the_contracts(qwen: LocalModel, question: Question) -> None:
    explicit = self_ensemble(
        qwen, question, group_size=4, trials=20, seed=0, engine="tree", grouping="random"
    )
    assert len(explicit.groups) == 40
    assert explicit.groups[0].null is not None
    for answer in (self_ensemble(qwen, question), ask(qwen, SelfEnsemble(), question)):
        assert torch.equal(answer.scores, explicit.scores)
        assert answer.normalized.dtype == answer.scores.dtype == torch.float64
    seeded = self_ensemble(qwen, question, seed=1, grouping=random_partitions)
    assert not torch.equal(seeded.scores, explicit.scores)
    assert torch.equal(ask(qwen, Standard(), question).scores, standard(qwen, question).scores)


def test_a_methods_two_functions_have_the_model_between_them(qwen: LocalModel) -> None:
    """Which may be any: here one whose logits are shifted, as in a server."""
    for method in (SelfEnsemble(3, 2), Standard()):
        plan, prompts = method.prompts(qwen, QUESTION, 5)
        by_hand = method.answer(plan, qwen.logits(prompts))
        assert torch.equal(by_hand.scores, ask(qwen, method, QUESTION, 5).scores)
        served = ask(Served(qwen), method, QUESTION, 5)
        torch.testing.assert_close(served.scores, by_hand.scores, rtol=0, atol=1e-12)
        assert served.on_labels == pytest.approx(by_hand.on_labels, abs=1e-12)


def test_the_share_on_the_labels_is_that_of_the_whole_vocabulary(
    lm: LocalModel, question: Question
) -> None:
    backend = lm.tokenizer.backend
    text = written(question, question.choices)
    ids = backend.encode(text).ids
    label_ids = [backend.encode(f"{text} {label}").ids[-1] for label in "ABCDE"]
    causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    hidden = lm.decoder(torch.tensor(ids), torch.arange(len(ids)), causal)
    share = lm.decoder.logits(hidden[-1]).softmax(dim=0)[label_ids].sum()
    assert standard(lm, question).on_labels == pytest.approx(float(share), abs=1e-12)


def test_the_labels_asked_for_are_those_of_the_choices_and_of_the_null_option(
    qwen: LocalModel,
) -> None:
    plan, prompts = SelfEnsemble(3, 2).prompts(qwen, QUESTION)
    sizes = [len(group) + 1 for group in plan.groups.flat]
    assert [len(ids) for ids in prompts.label_ids] == sizes == [4, 4, 3, 4, 4, 3]
    for read_there, branch in zip(qwen.logits(prompts), prompts.branches, strict=True):
        text = qwen.tokenizer.decode([*prompts.prefix, *branch])
        p = by_definition(qwen, text, LETTERS[: len(read_there.labels)])
        assert (read_there.labels.softmax(0) - p).abs().max() <= 1e-12


def test_answers_are_float64_whatever_the_weights_are(qwen: LocalModel) -> None:
    narrow = replace(qwen, decoder=deepcopy(qwen.decoder).float())
    answer = self_ensemble(narrow, QUESTION, 3, 2)
    tensors = [answer.scores, answer.normalized, *(one.probabilities for one in answer.groups)]
    assert {tensor.dtype for tensor in tensors} == {torch.float64}
    assert (answer.scores - self_ensemble(qwen, QUESTION, 3, 2).scores).abs().max() < 1e-5


LONG = "Q" * 5000
TOO_MANY = [f"c{i}" for i in range(27)]
REFUSED = {
    "too many groups": (SelfEnsemble(2, 50_000), OTHER, "50000 trials"),
    "more choices than labels": (Standard(), Question("Q", TOO_MANY), "27 choices"),
    "the null option beyond the labels": (
        SelfEnsemble(26, 1),
        Question("Q", TOO_MANY[:26]),
        "27 choices",
    ),
    "a question far too long": (Standard(), Question(LONG, ["a", "b"]), "1024"),
    "a choice far too long": (SelfEnsemble(2, 2), Question("Q", ["a", LONG]), "1024"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_asked_is_refused_in_one_line_before_a_model_runs(
    qwen: LocalModel, name: str
) -> None:
    method, question, named = REFUSED[name]
    with pytest.raises(InputError) as caught:
        method.prompts(qwen, question)
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_method_without_groups_or_trials_cannot_be_made() -> None:
    with pytest.raises(InputError, match="group size 0"):
        SelfEnsemble(0)
    with pytest.raises(InputError, match="trials 0"):
        SelfEnsemble(2, 0)


def test_a_text_far_too_long_is_refused_before_its_prompts_are_written(
    qwen: LocalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minise.template.write_prompts", None)
    with pytest.raises(Unsuited):
        SelfEnsemble(2, 2).prompts(qwen, Question(LONG, ["a", "b"]))
