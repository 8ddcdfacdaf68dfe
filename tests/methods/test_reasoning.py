"""Methods that let the model write first: what is read after which text, and what is stored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import InputError, LanguageModel, Question, generate, load
from minise.engines import run_alone
from minise.errors import Unsuited
from minise.methods.reasoning import ChainOfThought, Reasoning, named_choice
from minise.names import ENGINES
from minise.rounds import ask, run_plan
from tests.support.commands import assert_one_line, run

STOP = 7
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant] "
)


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


def write_alone(lm: LanguageModel, start: str, budget: int, **settings: Any) -> str:
    return generate(lm, [start], budget, **settings)[0].text


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
        listed = "".join(
            f"({label}) {c}\n" for label, c in zip("ABCDE", question.choices, strict=True)
        )
        start = f"{question.text}\n{listed}Answer: Let's think step by step."
        text = write_alone(model, start, 30, stop_texts=["\n\n"])
        assert text
        answer = ask(model, ChainOfThought(max_new_tokens=30), question)
        expected = read_alone(model, f"{start}{text}".rstrip() + "\nAnswer:", 5)
        torch.testing.assert_close(answer.probabilities, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_answer_does_not_depend_on_the_engine(
        self, model: LanguageModel, question: Question, engine: str
    ) -> None:
        method = ChainOfThought(max_new_tokens=9)
        probabilities = ask(model, method, question, engine=engine).probabilities
        expected = ask(model, method, question).probabilities
        torch.testing.assert_close(probabilities, expected, rtol=0, atol=1e-12)
        assert engine == "plain" or torch.equal(probabilities, expected)

    def test_a_chat_model_is_asked_by_its_template(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, TEMPLATE)
        start = ChainOfThought().start(lm, question)
        # The tokenizer adds the beginning token itself, so the template's is left out.
        assert start.startswith(f"[user] {question.text}\n(A) wren\n")
        assert start.endswith("(E) quartz\nLet's think step by step.[assistant] ")
        plain = ChainOfThought(chat=False).start(lm, question)
        assert plain.startswith(f"{question.text}\n(A) wren")
        assert ask(lm, ChainOfThought(5), question) is not None

    def test_a_chat_prompt_needs_a_template(self, model: LanguageModel, question: Question) -> None:
        with pytest.raises(InputError, match="has no chat template"):
            ChainOfThought(chat=True).plan(model, question)

    def test_a_blank_line_ends_the_text_of_a_base_model(
        self, model: LanguageModel, question: Question, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options: dict[str, Any] = {}

        def listen(*arguments: Any, **named: Any) -> Any:
            options.update(named)
            return generate(*arguments, **named)

        monkeypatch.setattr("minise.methods.reasoning.generate", listen)
        ask(model, ChainOfThought(4), question)
        assert options["stop_texts"] == ("\n\n",)

    def test_the_text_stops_while_the_positions_leave_room_for_the_cue(
        self, model: LanguageModel, question: Question
    ) -> None:
        method = ChainOfThought(max_new_tokens=500)
        longest = sum(
            map(len, [method.plan(model, question).prefix, *method.plan(model, question).branches])
        )
        lm = replace(model, config=replace(model.config, max_position_embeddings=longest + 12))
        plan = method.write(lm, method.plan(lm, question))
        assert plan.new_tokens <= 12
        none_left = replace(model, config=replace(model.config, max_position_embeddings=longest))
        with pytest.raises(InputError, match="which leaves none to reason"):
            ask(none_left, method, question)

    def test_a_model_without_a_stop_token_is_refused_before_any_work(
        self, llama_folder: Path, question: Question
    ) -> None:
        with pytest.raises(Unsuited, match="names no stop token"):
            ChainOfThought().plan(load(llama_folder), question)

    def test_the_notes_hold_the_text(self, model: LanguageModel, question: Question) -> None:
        method = ChainOfThought(max_new_tokens=20)
        plan, logits = run_plan(model, method, method.plan(model, question), 0)
        notes = method.notes(model, plan, method.answer(plan, logits), 0)
        assert notes["reasoning"] == plan.text != ""
        assert (notes["new_tokens"], notes["cut"]) == (20, True)
        assert plan.tokens("tree") > method.plan(model, question).tokens("tree")


class TestReasoning:
    def test_the_models_form_of_thoughts_is_used(self, folder: Path, question: Question) -> None:
        lm = with_template(folder, TEMPLATE + "{# </think> #}")
        method = Reasoning(max_new_tokens=12)
        start = method.start(lm, question)
        assert start.endswith("\nAnswer with the letter of the right choice.[assistant] <think>\n")
        text = write_alone(lm, start, 12, temperature=0.6, top_p=0.95, seed=3)
        answer = ask(lm, method, question, seed=3)
        expected = read_alone(lm, f"{start}{text}".rstrip() + "\n</think>\n\nAnswer:", 5)
        torch.testing.assert_close(answer.probabilities, expected, rtol=0, atol=1e-12)

    def test_the_beginning_of_the_thoughts_is_written_only_once(
        self, folder: Path, question: Question
    ) -> None:
        lm = with_template(folder, TEMPLATE + "<think>\n{# </think> #}")
        assert Reasoning().start(lm, question).count("<think>") == 1

    def test_text_after_the_thoughts_is_not_used(self) -> None:
        close = Reasoning().close
        assert close("Q <think>\nhm </think> The answer is B.") == "Q <think>\nhm </think>\n"
        assert close("Q <think>\nhm \n") == "Q <think>\nhm\n</think>\n"

    def test_another_seed_draws_other_thoughts(
        self, model: LanguageModel, question: Question
    ) -> None:
        method = Reasoning(max_new_tokens=20, chat=False)
        texts = [method.write(model, method.plan(model, question), s).text for s in (0, 0, 1)]
        assert texts[0] == texts[1] != texts[2]

    def test_a_model_that_does_not_think_is_named(
        self, folder: Path, model: LanguageModel, question: Question
    ) -> None:
        for lm in (model, with_template(folder, TEMPLATE)):
            with pytest.raises(Unsuited, match="is no reasoning model"):
                Reasoning().plan(lm, question)
            assert Reasoning(chat=False).plan(lm, question).prompts
        assert Reasoning(chat=True).plan(lm, question).prompts


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("So the answer is (B).", 1),
        ("(A) no. (C) yes.", 2),
        ("The answer is C", 2),
        ("answer: **B**", 1),
        ("\\boxed{A}", 0),
        (" C.\n", 2),
        ("<think>(A)</think> (B)", 1),
        ("<think>(A)", 0),
        ("(A) <think> (B) </think> none", None),
        ("(D)", None),
        ("A dog is a dog. I think so", None),
        ("", None),
    ],
)
def test_the_label_that_a_text_states_is_recognised(text: str, index: int | None) -> None:
    assert named_choice(text, 3) == index


@pytest.mark.usefixtures("undrawn")
class TestCommands:
    @pytest.fixture(autouse=True)
    def extras(self) -> None:
        for module in ("scipy", "sklearn", "matplotlib"):
            pytest.importorskip(module)

    def test_finished_texts_are_kept_and_not_written_again(
        self, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command = ["eval", "--task", "miniature", "--questions", 4, "-o", tmp_path]
        command += ["--method", "standard,cot(max_new_tokens=6)"]
        assert run(capsys, *command)[0] == 0
        path = tmp_path / "samples-miniature-cot(max_new_tokens=6).jsonl"
        whole = path.read_text().splitlines()
        samples = [json.loads(line) for line in whole]
        assert all(one["notes"]["reasoning"] and one["notes"]["new_tokens"] == 6 for one in samples)
        path.write_text("\n".join(whole[:3]) + "\n")
        texts = []
        monkeypatch.setattr(
            "minise.methods.reasoning.generate",
            lambda lm, prompts, *more, **named: (
                texts.append(1) or generate(lm, prompts, *more, **named)
            ),
        )
        assert run(capsys, *command, "--resume")[0] == 0
        assert len(texts) == 1
        again = [json.loads(line) for line in path.read_text().splitlines()]
        for one in (*samples, *again):
            del one["seconds"]
        assert again == samples

    def test_the_trial_before_a_run_writes_one_token(
        self, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        budgets = []

        def listen(lm: Any, prompts: Any, budget: int, *more: Any, **named: Any) -> Any:
            budgets.append(budget)
            return generate(lm, prompts, budget, *more, **named)

        monkeypatch.setattr("minise.methods.reasoning.generate", listen)
        command = ["eval", "--task", "miniature", "--questions", 2, "-o", tmp_path]
        assert run(capsys, *command, "--method", "cot(max_new_tokens=6)")[0] == 0
        assert budgets == [1, 6, 6]

    def test_no_text_option_stores_no_text(self, tmp_path: Path, capsys) -> None:
        command = ["eval", "--task", "miniature", "--questions", 2, "--no-text"]
        cot = "cot(max_new_tokens=3)"
        assert run(capsys, *command, "--method", cot, "-o", tmp_path)[0] == 0
        for line in (tmp_path / f"samples-miniature-{cot}.jsonl").read_text().splitlines():
            assert json.loads(line)["notes"].keys() == {"new_tokens", "cut", "said"}

    def test_ask_shows_the_text_before_the_answer(self, capsys) -> None:
        status, out, _ = run(capsys, "ask", "--method", "cot(max_new_tokens=5)", "--show-reasoning")
        assert status == 0
        text, answer = out.split("What is the capital of Canada?")
        assert text.strip()
        assert "Chain of thought answers: " in answer
        assert "of which it wrote 5 itself, cut by the budget; that text names no choice" in answer

    def test_ask_has_the_text_in_json(self, capsys) -> None:
        command = ("ask", "--method", "cot(max_new_tokens=4)", "--json")
        report = json.loads(run(capsys, *command)[1])
        assert (report["method"], report["new_tokens"]) == ("cot", 4)
        assert report["reasoning"]

    @pytest.mark.parametrize(
        ("options", "part"),
        [
            (["--method", "reasoning"], "is no reasoning model"),
            (["--method", "cot(max_new_tokens=0)"], "max_new_tokens 0 is below 1"),
            (["--method", "cot(chat=true)"], "has no chat template"),
            (["--method", "thinking"], "thinking is unknown; use one of standard, self-ensemble"),
        ],
    )
    def test_impossible_settings_are_refused_in_one_line(
        self, capsys, options: list[Any], part: str
    ) -> None:
        assert_one_line(*run(capsys, "ask", *options), [part])
