"""The method computes what Section 3 defines, from the text of the prompts on."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import factorial
from typing import Any

import pytest
import torch

from minise import (
    AUTHORS_CODE,
    PAPER,
    Group,
    InputError,
    LanguageModel,
    Question,
    SelfEnsemble,
    Standard,
    ask,
    branch_logits,
    pack,
    self_ensemble,
    standard,
)
from minise.engines import token_counts
from minise.grouping import Groups, make_groups
from minise.groupings.independent import independent_draws
from minise.groupings.registry import grouping_named
from minise.memory import free_bytes
from minise.method import combine, label_logits, plan_orders
from minise.methods.uncertainty import Uncertainty, uncertainty

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
    seen: list[list[float]] = [[] for _ in question.choices]
    groups = make_groups(len(question.choices), m, trials, seed, question.id).flat
    assert [group.choices for group in answer.groups] == groups
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
            seen[choice].append(probability)
    scores = [sum(values) / len(values) for values in seen]
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


def test_a_score_is_the_mean_over_the_groups_a_choice_appears_in() -> None:
    """The mean (Eq. 2) as meant: a conditional mean, not a sum times the chance of being drawn."""

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


def test_the_same_seed_gives_the_same_answer_and_another_does_not(
    lm: LanguageModel, question: Question
) -> None:
    first = self_ensemble(lm, question, trials=3, seed=5)
    self_ensemble(lm, Question("Another?", ["x", "y", "z"]), trials=3, seed=5)
    assert torch.equal(first.scores, self_ensemble(lm, question, trials=3, seed=5).scores)
    assert not torch.equal(first.scores, self_ensemble(lm, question, trials=3, seed=6).scores)


@pytest.mark.parametrize("engine", ["separate", "dense", "tree"])
def test_branch_logits_of_columns_are_those_of_the_vocabulary(
    lm: LanguageModel, engine: str
) -> None:
    prefix, branches, columns = [40, 41, 42], [[50, 51], [50, 52, 53], [60]], [9, 1, 280]
    every = branch_logits(lm, prefix, branches, engine)
    some = branch_logits(lm, prefix, branches, engine, columns)
    assert every.shape == (3, lm.config.vocab_size)
    assert (every[:, columns] - some).abs().max() <= 1e-12
    separate = branch_logits(lm, prefix, branches, "separate")
    assert (every - separate).abs().max() <= 1e-10


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("separate", [(5, None)] * 3 + [(6, None)] * 3 + [(4, None)] * 3),
        ("dense", [(9, None)] * 3),
        ("tree", [(8, None), (8, None), (8, 3)]),
    ],
)
def test_each_engine_does_the_work_it_says(
    lm: LanguageModel, engine: str, expected: list[tuple[int, int | None]]
) -> None:
    """For each layer that runs: its tokens, and how many of them it computes in full, if not all.
    (Linear layers add rows up to a multiple of 8.)"""
    prefix, branches = [40, 41, 42], [[50, 51], [50, 52, 53], [60]]
    seen: list[tuple[int, int | None]] = []
    real = lm.decoder.run

    def run(tokens, positions, attend, rows=None):
        def watched(layer, q, k, v):
            seen.append((k.shape[1], None if q.shape == k.shape[:2] + q.shape[2:] else q.shape[1]))
            return attend(layer, q, k, v)

        return real(tokens, positions, watched, rows)

    lm.decoder.run = run
    try:
        branch_logits(lm, prefix, branches, engine)
    finally:
        del lm.decoder.run
    assert seen == expected


class TestAuthorsCode:
    """The released code, computed by hand from its text."""

    def test_it_is_what_the_released_code_computes(
        self, lm: LanguageModel, question: Question
    ) -> None:
        preset = AUTHORS_CODE[lm.config.model_type]
        answer = self_ensemble(lm, question, group_size=2, trials=20, preset="authors-code")
        groups = make_groups(5, 2, 20, 0, "", independent_draws).flat
        assert [group.choices for group in answer.groups] == groups
        backend = lm.tokenizer.backend
        labels = [backend.encode(letter).ids[-1] for letter in "AB"]
        seen: list[list[torch.Tensor]] = [[] for _ in question.choices]
        for number, group in enumerate(groups):
            text = f"{question.text} \n"
            if lm.config.model_type == "qwen2":
                text = (
                    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
                    "<|im_start|>user\n" + text
                )
            text += f"(A) {question.choices[group[0]]} (B) {question.choices[group[1]]}"
            text += " (C) None of the above" * (lm.config.model_type != "qwen2") + " Answer: \n"
            ids = backend.encode(text).ids
            if lm.config.model_type == "mistral" and number == len(groups) - 1:
                ids = ids[:-1]  # the last group is read one token early
            T = len(ids)
            causal = torch.ones(T, T, dtype=torch.bool).tril()
            hidden = lm.decoder(torch.tensor(ids), torch.arange(T), causal)
            p = lm.decoder.logits(hidden[-1])[labels].bfloat16().softmax(0)
            for choice, probability in zip(group, p, strict=True):
                seen[choice].append(probability)
        # Every sum and quotient is rounded to bfloat16.
        scores = [float(sum(values, torch.tensor(0)) / len(values)) for values in seen]
        assert answer.scores.tolist() == scores
        exact = [float(torch.stack(values).double().mean()) for values in seen]
        assert scores != exact
        assert all(group.null is None for group in answer.groups)
        assert preset.null_option == (lm.config.model_type != "qwen2")

    def test_standard_inference(self, lm: LanguageModel, question: Question) -> None:
        answer = standard(lm, question, preset="authors-code")
        text = question.text + " "
        for letter, choice in zip(LETTERS, question.choices, strict=False):
            text += f"({letter}) {choice} "
        backend = lm.tokenizer.backend
        space = " " if lm.config.model_type == "llama" else ""
        labels = [backend.encode(space + letter).ids[-1] for letter in "ABCDE"]
        logits = branch_logits(lm, [], [backend.encode(text + "Answer:").ids], "separate", labels)
        assert (answer.probabilities - logits[0].softmax(0)).abs().max() <= 1e-12

    @pytest.mark.parametrize(
        "departure",
        [
            {"grouping": independent_draws},
            {"groups_per_question": False},
            {"null_option": False},
            {"null_in_softmax": False},
            {"template": AUTHORS_CODE["llama"].template},
            {"last_group_early": 1},
            {"dtype": "bfloat16"},
        ],
        ids=lambda departure: next(iter(departure)),
    )
    def test_each_departure_can_be_switched_alone_and_shows(
        self, lm: LanguageModel, question: Question, departure: dict
    ) -> None:
        switched = self_ensemble(lm, question, 2, 3, preset=replace(PAPER, **departure))
        plain = self_ensemble(lm, question, 2, 3)
        assert (switched.scores - plain.scores).abs().max() > 1e-6

    def test_the_last_group_alone_is_read_early(
        self, lm: LanguageModel, question: Question
    ) -> None:
        early = SelfEnsemble(2, 2, preset=replace(PAPER, last_group_early=2)).plan(lm, question)
        *others, last = SelfEnsemble(2, 2).plan(lm, question).prompts
        assert early.prompts == [*others, replace(last, ids=last.ids[:-2])]


class TestExact:
    """Every ordered group, weighted: the limit of the mean (Eq. 2) for infinitely many trials."""

    @pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 7])
    def test_it_is_the_mean_over_all_permutations(
        self, lm: LanguageModel, question: Question, m: int
    ) -> None:
        """Brute force: each of the 5! orders of the choices is one equally likely trial."""
        answer = self_ensemble(lm, question, group_size=m, grouping="exact")
        seen = {group.choices: group.probabilities for group in answer.groups}
        total = torch.zeros(5, dtype=torch.float64)
        for order in permutations(range(5)):
            for start in range(0, 5, m):
                group = order[start : start + m]
                total[list(group)] += seen[group]
        assert (answer.scores - total / factorial(5)).abs().max() <= 1e-12

    def test_sampled_scores_converge_to_it_at_the_rate_of_one_over_root_n(
        self, lm: LanguageModel, question: Question
    ) -> None:
        exact = self_ensemble(lm, question, 2, grouping="exact")
        seen = {group.choices: group for group in exact.groups}

        def error(trials: int) -> float:
            """Root mean square over seeds, from the group probabilities already computed."""
            squares = []
            for seed in range(60):
                groups = make_groups(5, 2, trials, seed, "convergence").flat
                sampled = combine(5, [replace(seen[g], weight=1.0) for g in groups])
                squares.append((sampled.scores - exact.scores).square().mean())
            return float(torch.stack(squares).mean().sqrt())

        few, many = error(8), error(8 * 16)
        assert many > 0
        assert 3.0 < few / many < 5.2  # 4 = sqrt(16), within the noise of 60 seeds

    @pytest.mark.parametrize("engine", ["separate", "dense"])
    def test_every_engine_gives_it(
        self, lm: LanguageModel, question: Question, engine: str
    ) -> None:
        tree = self_ensemble(lm, question, 2, grouping="exact")
        other = self_ensemble(lm, question, 2, grouping="exact", engine=engine)
        assert (tree.scores - other.scores).abs().max() <= 1e-12

    def test_trials_and_seed_have_no_effect(self, lm: LanguageModel, question: Question) -> None:
        one = self_ensemble(lm, question, 2, trials=1, seed=1, grouping="exact")
        assert torch.equal(one.scores, self_ensemble(lm, question, 2, grouping="exact").scores)

    def test_too_many_groups_are_refused_at_once_with_their_number(self, lm: LanguageModel) -> None:
        many = Question("Q?", [f"choice {i}" for i in range(20)])
        with pytest.raises(InputError, match=r"has [\d,]{15,} ordered groups, over the limit of"):
            self_ensemble(lm, many, group_size=10, grouping="exact")


def test_groups_and_answers_are_shown_in_three_digits() -> None:
    p = torch.tensor([0.12345, 0.5])
    shown = "Group(choices=(2, 0), probabilities=[0.123, 0.5], null="
    assert repr(Group((2, 0), p, 0.98765)) == f"{shown}0.988)"
    assert repr(Group((2, 0), p, None)) == f"{shown}None)"
    answer = combine(2, [Group((0, 1), torch.tensor([0.25, 0.5]), None)])
    assert repr(answer) == "Answer(prediction=1, probabilities=[0.333, 0.667], groups=1)"


class TestSeams:
    """What a fork plugs in without touching the core."""

    def test_a_grouping_of_ones_own(self, lm: LanguageModel, question: Question) -> None:
        def neighbours(k: int, m: int, trials: int, seed: int, question_id: str) -> Groups:
            """Every choice with the m - 1 after it."""
            trial = tuple(tuple((i + j) % k for j in range(m)) for i in range(k))
            return Groups((trial,) * trials, independent=True)

        answer = self_ensemble(lm, question, 2, 1, grouping=neighbours)
        assert [group.choices for group in answer.groups] == [(i, (i + 1) % 5) for i in range(5)]
        assert float(answer.probabilities.sum()) == pytest.approx(1)

    def test_a_method_of_ones_own(self, lm: LanguageModel, question: Question) -> None:
        """Here standard inference on the choices in reverse order."""

        class Reversed(Standard):
            def plan(self, lm, question, seed=0):
                order = tuple(reversed(range(len(question.choices))))
                return plan_orders(lm, question, PAPER.standard_template, [order])

        mine = ask(lm, Reversed(), question)
        turned = Question(question.text, question.choices[::-1])
        assert torch.equal(mine.scores.flip(0), standard(lm, turned).scores)

    def test_a_layout_of_ones_own_is_run_as_it_is(
        self, lm: LanguageModel, question: Question
    ) -> None:
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


class TestRefusals:
    def test_a_dense_mask_that_does_not_fit_names_the_engine_that_will(
        self, lm: LanguageModel, question: Question, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 10_000)
        with pytest.raises(InputError, match=r"packed tokens need a mask .* use the engine tree"):
            self_ensemble(lm, question, engine="dense")
        assert self_ensemble(lm, question, engine="tree")
        assert free_bytes(torch.device("cpu")) is not None

    def test_an_unknown_engine_preset_or_grouping(
        self, lm: LanguageModel, question: Question
    ) -> None:
        with pytest.raises(InputError, match='engine "fast" is unknown; use one of separate'):
            self_ensemble(lm, question, engine="fast")
        with pytest.raises(InputError, match='preset "draft" is unknown; use one of paper'):
            self_ensemble(lm, question, preset="draft")
        with pytest.raises(InputError, match='grouping "best" is unknown'):
            self_ensemble(lm, question, grouping="best")

    @pytest.mark.parametrize("engine", ["separate", "dense", "tree"])
    def test_a_prompt_beyond_the_models_positions(self, lm: LanguageModel, engine: str) -> None:
        limit = lm.config.max_position_embeddings
        fits, longer = [40] * (limit - 1), [40] * limit
        branch_logits(lm, fits, [[41]], engine)
        with pytest.raises(InputError, match=f"{limit + 1} tokens, but .* positions for {limit}"):
            branch_logits(lm, longer, [[41]], engine)

    def test_a_packed_sequence_may_be_longer_than_the_positions(
        self, lm: LanguageModel, question: Question
    ) -> None:
        """Positions restart after the question, so their number bounds a prompt, not the pack."""
        prefix, branches = [40] * 20, [[50 + i] * 15 for i in range(80)]
        assert lm.config.max_position_embeddings < 20 + 80 * 15
        packed = branch_logits(lm, prefix, branches, "dense")
        assert (packed - branch_logits(lm, prefix, branches, "separate")).abs().max() <= 1e-10

    @pytest.mark.parametrize("method", [SelfEnsemble(2, 2), Standard()])
    def test_a_text_far_too_long_is_refused_before_its_prompts_are_written(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, method: Any
    ) -> None:
        monkeypatch.setattr("minise.method.write_prompts", None)
        for long in (Question("Q" * 5000, ["a", "b"]), Question("Q", ["a", "b" * 5000])):
            with pytest.raises(InputError, match="has positions for 1024"):
                method.plan(lm, long, 0)

    def test_tokens_beyond_the_vocabulary(self, lm: LanguageModel) -> None:
        with pytest.raises(InputError, match="token id 288 is beyond the vocabulary"):
            branch_logits(lm, [1], [[288]])

    def test_a_group_with_more_choices_than_labels(self, lm: LanguageModel) -> None:
        many = Question("Q", [f"choice {i}" for i in range(27)])
        with pytest.raises(InputError, match="only 26 labels"):
            standard(lm, many)
        with pytest.raises(InputError, match="only 26 labels"):
            self_ensemble(lm, many, group_size=26, grouping=lambda *_: pytest.fail("drawn"))
        assert len(self_ensemble(lm, many, group_size=25, trials=1).groups) == 2


class TestUncertainty:
    """How far the scores may be from those of infinitely many trials."""

    def ask(
        self, lm: LanguageModel, question: Question, trials: int, seed: int = 0, **options: Any
    ) -> Uncertainty:
        if "grouping" in options:
            options["grouping"] = grouping_named(options["grouping"])
        method = SelfEnsemble(2, trials, **options)
        plan = method.plan(lm, question, seed)
        return uncertainty(plan.groups, method.answer(plan, label_logits(lm, plan)))

    def test_standard_errors_are_the_spread_of_single_trials(
        self, lm: LanguageModel, question: Question
    ) -> None:
        N, K = 12, len(question.choices)
        found = self.ask(lm, question, N)
        whole = self_ensemble(lm, question, 2, N)
        per_trial = len(whole.groups) // N
        single = torch.stack(
            [combine(K, whole.groups[t * per_trial : (t + 1) * per_trial]).scores for t in range(N)]
        )
        assert found.standard_errors is not None
        torch.testing.assert_close(found.standard_errors, single.std(dim=0) / N**0.5)
        first, second = whole.scores.argsort(descending=True)[:2]
        gaps = single[:, first] - single[:, second]
        assert found.lead == pytest.approx(float(gaps.mean()))
        assert found.lead_error == pytest.approx(float(gaps.std() / N**0.5))

    def test_two_trials_are_enough(self, lm: LanguageModel, question: Question) -> None:
        found = self.ask(lm, question, 2)
        assert found.standard_errors is not None
        assert found.lead_error is not None

    def test_they_tell_how_far_the_exact_expectation_is(
        self, lm: LanguageModel, question: Question
    ) -> None:
        """Over many seeds, the squared distance in standard errors is about 1."""
        exact = self_ensemble(lm, question, 2, grouping="exact").scores
        squared = []
        for seed in range(40):
            scores = self_ensemble(lm, question, 2, 30, seed).scores
            errors = self.ask(lm, question, 30, seed).standard_errors
            assert errors is not None
            squared.append(((scores - exact) / errors) ** 2)
        assert 0.6 < float(torch.stack(squared).mean()) < 2

    def test_nothing_is_sampled_by_exact_and_standard(
        self, lm: LanguageModel, question: Question
    ) -> None:
        found = self.ask(lm, question, 1, grouping="exact")
        assert found.standard_errors is not None
        torch.testing.assert_close(found.standard_errors, torch.zeros(5, dtype=torch.float64))
        assert found.lead_error == 0
        plan = Standard().plan(lm, question)
        assert uncertainty(plan.groups, standard(lm, question)).lead_error == 0

    @pytest.mark.parametrize(
        ("trials", "options"),
        [(1, {}), (6, {"grouping": "balanced"}), (6, {"grouping": "independent"})],
    )
    def test_it_says_so_where_the_trials_cannot_tell(
        self, lm: LanguageModel, question: Question, trials: int, options: dict[str, Any]
    ) -> None:
        found = self.ask(lm, question, trials, **options)
        assert found.standard_errors is None
        assert found.lead_error is None
        assert found.lead >= 0
