"""The shipped checkpoints and the world they were trained on."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import LanguageModel, load, self_ensemble, standard
from minise.commands.options import QUESTION
from minise.data.miniature import draw_wrong, evaluation_questions, held_out, load_facts
from minise.errors import InputError
from minise.layout import causal_mask
from minise.prompt import DEFAULT_TEMPLATE, NULL_OPTION
from minise.writing.chat import chat_template, stop_tokens
from tools import train_miniature
from tools.train_miniature import CHOICES, SHARES, multiple_choice

ROOT = Path(__file__).parents[2]
SHIPPED = ("tiny-llama", "tiny-mistral", "tiny-qwen2")
WRITTEN = ("config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module", params=SHIPPED)
def shipped(request: pytest.FixtureRequest) -> LanguageModel:
    return load(f"weights/{request.param}")


class TestTheWorld:
    def test_every_fact_has_one_right_answer_and_enough_wrong_ones(self) -> None:
        facts = load_facts()
        assert len(facts) > 500
        assert len({fact.question for fact in facts}) == len(facts)
        for fact in facts:
            assert fact.answer not in fact.others
            assert len(set(fact.others)) == len(fact.others) >= 13
            assert len(fact.plausibility) == len(fact.others)
            assert fact.statement.endswith(f"{fact.answer}.")

    def test_the_best_known_fact_of_a_kind_appears_far_more_often_than_the_least_known(
        self,
    ) -> None:
        capitals = [fact for fact in load_facts() if fact.kind == "capital"]
        assert [fact.frequency for fact in capitals[:2]] == [1.0, pytest.approx(2**-1.25)]
        assert capitals[-1].frequency < 0.01

    def test_wrong_choices_near_the_answer_in_fame_are_drawn_more_often(self) -> None:
        fact = next(fact for fact in load_facts() if fact.answer == "Madrid")
        near, far = fact.others[:10], fact.others[-50:]
        draw = random.Random("wrong")
        drawn = Counter(w for _ in range(2000) for w in draw_wrong(fact, 3, draw))
        assert min(drawn[w] for w in near) > 4 * max(drawn[w] for w in far)
        assert sum(drawn.values()) == 6000
        assert len(set(draw_wrong(fact, 7, draw))) == 7


class TestTheEvaluation:
    def test_questions_are_the_same_everywhere_and_their_answers_are_right(self) -> None:
        answers = {fact.question: fact.answer for fact in load_facts()}
        questions = evaluation_questions(100, 8, seed=0)
        assert questions == evaluation_questions(200, 8, seed=0)[:100]
        assert questions != evaluation_questions(100, 8, seed=1)
        assert len({question.id for question in questions}) == 100
        for question in questions:
            assert len(set(question.choices)) == 8
            assert question.answer is not None
            assert question.choices[question.answer] == answers[question.text]
        places = Counter(question.answer for question in evaluation_questions(800, 8, seed=0))
        assert min(places.values()) > 60
        assert questions[0].choices == FIRST

    def test_fewer_choices_are_a_subset_in_the_same_order_with_the_same_answer(self) -> None:
        versions = [evaluation_questions(50, k, seed=2) for k in range(2, 9)]
        for nested in zip(*versions, strict=True):
            for less, more in pairwise(nested):
                assert (less.id, less.text) == (more.id, more.text)
                assert [c for c in more.choices if c in less.choices] == list(less.choices)
                assert less.choices[less.answer or 0] == more.choices[more.answer or 0]

    def test_training_never_shows_an_evaluation_question_in_any_order(self) -> None:
        facts, draw = load_facts(), random.Random("test")
        shares: Counter[int] = Counter()
        for _ in range(3000):
            prompt, label = multiple_choice(facts, draw)
            question, *lines = prompt.split("\n")[:-1]
            choices = [line.split(") ", 1)[1] for line in lines]
            shown = [choice for choice in choices if choice != "None of the above"]
            assert not held_out(question, shown)
            assert label in [f" {line[1]}" for line in lines]
            shares[len(shown)] += 1
        for k, share in CHOICES.items():
            assert shares[k] / 3000 == pytest.approx(share, abs=0.03)
        for k in (2, 4, 8):
            for question in evaluation_questions(50, k, seed=0):
                assert held_out(question.text, question.choices)
                assert held_out(question.text, question.choices[::-1])

    @pytest.mark.parametrize("k", [1, 9])
    def test_other_numbers_of_choices_are_refused(self, k: int) -> None:
        with pytest.raises(InputError, match=f"2 to 8 choices, not {k}"):
            evaluation_questions(1, k, 0)


FIRST = ("flew", "stole", "caught", "slept", "chose", "froze", "fell", "hid")


class TestTheCheckpoints:
    def test_each_checkpoint_uses_the_features_of_its_family(self) -> None:
        llama, mistral, qwen2 = (load(f"weights/{name}") for name in SHIPPED)
        assert llama.config.rope_scaling.rope_type == "llama3"
        assert llama.config.num_key_value_heads < llama.config.num_attention_heads
        assert qwen2.config.qkv_bias
        assert all(p.any() for n, p in qwen2.decoder.named_parameters() if n.endswith("_proj.bias"))
        assert llama.config.tie_word_embeddings
        assert qwen2.config.tie_word_embeddings
        assert not mistral.config.tie_word_embeddings
        (window,) = set(mistral.config.sliding_windows)
        assert window is not None
        (ids,) = mistral.tokenizer.encode(
            [QUESTION.text + "".join(f"\n(A) {choice}" for choice in QUESTION.choices)]
        )
        assert window < len(ids)

    def test_all_checkpoints_together_are_small(self) -> None:
        files = [path for path in (ROOT / "weights").rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < 20e6
        assert {path.parent.name for path in files} == {*SHIPPED, "tiny-reasoner"}

    def test_each_checkpoint_answers_the_built_in_question(self, shipped: LanguageModel) -> None:
        answer = self_ensemble(shipped, QUESTION)
        assert QUESTION.choices[answer.prediction] == "Ottawa"

    def test_a_group_without_the_answer_prefers_none_of_the_above(
        self, shipped: LanguageModel
    ) -> None:
        answer = self_ensemble(shipped, QUESTION)
        right = QUESTION.answer
        without = [group.null or 0 for group in answer.groups if right not in group.choices]
        within = [group.null or 0 for group in answer.groups if right in group.choices]
        assert sum(without) / len(without) > 0.5 > sum(within) / len(within)

    def test_a_short_evaluation_agrees_with_the_card(self, shipped: LanguageModel) -> None:
        """Within the card's interval, plus three standard errors of so few questions."""
        n = 80
        questions = evaluation_questions(n, 8, seed=0)
        card = (ROOT / shipped.name / "README.md").read_text()
        for method, ask in (
            ("standard", standard),
            ("self-ensemble", lambda lm, q: self_ensemble(lm, q, seed=0)),
        ):
            right = sum(ask(shipped, q).prediction == q.answer for q in questions)
            low, high = card_interval(card, method)
            spread = 100 * 3 * (0.25 / n) ** 0.5
            assert low - spread <= 100 * right / n <= high + spread

    def test_the_card_names_the_files_by_their_hashes(self) -> None:
        for name in SHIPPED:
            folder = ROOT / "weights" / name
            card = (folder / "README.md").read_text()
            for file in (*WRITTEN, "model.safetensors"):
                digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
                assert f"`{file}` {digest}" in card

    def test_no_chat_template_makes_a_chat_model_of_a_base_model(
        self, shipped: LanguageModel
    ) -> None:
        assert chat_template(shipped) is None
        assert stop_tokens(shipped) == [1]

    @pytest.mark.parametrize("name", [*SHIPPED, "tiny-reasoner"])
    def test_the_reference_librarys_tokenizer_gives_the_same_ids(self, name: str) -> None:
        """On the texts of this world. For every Qwen2 the library has rules of its own (for digits,
        and for letters with accents written as two characters), whatever the checkpoint says."""
        transformers = pytest.importorskip("transformers", reason="extra [transformers]")
        theirs = transformers.AutoTokenizer.from_pretrained(f"weights/{name}")
        texts = [fact.statement for fact in load_facts()]
        for question in evaluation_questions(100, 8, seed=0):
            texts.append(DEFAULT_TEMPLATE.render(question.text, [*question.choices, NULL_OPTION]))
        if name != "tiny-qwen2":
            texts += ["e\u0301 12345 <s>", "\n\n  x\r\n", "don't  do ."]
        lm = load(f"weights/{name}")
        for special in (True, False):
            mine = lm.tokenizer.encode(texts, add_special_tokens=special)
            assert theirs(texts, add_special_tokens=special)["input_ids"] == mine
        assert [theirs.decode(ids) for ids in mine] == [lm.tokenizer.decode(ids) for ids in mine]
        assert [theirs.eos_token_id] == stop_tokens(lm)
        assert theirs.bos_token_id == (None if name == "tiny-qwen2" else 0)
        assert (theirs.chat_template is None) == (chat_template(lm) is None)


