"""Questions of two hops, and the checkpoint that writes their steps."""

from __future__ import annotations

import hashlib
import random
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minise import LanguageModel, load
from minise.data.miniature import evaluation_questions, held_out, load_hops, shown
from minise.data.tasks import Selection, load_tasks
from minise.methods import reasoning
from minise.methods.reasoning import ChainOfThought, Reasoning
from minise.question import Question
from minise.writing.generation import Generation
from tools import train_miniature
from tools.train_miniature import END, GIVEN, LABEL, MIX, WRITTEN, reasoning_texts, with_steps

ROOT = Path(__file__).parents[2]
HOPS = "miniature-hops"
FOLDER = ROOT / "weights/tiny-reasoner"


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return load("weights/tiny-reasoner")


class TestTheQuestions:
    def test_each_question_joins_two_facts_by_what_they_share(self) -> None:
        facts, hops = load_hops()
        statements = {fact.statement: fact for fact in facts}
        used = set()
        for hop in hops:
            end = next(i for i in range(len(hop.statement)) if hop.statement[:i] in statements)
            first, second = hop.statement[:end], hop.statement[end + 1 :]
            assert statements[first].answer in second
            assert statements[second].answer == hop.answer
            assert hop.answer not in hop.others
            used |= {first, second}
        assert used == set(statements)
        assert len({hop.question for hop in hops}) == len(hops) > 100

    def test_no_question_is_shown_directly_in_the_training(self) -> None:
        texts = {hop.question: hop for hop in load_hops()[1]}
        questions = evaluation_questions(300, 8, 0, HOPS)
        assert {shown(question.text) for question in questions} == {"with steps", "never"}
        for question in questions:
            assert question.choices[question.answer or 0] == texts[question.text].answer

    def test_the_same_seed_draws_the_same_questions(self) -> None:
        questions = evaluation_questions(30, 8, 0, HOPS)
        assert questions == evaluation_questions(60, 8, 0, HOPS)[:30]
        assert questions != evaluation_questions(30, 8, 1, HOPS)

    def test_smaller_sets_of_choices_are_parts_of_larger_ones_and_all_are_held_out(self) -> None:
        tasks = load_tasks([HOPS], Selection(questions=30, cut_to=(2, 4, 6, 8), seed=3))
        assert [task.name for task in tasks] == [f"{HOPS}-k{k}" for k in (2, 4, 6, 8)]
        for less, more in pairwise(tasks):
            for few, many in zip(less.questions, more.questions, strict=True):
                assert few.text == many.text
                assert [c for c in many.choices if c in few.choices] == list(few.choices)
        for task in tasks:
            assert all(held_out(q.text, q.choices[::-1]) for q in task.questions)


def choices_in(text: str) -> list[str]:
    return re.findall(r"^\([A-Z]\) (.+)$", text, re.MULTILINE)


def joined(text: train_miniature.Text, *kinds: int) -> str:
    return "".join(piece for kind, piece in text if kind in kinds)


