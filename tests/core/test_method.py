"""The method computes what Section 3 of the paper defines, starting from the text of the
prompts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minise import (
    PAPER,
    Group,
    LanguageModel,
    Question,
    SelfEnsemble,
    Standard,
    ask,
    pack,
    self_ensemble,
    standard,
)
from minise.engines import token_counts
from minise.grouping import Groups, make_groups
from minise.method import combine, label_logits, plan_orders

LETTERS = "ABCDEFGHIJ"


def by_definition(lm: LanguageModel, prompt: str, labels: str) -> torch.Tensor:
    """Softmax over the labels' logits after `prompt`, run alone; ids from the text."""
    backend = lm.tokenizer.backend
    ids = backend.encode(prompt).ids
    label_ids = [backend.encode(f"{prompt} {label}").ids[-1] for label in labels]
    T = len(ids)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    hidden = lm.decoder(torch.tensor(ids), torch.arange(T), causal)
    return lm.decoder.logits(hidden[-1])[label_ids].softmax(dim=0)


@pytest.mark.parametrize("null_option", [True, False])
def test_self_ensemble_is_its_definition(
    lm: LanguageModel, question: Question, null_option: bool
) -> None:
    m, trials, seed = 2, 7, 3
    answer = self_ensemble(
        lm, question, group_size=m, trials=trials, seed=seed, null_option=null_option
    )
    by_choice: list[list[float]] = [[] for _ in question.choices]
    groups = make_groups(len(question.choices), m, trials, seed, question.id).flat
    assert [group.choices for group in answer.groups] == groups
    assert {group.weight for group in answer.groups} == {1}
    for group, result in zip(groups, answer.groups, strict=True):
        listed = [question.choices[i] for i in group] + ["None of the above"] * null_option
        prompt = f"{question.text}\n"
        for letter, choice in zip(LETTERS, listed, strict=False):
            prompt += f"({letter}) {choice}\n"
        p = by_definition(lm, prompt + "Answer:", LETTERS[: len(listed)]).tolist()
        assert result.probabilities.tolist() == pytest.approx(p[: len(group)], abs=1e-12)
        assert (result.null is None) == (not null_option)
        if null_option:
            assert result.null == pytest.approx(p[-1], abs=1e-12)
        for choice, probability in zip(group, p, strict=False):
            by_choice[choice].append(probability)
    scores = [sum(values) / len(values) for values in by_choice]
    assert answer.scores.tolist() == pytest.approx(scores, abs=1e-12)
    assert answer.probabilities.tolist() == pytest.approx(
        [score / sum(scores) for score in scores], abs=1e-12
    )
    assert answer.prediction == scores.index(max(scores))


def test_standard_inference_is_one_prompt_with_all_choices_and_no_null_option(
    lm: LanguageModel, question: Question
) -> None:
    answer = standard(lm, question)
    prompt = f"{question.text}\n"
    for letter, choice in zip(LETTERS, question.choices, strict=False):
        prompt += f"({letter}) {choice}\n"
    expected = by_definition(lm, prompt + "Answer:", "ABCDE")
    assert (answer.probabilities - expected).abs().max() < 1e-12
    assert torch.equal(answer.scores, answer.groups[0].probabilities)
    assert answer.groups[0].choices == (0, 1, 2, 3, 4)
    assert answer.groups[0].null is None
    assert Standard().plan(lm, question).groups.complete  # nothing is drawn: no sampling error


def test_a_score_is_the_mean_over_the_groups_a_choice_appears_in() -> None:
    """The mean (Eq. 2) is a conditional mean, not a sum times the chance of being drawn."""

    def group(choices: list[int], p: list[float], null: float | None = None) -> Group:
        return Group(tuple(choices), torch.tensor(p, dtype=torch.float64), null)

    answer = combine(
        4,
        [group([2, 0], [0.6, 0.3], 0.1), group([1], [0.2], 0.8), group([0, 1, 2], [0.1, 0.2, 0.7])],
    )
    assert answer.scores.tolist() == pytest.approx([0.2, 0.2, 0.65, 0.0])
    assert answer.probabilities.tolist() == pytest.approx([0.2 / 1.05, 0.2 / 1.05, 0.65 / 1.05, 0])
    assert answer.prediction == 2


def test_a_group_may_count_for_any_weight() -> None:
    p = [torch.tensor(p, dtype=torch.float64) for p in ([0.6, 0.4], [0.2, 0.8], [0.5])]
    light = [Group((0, 1), p[0], None, 0.25), Group((0, 1), p[1], None, 0.5)]
    answer = combine(3, [*light, Group((2,), p[2], None, 0.125)])
    assert answer.scores.tolist() == pytest.approx([0.25 / 0.75, 0.5 / 0.75, 0.5])


def test_ties_go_to_the_lower_index() -> None:
    even = Group((2, 1, 0), torch.full((3,), 1 / 3, dtype=torch.float64), None)
    assert combine(3, [even]).prediction == 0


def test_answers_are_float64_distributions(lm: LanguageModel, question: Question) -> None:
    for answer in (self_ensemble(lm, question), standard(lm, question)):
        assert answer.probabilities.dtype == answer.scores.dtype == torch.float64
        assert answer.probabilities.shape == answer.scores.shape == (5,)
        assert float(answer.probabilities.sum()) == pytest.approx(1.0, abs=1e-12)
        for group in answer.groups:
            total = float(group.probabilities.sum()) + (group.null or 0.0)
            assert total == pytest.approx(1.0, abs=1e-12)


