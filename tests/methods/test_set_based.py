"""Set-Based Prompting: its layout, its readout, and equal bits for every order of the choices."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch
from tokenizers import models, pre_tokenizers

from minise import InputError, LanguageModel, Question, load
from minise import ask as ask_method
from minise.grouping import Groups
from minise.method import label_logits
from minise.methods.set_based import SetBased, SetPlan
from minise.methods.text_reads import Read
from minise.methods.uncertainty import uncertainty
from minise.names import ENGINES
from minise.tokenizer import Tokenizer
from tests.support.tiny import FAMILIES, load_tiny, make_tokenizer

FOUR = Question("Which one flies?", ["eel", "a cat", "owl", "an ant"], answer=2)
SHIPPED = ("tiny-llama", "tiny-mistral", "tiny-qwen2")


def text_log_probability(lm: LanguageModel, question: Question, choice: str) -> float:
    """By the definition: one sequence of question, choices, cue and this choice's text, with mask
    and positions set cell by cell, and a softmax over the vocabulary for each token."""

    def ids(text: str) -> list[int]:  # without the beginning token
        return lm.tokenizer.encode([text])[0][len(lm.tokenizer.encode([""])[0]) :]

    start = lm.tokenizer.encode([f"{question.text}\n"])[0]
    parts = [start, *(ids(f"{one}\n") for one in question.choices), ids("Answer:")]
    parts[-1] = parts[-1] + (answer := ids(f" {choice}"))
    tokens = [token for part in parts for token in part]
    owner = [number for number, part in enumerate(parts) for _ in part]
    longest = max(map(len, parts[1:-1]))
    begins = [0, *[len(start)] * len(question.choices), len(start) + longest]
    positions = [begins[n] + k for n, part in enumerate(parts) for k in range(len(part))]
    T, last = len(tokens), len(parts) - 1
    mask = torch.zeros(T, T, dtype=torch.bool)
    for row in range(T):
        for column in range(row + 1):
            mask[row, column] = owner[column] in (0, owner[row]) or owner[row] == last
    hidden = lm.decoder(torch.tensor(tokens), torch.tensor(positions), mask)
    log_p = lm.decoder.logits(hidden).log_softmax(dim=-1)
    return sum(float(log_p[T - len(answer) + k - 1, token]) for k, token in enumerate(answer))


class TestTheNumbers:
    def test_the_answer_equals_the_definition(self, lm: LanguageModel) -> None:
        log_p = torch.tensor([text_log_probability(lm, FOUR, one) for one in FOUR.choices]).double()
        answer = ask_method(lm, SetBased(), FOUR)
        torch.testing.assert_close(answer.probabilities, log_p.softmax(0), rtol=0, atol=1e-6)
        lengths = torch.tensor([len(f" {one}") for one in FOUR.choices])  # of bytes, here tokens
        expected = (log_p / lengths).softmax(0)
        answer = ask_method(lm, SetBased(per_token=True), FOUR)
        torch.testing.assert_close(answer.probabilities, expected, rtol=0, atol=1e-6)
        assert answer.prediction == int(expected.argmax())

    def test_the_readout_by_hand(self) -> None:
        """Two choices with texts of tokens (1, 2) and (3). p(1) = .2, then p(2) = .5; p(3) = .3.
        .1 and .3 make .25 and .75; per token sqrt(.1) = .316 and .3."""
        rows = [[0.1, 0.2, 0.4, 0.3], [0.1, 0.2, 0.5, 0.2]]
        logits = [torch.tensor(row, dtype=torch.float64).log() + 5 for row in rows]
        reads = (Read(1, prompts=(0, 1), tokens=(1, 2)), Read(0, prompts=(0,), tokens=(3,)))
        plan = SetPlan(FOUR, Groups((((0, 1),),)), [], [], reads=reads)
        answer = SetBased().answer(plan, logits)
        assert answer.probabilities.tolist() == pytest.approx([0.75, 0.25])
        assert answer.prediction == 0
        answer = SetBased(per_token=True).answer(plan, logits)
        root = 0.1**0.5
        assert answer.probabilities.tolist() == pytest.approx(
            [0.3 / (0.3 + root), root / (0.3 + root)]
        )
        assert answer.prediction == 1

    def test_the_layout_of_a_small_question(self, lm: LanguageModel) -> None:
        """Choices "b" and "aa" behind a question of |Q| tokens: both begin at |Q|, the cue at
        |Q| + 3, the length of the longer line. The text is run up to its last token but one."""
        plan = SetBased().plan(lm, Question("Q", ["b", "aa"]))
        assert plan.layout is not None
        Q, cue = len(plan.prefix), len("Answer:")
        positions = [*range(Q), Q, Q + 1, Q + 2, Q, Q + 1]  # "aa\n" before "b\n"
        positions += [Q + 3 + k for k in range(cue)]
        positions += [Q + 3 + cue, Q + 4 + cue]  # " a" of " aa"; of " b" the " "
        assert plan.layout.positions.tolist() == positions
        assert plan.tokens("tree") == plan.tokens("separate") == len(positions)
        mask = plan.layout.mask
        first, second, after = range(Q, Q + 3), range(Q + 3, Q + 5), range(Q + 5, len(positions))
        assert not mask[list(second)][:, list(first)].any()
        assert not mask[list(first)][:, list(second)].any()
        assert mask[list(after)][:, : Q + 5].all()
        assert (mask[: Q + 5, Q + 5 :] == 0).all()
        longest = max(len(plan.prefix) + len(prompt.ids) for prompt in plan.prompts)
        assert longest == int(plan.layout.positions.max()) + 1

    def test_texts_that_begin_alike_are_run_once(self, lm: LanguageModel) -> None:
        """The beginning runs once for one choice, but each choice has its own line, because the cue
        reads them all."""
        different, alike = (
            SetBased().plan(lm, Question("Q", choices)).tokens("tree")
            for choices in (["one", "two"], ["ona", "onb"])
        )
        assert different - alike == len("on")

    def test_equal_choices_get_equal_shares(self, lm: LanguageModel) -> None:
        answer = ask_method(lm, SetBased(), Question("Q", ["owl", "cat", "owl"]))
        assert answer.probabilities[0] == answer.probabilities[2]


class TestTheBits:
    @pytest.mark.parametrize("name", SHIPPED)
    def test_all_orders_of_the_choices_give_the_same_bits(self, name: str) -> None:
        model = load(f"weights/{name}")
        question = Question(
            "What is the capital of Canada?", ["New Delhi", "Ottawa", "Kingston", "Athens"]
        )
        for method in (SetBased(), SetBased(per_token=True)):
            answer = ask_method(model, method, question)
            predictions = set()
            for order in permutations(range(4)):
                turned = Question(question.text, [question.choices[i] for i in order])
                turned_answer = ask_method(model, method, turned)
                assert torch.equal(turned_answer.probabilities, answer.probabilities[list(order)])
                assert torch.equal(turned_answer.scores, answer.scores[list(order)])
                assert order[turned_answer.prediction] == answer.prediction
                predictions.add(turned_answer.prediction)
            assert len(predictions) == 4

    def test_even_the_sequence_of_tokens_is_the_same_for_every_order(
        self, lm: LanguageModel
    ) -> None:
        first = SetBased().plan(lm, FOUR).layout
        other = SetBased().plan(lm, Question(FOUR.text, FOUR.choices[::-1])).layout
        assert first is not None
        assert other is not None
        for part in ("tokens", "positions", "mask", "ends"):
            assert torch.equal(getattr(first, part), getattr(other, part))

    def test_no_draw_makes_the_answer_uncertain(self, lm: LanguageModel) -> None:
        plan = SetBased().plan(lm, FOUR)
        answer = SetBased().answer(plan, label_logits(lm, plan))
        assert uncertainty(plan.groups, answer).lead_error == 0

    def test_every_engine_gives_the_same_answer(self, lm: LanguageModel) -> None:
        p = [ask_method(lm, SetBased(), FOUR, engine=engine).probabilities for engine in ENGINES]
        assert all(torch.equal(p[0], one) for one in p)


class TestRefusals:
    def test_a_tokenizer_that_merges_across_a_line_is_refused(self, tmp_path: Path) -> None:
        lm = load_tiny(tmp_path, FAMILIES["llama"])
        backend = make_tokenizer()
        vocabulary = backend.get_vocab()
        vocabulary["ĊA"] = len(vocabulary)
        merges = [("Ġ", letter) for letter in "ZYXWVUTSRQPONMLKJIHGFEDCBA"]
        backend.model = models.BPE(vocab=vocabulary, merges=[*merges, ("Ċ", "A")])
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        merging = LanguageModel(lm.name, lm.config, lm.decoder, Tokenizer(backend, "merging"))
        with pytest.raises(InputError, match="merging: a choice, 'Answer:' and the text after it"):
            SetBased().plan(merging, FOUR)

    def test_texts_that_are_too_long_are_refused(self, lm: LanguageModel) -> None:
        """One choice of 1,000 bytes is too long. Four of 300 are placed side by side and fit in
        1,024 positions."""
        long = [letter * 300 for letter in "abcd"]
        plan = SetBased().plan(lm, Question("Q", long))
        assert plan.tokens("tree") > lm.config.max_position_embeddings
        assert all(row.isfinite().all() for row in label_logits(lm, plan))
        with pytest.raises(InputError, match="positions for 1024"):
            ask_method(lm, SetBased(), Question("Q", ["a" * 1000, "b"]))

    def test_a_mask_beyond_the_memory_is_refused(
        self, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minise.engines.free_bytes", lambda device: 1000)
        with pytest.raises(InputError, match="packed tokens need a mask"):
            SetBased().plan(lm, FOUR)
