"""Methods that let the model write first: what is read after which text, and what is kept."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minise import LocalModel, Question, Template, ask, generate, load
from minise.errors import Unsuited
from minise.lab.data.asked import Asked
from minise.lab.evaluation.pipeline import Answered, answers
from minise.lab.methods.reasoning import ChainOfThought, Reasoning
from minise.lab.methods.writes_first import Start, Written
from minise.lab.writing import cache, generation
from minise.layout import causal_mask
from tests.reference.support.questions import OTHER, QUESTION

STOP = 7
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant] "
)
THINKING = TEMPLATE + "{# </think> #}"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint that names a stop token."""
    copy = Path(shutil.copytree(llama_folder, tmp_path / "model"))
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP}))
    return copy


@pytest.fixture
def model(folder: Path) -> LocalModel:
    return load(folder, dtype=torch.float64)


def with_template(folder: Path, template: str) -> LocalModel:
    settings = {"chat_template": template, "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load(folder, dtype=torch.float64)


def read_alone(lm: LocalModel, text: str, count: int) -> torch.Tensor:
    """The probabilities of the labels A, B, ... after a text, by a run of it alone."""
    (ids,) = lm.tokenizer.encode([text])
    labels = [lm.tokenizer.encode([f"{text} {letter}"])[0][-1] for letter in "ABCDE"[:count]]
    T = len(ids)
    with torch.inference_mode():
        hidden = lm.decoder(torch.tensor(ids), torch.arange(T), causal_mask(T))
        return lm.decoder.logits(hidden[-1])[labels].double().softmax(0)


def notes(lm: LocalModel, method: ChainOfThought, question: Question, seed: int = 0) -> dict:
    return ask(lm, method, question, seed).notes


class TestChainOfThought:
    def test_the_labels_are_read_after_the_text(
        self, model: LocalModel, question: Question
    ) -> None:
        start = f"{Template().render(question.text, question.choices)} Let's think step by step."
        (written,) = generate(model, [start], 30, stop_texts=["\n\n"])
        assert written.text
        expected = read_alone(model, f"{start}{written.text}".rstrip() + "\nAnswer:", 5)
        answer = ask(model, ChainOfThought(max_new_tokens=30), question)
        torch.testing.assert_close(answer.normalized, expected, rtol=0, atol=1e-12)
        assert answer.notes == {
            "reasoning": written.text,
            "new_tokens": len(written.tokens),
            "cut": not written.finished,
        }
        assert json.loads(json.dumps(answer.notes)) == answer.notes

    def test_a_chat_model_is_asked_by_its_template(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, TEMPLATE)
        start = ChainOfThought().start(lm, Asked(question)).text
        # The tokenizer adds the beginning token itself, so the template's is left out.
        assert start.startswith(f"[user] {question.text}\n(A) wren\n")
        assert start.endswith("(E) quartz\nLet's think step by step.[assistant] ")
        assert len(ask(lm, ChainOfThought(5), question).normalized) == 5

    def test_the_text_stops_while_the_positions_leave_room_for_the_cue(
        self, model: LocalModel, question: Question
    ) -> None:
        method = ChainOfThought(max_new_tokens=500)
        start = method.start(model, Asked(question))
        _, without = method.read(model, question, method.closed(start.text))
        longest = without.longest
        short = replace(model, config=replace(model.config, max_position_embeddings=longest + 12))
        assert method.start(short, Asked(question)).max_new_tokens == 12
        plan, _ = method.prompts(short, question)
        assert 0 < plan.written.new_tokens <= 12
        none_left = replace(model, config=replace(model.config, max_position_embeddings=longest))
        with pytest.raises(Unsuited, match="no room"):
            ask(none_left, method, question)

    def test_a_model_without_a_stop_token_is_refused(
        self, llama_folder: Path, question: Question
    ) -> None:
        with pytest.raises(Unsuited, match="stop token"):
            ask(load(llama_folder), ChainOfThought(), question)


class TestReasoning:
    def test_the_models_form_of_thoughts_is_used(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, THINKING)
        method = Reasoning(max_new_tokens=12)
        start = method.start(lm, Asked(question)).text
        assert start.endswith("\nAnswer with the letter of the right choice.[assistant] <think>\n")
        text = generate(lm, [start], 12, temperature=0.6, top_p=0.95, seed=3)[0].text
        answer = ask(lm, method, question, seed=3)
        expected = read_alone(lm, f"{start}{text}".rstrip() + "\n</think>\n\nAnswer:", 5)
        torch.testing.assert_close(answer.normalized, expected, rtol=0, atol=1e-12)

    def test_text_after_the_thoughts_is_not_used(self) -> None:
        closed = Reasoning().closed
        assert closed("Q <think>\nhm </think> The answer is B.") == "Q <think>\nhm </think>\n"
        assert closed("Q <think>\nhm \n") == "Q <think>\nhm\n</think>\n"

    def test_another_seed_draws_other_thoughts(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, THINKING)
        method = Reasoning(max_new_tokens=20)
        texts = [notes(lm, method, question, seed)["reasoning"] for seed in (0, 0, 1)]
        assert texts[0] == texts[1] != texts[2]

    def test_a_model_that_does_not_think_is_named(
        self, folder: Path, model: LocalModel, question: Question
    ) -> None:
        for lm in (model, with_template(folder, TEMPLATE)):
            with pytest.raises(Unsuited, match="no reasoning model"):
                ask(lm, Reasoning(), question)


class TestABlockOfQuestions:
    def test_a_question_has_the_text_and_the_answer_that_it_has_alone(self, folder: Path) -> None:
        """Also where it comes twice, or with another seed: the draws are the question's own."""
        lm = with_template(folder, THINKING)
        method = Reasoning(max_new_tokens=20)
        block = [
            Asked(OTHER, 1),
            Asked(QUESTION, 0),
            Asked(OTHER, 0),
            Asked(QUESTION, 0),
            Asked(QUESTION, 1),
        ]
        found: list[Answered] = list(answers(lm, method, block))
        for asked, answered in zip(block, found, strict=True):
            alone = ask(lm, method, asked.question, asked.seed)
            assert answered.answer.notes == alone.notes
            torch.testing.assert_close(
                answered.answer.normalized, alone.normalized, rtol=0, atol=1e-12
            )
        texts = [answered.answer.notes["reasoning"] for answered in found]
        assert len(set(texts)) == 4

    def test_the_texts_are_written_side_by_side(
        self, model: LocalModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = []

        def watched(decoder, tokens_T, *more, **settings):
            tokens.append(len(tokens_T))
            return cache.extend(decoder, tokens_T, *more, **settings)

        monkeypatch.setattr(generation, "extend", watched)
        method = ChainOfThought(max_new_tokens=2)
        starts = [Start(text, 3) for text in ("abc", "Q", "xyz")]
        written = method.write(model, starts)
        assert tokens[1:] == [3, 3]
        assert written == [method.write(model, [start])[0] for start in starts]

    def test_a_text_gets_no_more_tokens_than_its_own_prompt_has_room_for(
        self, model: LocalModel
    ) -> None:
        starts = [Start("abc", 2), Start("abd", 9), Start("abc", 4)]
        written = ChainOfThought().write(model, starts)
        assert [one.new_tokens for one in written] == [2, 9, 4]
        assert written[2].text.startswith(written[0].text)

    def test_a_kept_text_is_read_as_if_it_had_just_been_written(self, model: LocalModel) -> None:
        """After a cut the plan is made from the kept text alone."""
        method = ChainOfThought(max_new_tokens=8)
        (whole,) = answers(model, method, [Asked(QUESTION)])
        said = whole.answer.notes
        kept = Written(said["reasoning"], said["new_tokens"], not said["cut"])
        plan, prompts = method.prompts_after(model, Asked(QUESTION), kept)
        assert prompts == whole.prompts
        assert method.answer(plan, model.logits(prompts)).notes == said