def test_over_a_partition_the_scores_sum_to_at_most_the_number_of_groups(
    lm: LanguageModel, question: Question
) -> None:
    assert float(self_ensemble(lm, question, group_size=2).scores.sum()) < 3
    # Without a null option every group's probabilities sum to one, so the bound is met.
    whole = self_ensemble(lm, question, group_size=2, null_option=False)
    assert float(whole.scores.sum()) == pytest.approx(3.0, abs=1e-12)


def test_the_defaults_are_the_contracts(lm: LanguageModel, question: Question) -> None:
    explicit = self_ensemble(
        lm,
        question,
        group_size=4,
        trials=20,
        seed=0,
        engine="tree",
        grouping="random",
        null_option=True,
        preset="paper",
    )
    assert torch.equal(self_ensemble(lm, question).scores, explicit.scores)
    assert len(explicit.groups) == 40
    assert SelfEnsemble().plan(lm, question) == SelfEnsemble(4, 20).plan(lm, question, seed=0)
    assert torch.equal(ask(lm, SelfEnsemble(), question).scores, explicit.scores)


def test_the_seed_decides_the_answer(lm: LanguageModel, question: Question) -> None:
    first = self_ensemble(lm, question, trials=3, seed=5)
    self_ensemble(lm, Question("Another?", ["x", "y", "z"]), trials=3, seed=5)
    assert torch.equal(first.scores, self_ensemble(lm, question, trials=3, seed=5).scores)
    assert not torch.equal(first.scores, self_ensemble(lm, question, trials=3, seed=6).scores)


def test_groups_and_answers_are_shown_in_three_digits() -> None:
    p = torch.tensor([0.12345, 0.5])
    shown = "Group(choices=(2, 0), probabilities=[0.123, 0.5], null="
    assert repr(Group((2, 0), p, 0.98765)) == f"{shown}0.988)"
    assert repr(Group((2, 0), p, None)) == f"{shown}None)"
    answer = combine(2, [Group((0, 1), torch.tensor([0.25, 0.5]), None)])
    assert repr(answer) == "Answer(prediction=1, probabilities=[0.333, 0.667], groups=1)"


def test_a_notebook_shows_an_answer_as_a_table_of_escaped_choices(lm: LanguageModel) -> None:
    """Not one tag of a choice's text reaches the page."""
    hostile = Question("Which is it?", ["<script>x</script>", 'a & "b"', "c"])
    answer = standard(lm, hostile)
    rows = answer._repr_html_().split("<tr>")[2:]
    assert "<script" not in "".join(rows)
    texts = ("&lt;script&gt;x&lt;/script&gt;", "a &amp; &quot;b&quot;", "c")
    for i, (row, text, p) in enumerate(zip(rows, texts, answer.probabilities, strict=True)):
        mark = "&gt;" if i == answer.prediction else ""
        assert row.startswith(f"<td>{mark}</td><td>{text}</td><td>{p:.1%}</td></tr>")
    without_texts = replace(answer, choices=())._repr_html_()  # as a method of one's own makes it
    assert [f"<td>{i}</td>" in without_texts for i in range(3)] == [True] * 3


class TestSeams:
    """What a fork can replace without changing the core."""

    def test_a_users_grouping_is_used(self, lm: LanguageModel, question: Question) -> None:
        def neighbours(k: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
            """Every choice with the m - 1 after it."""
            trial = tuple(tuple((i + j) % k for j in range(m)) for i in range(k))
            return Groups((trial,) * trials, independent=True)

        answer = self_ensemble(lm, question, 2, 1, grouping=neighbours)
        assert [group.choices for group in answer.groups] == [(i, (i + 1) % 5) for i in range(5)]
        assert float(answer.probabilities.sum()) == pytest.approx(1)

    def test_a_users_method_is_run(self, lm: LanguageModel, question: Question) -> None:
        """Here the method is standard inference on the choices in reverse order."""

        class Reversed(Standard):
            def plan(self, lm, question, seed=0):
                order = tuple(reversed(range(len(question.choices))))
                return plan_orders(lm, question, PAPER.standard_template, [order])

        mine = ask(lm, Reversed(), question)
        turned = Question(question.text, question.choices[::-1])
        assert torch.equal(mine.scores.flip(0), standard(lm, turned).scores)

    def test_a_users_layout_is_run_as_it_is(self, lm: LanguageModel, question: Question) -> None:
        method = SelfEnsemble(2, 2)
        plan = method.plan(lm, question, 0)
        layout = pack(plan.prefix, plan.branches)
        as_packed = replace(plan, layout=layout)
        assert as_packed.tokens("tree") == len(layout.tokens)
        counts = token_counts(plan.prefix, plan.branches)
        assert {engine: plan.tokens(engine) for engine in counts} == counts
        for mine, dense in zip(
            label_logits(lm, as_packed, "tree"), label_logits(lm, plan, "dense"), strict=True
        ):
            assert torch.equal(mine, dense)
        blind = replace(plan, layout=layout.replace(mask=torch.eye(len(layout.tokens)).bool()))
        assert not torch.equal(label_logits(lm, blind)[0], label_logits(lm, plan)[0])
