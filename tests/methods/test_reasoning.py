"""Methods that let the model write first: what is read after which text, and what is kept."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minise import LanguageModel, Question, ask, generate, load
from minise.engines import run_alone
from minise.errors import Unsuited
from minise.methods.reasoning import ChainOfThought, Reasoning

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
def model(folder: Path) -> LanguageModel:
    return load(folder, dtype=torch.float64)


def with_template(folder: Path, template: str) -> LanguageModel:
    settings = {"chat_template": template, "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load(folder, dtype=torch.float64)


def read_alone(lm: LanguageModel, text: str, count: int) -> torch.Tensor:
    """The probabilities of the labels A, B, ... after a text, by a plain run of it."""
    (ids,) = lm.tokenizer.encode([text])
    labels = [lm.tokenizer.encode([f"{text} {letter}"])[0][-1] for letter in "ABCDE"[:count]]
    with torch.inference_mode():
        return lm.decoder.logits(run_alone(lm, ids)[-1])[labels].double().softmax(0)


class TestChainOfThought:
    def test_the_labels_are_read_after_the_text(
        self, model: LanguageModel, question: Question
    ) -> None:
        pairs = zip("ABCDE", question.choices, strict=True)
        listed = "".join(f"({label}) {choice}\n" for label, choice in pairs)
        start = f"{question.text}\n{listed}Answer: Let's think step by step."
        (written,) = generate(model, [start], 30, stop_texts=["\n\n"])
        assert written.text
        method = ChainOfThought(max_new_tokens=30)
        plan = method.plan(model, question)
        assert plan.question == question
        expected = read_alone(model, f"{start}{written.text}".rstrip() + "\nAnswer:", 5)
        answer = ask(model, method, question)
        torch.testing.assert_close(answer.probabilities, expected, rtol=0, atol=1e-12)
        assert plan.notes == {
            "reasoning": written.text,
            "new_tokens": len(written.tokens),
            "cut": not written.finished,
        }
        assert json.loads(json.dumps(plan.notes)) == plan.notes

    def test_a_chat_model_is_asked_by_its_template(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, TEMPLATE)
        start = ChainOfThought().start(lm, question)
        # The tokenizer adds the beginning token itself, so the template's is left out.
        assert start.startswith(f"[user] {question.text}\n(A) wren\n")
        assert start.endswith("(E) quartz\nLet's think step by step.[assistant] ")
        assert len(ask(lm, ChainOfThought(5), question).probabilities) == 5

    def test_the_text_stops_while_the_positions_leave_room_for_the_cue(
        self, model: LanguageModel, question: Question
    ) -> None:
        method = ChainOfThought(max_new_tokens=500)
        without = method.read(model, question, method.close(method.start(model, question)))
        longest = len(without.prefix) + len(without.branches[0])
        lm = replace(model, config=replace(model.config, max_position_embeddings=longest + 12))
        plan = method.plan(lm, question)
        assert plan.notes["new_tokens"] <= 12
        none_left = replace(model, config=replace(model.config, max_position_embeddings=longest))
        with pytest.raises(Unsuited, match="no room"):
            method.plan(none_left, question)

    def test_a_model_without_a_stop_token_is_refused(
        self, llama_folder: Path, question: Question
    ) -> None:
        with pytest.raises(Unsuited, match="stop token"):
            ChainOfThought().plan(load(llama_folder), question)


class TestReasoning:
    def test_the_models_form_of_thoughts_is_used(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, THINKING)
        method = Reasoning(max_new_tokens=12)
        start = method.start(lm, question)
        assert start.endswith("\nAnswer with the letter of the right choice.[assistant] <think>\n")
        text = generate(lm, [start], 12, temperature=0.6, top_p=0.95, seed=3)[0].text
        answer = ask(lm, method, question, seed=3)
        expected = read_alone(lm, f"{start}{text}".rstrip() + "\n</think>\n\nAnswer:", 5)
        torch.testing.assert_close(answer.probabilities, expected, rtol=0, atol=1e-12)

    def test_text_after_the_thoughts_is_not_used(self) -> None:
        close = Reasoning().close
        assert close("Q <think>\nhm </think> The answer is B.") == "Q <think>\nhm </think>\n"
        assert close("Q <think>\nhm \n") == "Q <think>\nhm\n</think>\n"

    def test_another_seed_draws_other_thoughts(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, THINKING)
        method = Reasoning(max_new_tokens=20)
        texts = [method.plan(lm, question, seed).notes["reasoning"] for seed in (0, 0, 1)]
        assert texts[0] == texts[1] != texts[2]

    def test_a_model_that_does_not_think_is_named(
        self, folder: Path, model: LanguageModel, question: Question
    ) -> None:
        for lm in (model, with_template(folder, TEMPLATE)):
            with pytest.raises(Unsuited, match="no reasoning model"):
                Reasoning().plan(lm, question)
