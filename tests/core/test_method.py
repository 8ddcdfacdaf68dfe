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
    LanguageModel,
    Method,
    Plan,
    Question,
    SelfEnsemble,
    Standard,
    ask,
    branch_logits,
    pack,
    self_ensemble,
    standard,
)
from minise.engines import ENGINES, token_counts
from minise.grouping import random_partitions
from minise.method import combine, label_logits
from tests.support.methods import OTHER, QUESTION

LETTERS = "ABCDEFGHIJ"


def logs(*p: float) -> Tensor:
    """Logits of these probabilities, shifted: a constant must change nothing."""
    return torch.tensor(p, dtype=torch.float64).log() + 3


def of_choices(K: int, groups: Sequence[tuple[int, ...]], weights: tuple[float, ...] | None = None):
    """A plan with empty prompts, to test what `answer` computes from logits."""
    question = Question("Which?", [f"choice {i}" for i in range(K)])
    return Plan(question, Groups((tuple(groups),), weights), [], [None] * len(groups))  # type: ignore[list-item]


def close(answer: Answer, scores: list[float], prediction: int) -> None:
    assert answer.scores.tolist() == pytest.approx(scores, abs=1e-12)
    shares = [score / sum(scores) for score in scores]
    assert answer.probabilities.tolist() == pytest.approx(shares, abs=1e-12)
    assert answer.prediction == prediction


class TestFromLogits:
    """By hand, on small numbers."""

    def test_a_group_is_a_softmax_over_its_labels_in_the_order_of_its_prompt(self) -> None:
        answer = Method().answer(of_choices(3, [(2, 0, 1)]), [logs(0.5, 0.3, 0.2)])
        close(answer, [0.3, 0.2, 0.5], 2)
        (group,) = answer.groups
        assert group.choices == (2, 0, 1)
        assert group.probabilities.tolist() == pytest.approx([0.5, 0.3, 0.2])
        assert (group.null, group.weight) == (None, 1.0)

    def test_the_null_option_takes_its_share_and_belongs_to_no_choice(self) -> None:
        """Its label comes last. What it takes is missing in the group's choices."""
        plan = of_choices(4, [(1, 3), (0, 2)])
        answer = Method().answer(plan, [logs(0.1, 0.2, 0.7), logs(0.6, 0.3, 0.1)])
        close(answer, [0.6, 0.1, 0.3, 0.2], 0)
        assert [group.null for group in answer.groups] == pytest.approx([0.7, 0.1])
        assert [len(group.probabilities) for group in answer.groups] == [2, 2]

    def test_a_score_is_the_mean_over_the_groups_in_which_a_choice_is(self) -> None:
        """The mean (Eq. 2) is a conditional mean, not a sum times the chance of being drawn."""
        plan = of_choices(4, [(2, 0), (1,), (0, 1, 2)])
        rows = [logs(0.6, 0.3, 0.1), logs(0.2, 0.8), logs(0.1, 0.2, 0.7)]
        close(Method().answer(plan, rows), [0.2, 0.2, 0.65, 0.0], 2)

    def test_the_mean_is_weighted_by_the_groups_weights(self) -> None:
        plan = of_choices(3, [(0, 1), (1, 0), (2,)], (0.25, 0.5, 0.125))
        answer = Method().answer(plan, [logs(0.6, 0.4), logs(0.8, 0.2), logs(0.5, 0.5)])
        first, second = (0.15 + 0.1) / 0.75, (0.1 + 0.4) / 0.75
        close(answer, [first, second, 0.5], 1)
        assert [group.weight for group in answer.groups] == [0.25, 0.5, 0.125]

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
    def test_ties_go_to_the_lower_index(self, order: tuple[int, ...]) -> None:
        third = torch.full((3,), 1 / 3, dtype=torch.float64)
        assert combine(OTHER, [Group(order, third, None)]).prediction == 0
        p = dict(zip(range(3), (0.2, 0.4, 0.4), strict=True))
        row = torch.tensor([p[i] for i in order], dtype=torch.float64)
        assert combine(OTHER, [Group(order, row, None)]).prediction == 1

    def test_scores_that_are_all_0_are_no_answer(self, qwen: LanguageModel) -> None:
        row = torch.tensor([-torch.inf, -torch.inf, 0.0], dtype=torch.float64)
        plan = SelfEnsemble(2, 1).plan(qwen, Question("Which?", ["a", "b"]))
        with pytest.raises(InputError, match=rf'^{qwen.name} .* the question "Which\?"; '):
            Method().answer(plan, [row])


