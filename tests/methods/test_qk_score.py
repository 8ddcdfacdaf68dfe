"""QK-score: scores of heads by their definition, and a head that other questions choose."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("sklearn")

import numpy as np
import torch
from scipy.special import softmax

from minise import InputError, LanguageModel, Question, ask, load
from minise.layout import causal_mask
from minise.method import Standard
from minise.methods.qk_score import QKHeads, QKScore, best_head, end_rows, head_scores
from minise.methods.sample import Sample
from minise.prompt import DEFAULT_TEMPLATE

FOUR = Question("Which one flies?", ["eel", "a cat", "owl", "an ant"])


def scored(scores: object, answer: int, id: str) -> Sample:
    p = [1 / 3] * 3
    return Sample(id, 0, "", answer, 0, p, p, 17, 0.5, notes={"qk": np.asarray(scores).tolist()})


def draw_cell(n: int) -> list[Sample]:
    """Two heads: noise, and one that mostly points to the right one of three choices."""
    draw = np.random.default_rng(0)
    cell = []
    for i in range(n):
        scores, answer = draw.normal(size=(2, 3)), int(draw.integers(3))
        scores[1, answer] += 2
        cell.append(scored(scores, answer, f"q{i}"))
    return cell


def test_a_score_is_the_last_query_dot_the_key_at_the_end_of_the_line(lm: LanguageModel) -> None:
    """Layer by layer from the projections, without rotation, whatever attention does with it."""
    plan = QKHeads().plan(lm, FOUR)
    ids = [*plan.prefix, *plan.prompts[0].ids]
    ends, last = end_rows(lm, DEFAULT_TEMPLATE, FOUR, ids)
    newlines = [row for row, token in enumerate(ids) if token == ids[ends[0]]]
    assert ends == newlines[1:]  # the first ends the question
    assert last == [row - 1 for row in ends]
    layers = lm.decoder.model.layers
    inputs = []
    hooks = [
        layer.self_attn.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
        for layer in layers
    ]
    with torch.no_grad():
        lm.decoder(torch.tensor(ids), torch.arange(len(ids)), causal_mask(len(ids)))
    for hook in hooks:
        hook.remove()
    got = head_scores(lm, ids, ends)
    h, H = lm.config.head_dim, lm.config.num_attention_heads
    group = H // lm.config.num_key_value_heads
    assert got.shape == (len(layers), H, 4)
    for number, layer in enumerate(layers):
        attention = layer.self_attn
        q = attention.q_norm(attention.q_proj(inputs[number][0, -1]).view(H, h))
        for i, row in enumerate(ends):
            k = attention.k_norm(attention.k_proj(inputs[number][0, row]).view(-1, h))
            for head in range(H):
                expected = float(q[head] @ k[head // group]) / math.sqrt(h)
                assert float(got[number, head, i]) == pytest.approx(expected, abs=1e-9)


def test_the_method_that_reads_heads_answers_as_standard_inference(lm: LanguageModel) -> None:
    method = QKHeads()
    plan, answer = method.plan(lm, FOUR), ask(lm, method, FOUR)
    assert torch.equal(answer.probabilities, ask(lm, Standard(), FOUR).probabilities)
    notes = method.notes(lm, plan, answer, 0)
    ids = [*plan.prefix, *plan.prompts[0].ids]
    places = [head_scores(lm, ids, rows) for rows in end_rows(lm, DEFAULT_TEMPLATE, FOUR, ids)]
    expected = torch.stack(places, dim=2).reshape(-1, 4)  # layers, heads, places
    np.testing.assert_allclose(notes["qk"], expected, rtol=0, atol=1e-12)


def test_lines_and_texts_of_a_shipped_tokenizer_are_read_at_their_ends() -> None:
    lm = load("weights/tiny-llama")
    plan = QKHeads().plan(lm, FOUR)
    ids = [*plan.prefix, *plan.prompts[0].ids]
    lines, texts = end_rows(lm, DEFAULT_TEMPLATE, FOUR, ids)
    for line, text, choice in zip(lines, texts, FOUR.choices, strict=True):
        assert lm.tokenizer.decode(ids[: text + 1]).endswith(choice)
        assert lm.tokenizer.decode(ids[: line + 1]).endswith(f"{choice}\n")


def test_the_head_is_right_most_often_then_most_likely_then_first() -> None:
    answers = np.array([0, 1])
    wrong, right = [[0.0, 1], [1, 0]], [[1.0, 0], [0, 1]]
    sharp = [[3.0, 0], [0, 3]]
    heads = np.stack([np.array(one, dtype=float) for one in (wrong, right, sharp, sharp)], axis=1)
    assert best_head(heads, answers) == 2
    assert best_head(heads[:, :2], answers) == 1
    assert best_head(heads[:, 2:], answers) == 0


def test_a_sample_becomes_the_softmax_of_the_chosen_head() -> None:
    cell = draw_cell(40)
    new = QKScore().fit({"qk-heads": cell})
    for one, given in zip(new, cell, strict=True):
        assert one.probabilities == pytest.approx(softmax(given.notes["qk"][1]))
        assert (one.id, one.tokens, one.notes, one.seconds) == (given.id, 17, None, None)
    assert sum(one.prediction == one.answer for one in new) > 24


def test_a_question_has_no_part_in_the_choice_of_its_own_head() -> None:
    """Five questions and five heads, of which each is right about one question alone. By the other
    questions any head is better than the one that is right about this question."""
    cell = []
    for i in range(5):
        scores = np.zeros((5, 2))
        scores[:, 1] = 1  # every right answer is 0
        scores[i] = [1, 0]
        cell.append(
            Sample(f"q{i}", 0, "", 0, 0, [0.5] * 2, [0.5] * 2, 1, notes={"qk": scores.tolist()})
        )
    new = QKScore().fit({"qk-heads": cell})
    assert [one.prediction for one in new] == [1] * 5
    together = [replace(one, cluster="one fact" if i < 2 else f"{i}") for i, one in enumerate(cell)]
    assert [one.prediction for one in QKScore(folds=4).fit({"qk-heads": together})] == [1] * 5


@pytest.mark.parametrize("notes", [None, {}, {"qk": [[math.nan] * 3]}])
def test_samples_without_scores_are_refused(notes: dict[str, object] | None) -> None:
    cell = [*draw_cell(9), replace(draw_cell(1)[0], id="x", notes=notes)]
    with pytest.raises(InputError, match="question x: no scores of heads; run qk-heads again"):
        QKScore().fit({"qk-heads": cell})


def test_questions_that_it_cannot_be_fitted_on_are_refused_before_the_run() -> None:
    questions = [Question(f"Q{i}", ["a", "b"], answer=0) for i in range(4)]
    with pytest.raises(InputError, match="4 questions for 5 folds"):
        QKScore().check([(0, one) for one in questions])
    with pytest.raises(InputError, match="qk-score is fitted on answers"):
        QKScore().check([(0, Question("Q", ["a", "b"]))])
    QKScore().check([(0, one) for one in [*questions, Question("Q", ["a", "c"], answer=1)]])