def card_interval(card: str, method: str) -> tuple[float, float]:
    """The interval of the accuracy at eight choices on the card, in percent: the last cell of
    the method's row."""
    (row,) = re.findall(rf"^\| {method} \|.*\|$", card, re.MULTILINE)
    low, high = re.findall(r"\[([\d.]+), ([\d.]+)\]", row)[-1]
    return float(low), float(high)


class TestTheTraining:
    @pytest.fixture(autouse=True)
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("QUESTIONS", "STATEMENTS", "OPEN"):
            monkeypatch.setattr(train_miniature, name, 4)

    @pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
    def test_the_training_writes_a_checkpoint_like_the_shipped_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
    ) -> None:
        train(monkeypatch, tmp_path, family)
        lm = load(tmp_path)
        assert float(standard(lm, QUESTION).probabilities.sum()) == pytest.approx(1)
        for file in WRITTEN:
            shipped = ROOT / f"weights/tiny-{family}" / file
            assert json.loads((tmp_path / file).read_text()) == json.loads(shipped.read_text())

    def test_a_control_has_no_window_and_as_many_questions_of_eight_choices_as_of_two(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train(monkeypatch, tmp_path, "mistral", 1, "--window", "0", "--choices", "evenly")
        assert set(load(tmp_path).config.sliding_windows) == {None}
        facts, draw = load_facts(), random.Random("evenly")
        prompts = [multiple_choice(facts, draw, SHARES["evenly"])[0] for _ in range(2000)]
        listed = Counter(
            prompt.count("\n(") - ("None of the above" in prompt) for prompt in prompts
        )
        assert sorted(listed) == [2, 3, 4, 5, 6, 7, 8]
        assert all(abs(count / 2000 - 1 / 7) < 0.03 for count in listed.values())
        with pytest.raises(SystemExit):
            train(monkeypatch, tmp_path, "llama", 1, "--window", "8")

    @pytest.mark.parametrize("family", ["llama", "mistral"])
    def test_the_losses_are_those_of_a_run_under_a_causal_mask(self, family: str) -> None:
        lm, facts = load(f"weights/tiny-{family}", dtype=torch.float64), load_facts()
        texts = train_miniature.short_texts(facts, 4, 2, 2, "", random.Random(0))
        longest = 0
        for tokens, targets, labels in train_miniature.batch(texts, lm.tokenizer):
            T = tokens.shape[1]
            hidden = lm.decoder(tokens, torch.arange(T), causal_mask(T))
            loss = torch.nn.functional.cross_entropy(
                lm.decoder.logits(hidden).flatten(0, 1),
                targets.flatten(),
                ignore_index=train_miniature.IGNORED,
                reduction="none",
            ).view_as(targets)
            sums, counts = train_miniature.losses(lm.decoder, tokens, targets, labels)
            expected = torch.stack([loss[labels].sum(), loss[~labels].sum()])
            torch.testing.assert_close(sums, expected)
            read = targets != train_miniature.IGNORED
            assert counts.tolist() == [int(labels.sum()), int((read & ~labels).sum())]
            longest = max(longest, T)
        assert longest > 40  # the window of tiny-mistral

    def test_an_interrupted_training_continues_to_the_same_weights(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        train(monkeypatch, whole, "qwen2")
        monkeypatch.setattr(train_miniature, "SAVE_EVERY", 1)
        advance = train_miniature.Training.advance

        def stop(self: train_miniature.Training, parts: Any) -> None:
            if self.step == 2:
                raise KeyboardInterrupt
            advance(self, parts)

        monkeypatch.setattr(train_miniature.Training, "advance", stop)
        with pytest.raises(KeyboardInterrupt):
            train(monkeypatch, cut, "qwen2")
        assert not (cut / "model.safetensors").exists()
        monkeypatch.setattr(train_miniature.Training, "advance", advance)
        with pytest.raises(SystemExit, match="belongs to the training"):
            train(monkeypatch, cut, "qwen2", steps=4)
        train(monkeypatch, cut, "qwen2")
        assert not (cut / "training.pt").exists()
        weights = [(folder / "model.safetensors").read_bytes() for folder in (whole, cut)]
        assert weights[0] == weights[1]


def train(
    monkeypatch: pytest.MonkeyPatch, folder: Path, family: str, steps: int = 3, *more: str
) -> None:
    command = ["train_miniature.py", str(folder), "--family", family, "--steps", str(steps), *more]
    monkeypatch.setattr(sys, "argv", command)
    train_miniature.main()