def by_definition(lm: LanguageModel, prompt: str, labels: str) -> Tensor:
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
    lm: LanguageModel, question: Question, null_option: bool
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
    lm: LanguageModel, question: Question
) -> None:
    answer = standard(lm, question)
    expected = by_definition(lm, written(question, question.choices), "ABCDE")
    assert (answer.probabilities - expected).abs().max() < 1e-12
    assert torch.equal(answer.scores, answer.groups[0].probabilities)
    assert answer.groups[0].choices == (0, 1, 2, 3, 4)
    assert answer.groups[0].null is None


def test_the_defaults_are_the_contracts(qwen: LanguageModel, question: Question) -> None:
    explicit = self_ensemble(
        qwen, question, group_size=4, trials=20, seed=0, engine="tree", grouping="random"
    )
    assert len(explicit.groups) == 40
    assert explicit.groups[0].null is not None
    for answer in (self_ensemble(qwen, question), ask(qwen, SelfEnsemble(), question)):
        assert torch.equal(answer.scores, explicit.scores)
        assert answer.probabilities.dtype == answer.scores.dtype == torch.float64
    seeded = self_ensemble(qwen, question, seed=1, grouping=random_partitions)
    assert not torch.equal(seeded.scores, explicit.scores)
    assert torch.equal(ask(qwen, Standard(), question).scores, standard(qwen, question).scores)


class TestLabelLogits:
    def test_they_are_float64_rows_in_the_order_of_the_labels(self, qwen: LanguageModel) -> None:
        plan = SelfEnsemble(3, 2).plan(qwen, QUESTION)
        rows = label_logits(qwen, plan, "separate")
        assert [len(row) for row in rows] == [len(g) + 1 for g in plan.groups.flat]
        narrow = replace(qwen, decoder=deepcopy(qwen.decoder).float())
        assert {row.dtype for row in label_logits(narrow, plan)} == {torch.float64}
        for row, prompt in zip(rows, plan.prompts, strict=True):
            p = by_definition(qwen, prompt.text, LETTERS[: len(row)])
            assert (row.softmax(0) - p).abs().max() <= 1e-12

    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_total_makes_them_log_probabilities(self, qwen: LanguageModel, engine: str) -> None:
        plan = SelfEnsemble(3, 2).plan(qwen, QUESTION)
        rows, bare = (label_logits(qwen, plan, engine, total) for total in (True, False))
        whole = branch_logits(qwen, plan.prefix, plan.branches, engine).log_softmax(dim=-1)
        for row, alone, prompt, log_p in zip(rows, bare, plan.prompts, whole, strict=True):
            assert torch.equal(row[:-1], alone)
            assert (row[:-1] - row[-1] - log_p[prompt.label_ids]).abs().max() <= 1e-12

    def test_only_the_columns_that_are_read_are_computed(
        self, qwen: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def spy(lm, prefix, branches, engine, columns, total):
            asked.append(columns)
            return branch_logits(lm, prefix, branches, engine, columns, total)

        monkeypatch.setattr("minise.method.branch_logits", spy)
        plan = SelfEnsemble(3, 2).plan(qwen, QUESTION)
        whole = replace(plan, prompts=[replace(one, label_ids=None) for one in plan.prompts])
        for row, all_of_it, prompt in zip(
            label_logits(qwen, plan), label_logits(qwen, whole), plan.prompts, strict=True
        ):
            assert (row - all_of_it[prompt.label_ids]).abs().max() <= 1e-12
        assert asked == [sorted({i for one in plan.prompts for i in one.label_ids}), None]

    def test_what_cannot_be_asked_is_refused(self, qwen: LanguageModel) -> None:
        with pytest.raises(InputError, match="group size 0"):
            SelfEnsemble(0).plan(qwen, OTHER)
        plan = SelfEnsemble(2, 1).plan(qwen, OTHER)
        layout = pack(plan.prefix, plan.branches)
        with pytest.raises(InputError, match="288 is beyond the vocabulary"):
            label_logits(qwen, replace(plan, prefix=[288], layout=layout))

    def test_a_layout_of_its_own_is_run_as_it_is(self, lm: LanguageModel) -> None:
        plan = SelfEnsemble(2, 2).plan(lm, OTHER, 0)
        layout = pack(plan.prefix, plan.branches)
        as_packed = replace(plan, layout=layout)
        assert as_packed.tokens("tree") == len(layout.tokens)
        counts = token_counts(plan.prefix, plan.branches)
        assert {engine: plan.tokens(engine) for engine in ENGINES} == counts
        for mine, dense in zip(
            label_logits(lm, as_packed, "tree"), label_logits(lm, plan, "dense"), strict=True
        ):
            assert torch.equal(mine, dense)
        blind = replace(plan, layout=layout.replace(mask=torch.eye(len(layout.tokens)).bool()))
        assert not torch.equal(label_logits(lm, blind)[0], label_logits(lm, plan)[0])