class TestTheTraining:
    def test_training_shows_no_evaluation_question_and_has_the_stated_mix(
        self, lm: LanguageModel
    ) -> None:
        facts, hops = load_hops()
        kinds = {hop.question: shown(hop.question) for hop in hops}
        for step in range(3):
            texts = reasoning_texts(facts, hops, lm, "", random.Random(f"test/{step}"))
            assert len(texts) == sum(MIX.values())
            for text in texts:
                prompt = joined(text[:1], GIVEN)
                question = next((q for q in kinds if q in prompt), None)
                if question is None:
                    continue
                listed = [c for c in choices_in(prompt) if c != "None of the above"]
                assert not held_out(question, listed)
                steps = "So the answer is" in joined(text, WRITTEN)
                assert kinds[question] in (("directly", "with steps") if steps else ("directly",))

    @pytest.mark.parametrize("name", ["cot", "reasoning"])
    def test_the_texts_of_the_training_are_those_that_the_methods_read(
        self, lm: LanguageModel, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        draw, hops = random.Random(f"test/{name}"), load_hops()[1]
        count = 0
        while count < 6:
            text = with_steps(hops, name, lm, "<end>", draw)
            choices = choices_in(text[0][1])
            count += 1
            chat = "Model:" in text[0][1]
            method: Any = {
                "cot": ChainOfThought(chat=chat),
                "reasoning": Reasoning(),
            }[name]
            written = joined(text, WRITTEN).removesuffix("\n\nAnswer:")

            def write(
                lm: LanguageModel, prompts: list[str], *_: Any, **__: Any
            ) -> list[Generation]:
                assert prompts == [text[0][1]]  # noqa: B023
                return [Generation([1], written, "stop")]  # noqa: B023

            monkeypatch.setattr(reasoning, "generate", write)
            question = Question(text[0][1].split("\n")[0].removeprefix("User: "), choices)
            plan = method.write(lm, method.plan(lm, question))
            ((*ids, label),) = lm.tokenizer.encode([joined(text, GIVEN, WRITTEN, LABEL)])
            prompts = [prompt for prompt in plan.prompts if plan.prefix + prompt.ids == ids]
            assert label in prompts[0].label_ids

    def test_a_batch_holds_the_token_ids_of_each_whole_text(self, lm: LanguageModel) -> None:
        facts, hops = load_hops()
        eos = lm.tokenizer.backend.id_to_token(1)
        for text in reasoning_texts(facts, hops, lm, eos, random.Random("whole")):
            ((tokens, targets, labels),) = train_miniature.batch([text], lm.tokenizer)
            (whole,) = lm.tokenizer.encode([joined(text, GIVEN, WRITTEN, LABEL)])
            assert tokens[0].tolist() == whole[: tokens.shape[1]]
            learned = [i for i, t in enumerate(targets[0].tolist()) if t not in (1, -100)]
            assert [targets[0, i] for i in learned] == [whole[i + 1] for i in learned]
            assert int((targets == 1).sum()) == sum(kind == END for kind, _ in text)
            assert int(labels.sum()) == sum(kind == LABEL for kind, _ in text)

    def test_the_training_continues_a_checkpoint_and_writes_one_with_its_template(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(train_miniature, "MIX", dict.fromkeys(MIX, 1))
        command = f"x {tmp_path} --family llama --reasoning weights/tiny-llama --steps 1"
        monkeypatch.setattr(sys, "argv", command.split())
        train_miniature.main()
        lm = load(tmp_path)
        assert float(lm.decoder.model.embed_tokens.weight.std()) == pytest.approx(
            float(load("weights/tiny-llama").decoder.model.embed_tokens.weight.std()), rel=0.1
        )
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            assert (tmp_path / name).read_text() == (FOLDER / name).read_text()


class TestTheCheckpoint:
    @pytest.mark.parametrize(
        ("method", "end"),
        [(ChainOfThought(), ""), (Reasoning(), r"\n</think>\n\nAnswer: [A-H]")],
        ids=["cot", "reasoning"],
    )
    def test_the_checkpoint_writes_its_steps_and_stops(
        self, lm: LanguageModel, method: ChainOfThought, end: str
    ) -> None:
        form = r"[A-Z][^.]+\. [A-Z][^.]+\. So the answer is \([A-H]\) [^.]+\."
        questions = evaluation_questions(8, 4, 0, HOPS)
        texts = [method.write(lm, method.plan(lm, question)) for question in questions]
        assert not any(one.cut for one in texts)
        assert sum(re.fullmatch(form + end, one.text) is not None for one in texts) >= 6

    def test_the_card_names_the_files_by_their_hashes(self) -> None:
        card = (FOLDER / "README.md").read_text()
        for file in sorted(FOLDER.iterdir()):
            if file.name != "README.md":
                assert f"`{file.name}` {hashlib.sha256(file.read_bytes()).hexdigest()}" in card
