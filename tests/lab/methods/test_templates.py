"""Prompts as they are named, in a chat template, and after solved questions."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from minise import InputError, LocalModel, Question, Template, load, self_ensemble, standard
from minise.commands.cli import main
from minise.lab.methods.registry import make_method
from minise.lab.methods.templates import TEMPLATES, draw_solved, template_named
from tests.lab.support.methods import prompts, texts_of
from tests.reference.support.questions import OTHER, QUESTION

CHAT = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<bot>"
WET = Question("Is {it} wet?", ["no", "yes", "so", "ha"], answer=1)
ASKED = Question("Hot?", ["fire", "ice"], answer=0)


@pytest.fixture
def chat(llama_folder: Path, tmp_path: Path) -> LocalModel:
    """A model with a chat template, whose tokenizer adds a beginning token."""
    folder = Path(shutil.copytree(llama_folder, tmp_path / "model"))
    settings = {"chat_template": CHAT, "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return load(folder, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("default", "Hot?\n(A) fire\n(B) ice\nAnswer:"),
        ("mmlu", "Hot?\nA. fire\nB. ice\nAnswer:"),
        ("paren", "Hot?\n(A) fire\n(B) ice\nAnswer: ("),
        ("authors", "Hot? \n(A) fire (B) ice Answer: \n"),
        ("chat", "<user>Hot?\n(A) fire\n(B) ice</><bot>Answer:"),
        ("chat:mmlu", "<user>Hot?\nA. fire\nB. ice</><bot>Answer:"),
        ("chat:authors", "<user>Hot? \n(A) fire (B) ice </><bot>Answer: \n"),
    ],
)
def test_a_template_has_a_name(chat: LocalModel, name: str, text: str) -> None:
    assert texts_of(chat, prompts(chat, "standard", ASKED, template=name)) == [text]
    for answer in (standard(chat, ASKED, template=name), self_ensemble(chat, ASKED, template=name)):
        assert answer.scores.isfinite().all()


@pytest.mark.parametrize("name", ["default", "mmlu", "paren"])
@pytest.mark.parametrize("checkpoint", ["tiny-llama", "tiny-mistral", "tiny-qwen2"])
def test_label_ids_come_from_the_context(name: str, checkpoint: str) -> None:
    tokenizer = load(f"weights/{checkpoint}").tokenizer
    template = TEMPLATES[name]
    text = template.render("Hot?", ["fire", "ice"])
    (ids,) = tokenizer.encode([text])
    labels = template.label_ids(tokenizer, text, ids, 2)
    for letter, label in zip("AB", labels, strict=True):
        assert tokenizer.encode([text + template.label.format(label=letter)]) == [[*ids, label]]


def test_solved_questions_stand_in_the_shared_beginning(chat: LocalModel) -> None:
    """Of a pool one is left out: the asked one, or else the last."""
    wet = "Is {it} wet?\n(A) no\n(B) yes\n(C) so\n(D) ha\nAnswer: B\n\n"
    flies = "Which one flies?\n(A) eel\n(B) cat\n(C) owl\n(D) ant\n(E) yak\nAnswer: C\n\n"
    [own] = texts_of(chat, prompts(chat, "standard", QUESTION))
    for pool in [(OTHER, WET, QUESTION), (QUESTION, OTHER, WET), (OTHER, WET, ASKED)]:
        assert texts_of(chat, prompts(chat, "standard", QUESTION, solved=pool)) == [
            flies + wet + own
        ]
    chatted = prompts(chat, "standard", QUESTION, template="chat", solved=(WET, ASKED))
    listed = own.removesuffix("\nAnswer:")
    assert texts_of(chat, chatted) == [f"<user>{wet}{listed}</><bot>Answer:"]
    ensemble = prompts(chat, "self-ensemble", QUESTION, group_size=2, solved=(WET, OTHER))
    assert chat.tokenizer.decode(ensemble.prefix).count("Answer:") == 1
    assert {text.count("Answer:") for text in texts_of(chat, ensemble)} == {2}


def test_a_solved_question_is_written_as_the_method_writes_its_prompts(chat: LocalModel) -> None:
    """Two choices and the null option, which is the answer where the right one is not listed."""
    seen = set()
    for i in range(20):
        one = Question(f"Number {i}?", ["0", "1", "2", "3"], answer=2)
        sizes = {"group_size": 2, "solved": (one, one)}
        text = texts_of(chat, prompts(chat, "self-ensemble", QUESTION, **sizes))[0]
        _, *lines, answer = text.partition("\n\n")[0].splitlines()
        assert lines[2] == "(C) None of the above"
        right = [line[1] for line in lines if line.endswith(" 2")] or ["C"]
        assert answer == f"Answer: {right[0]}"
        seen.add(right[0])
        bare = texts_of(chat, prompts(chat, "self-ensemble", QUESTION, null_option=False, **sizes))[
            0
        ]
        assert ") 2\n" in bare.partition("\n\n")[0]
    assert seen == {"A", "B", "C"}
    text = texts_of(chat, prompts(chat, "cloze", ASKED, solved=(one, one)))[0]
    assert text.startswith("Number 19?\nAnswer: 2\n\nHot?\nAnswer:")


def test_what_is_drawn_depends_on_the_seed_and_has_answers() -> None:
    questions = [Question(f"Number {i}?", ["0", "1"], answer=i % 2) for i in range(30)]
    drawn = draw_solved(3, questions, 0)
    assert len(drawn) == 4
    assert draw_solved(3, questions, 0) == drawn != draw_solved(3, questions, 1)
    with pytest.raises(InputError, match="2 questions with an answer are too few for 2 shots"):
        draw_solved(2, [*questions[:2], Question("Open?", ["0", "1"])], 0)


def test_a_question_has_all_its_shots_also_where_texts_repeat(chat: LocalModel) -> None:
    """Not its own text among them: others' answers to it would give its own away."""
    questions = []
    for i in range(30):
        questions.append(Question(f"Number {i % 10}?", [f"{i}", "no"], answer=0))
    for seed in range(3):
        drawn = draw_solved(5, questions, seed)
        for asked in questions:
            [text] = texts_of(chat, prompts(chat, "standard", asked, solved=drawn))
            assert text.count("Answer: A\n") == 5
            assert text.count(asked.text) == 1


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        ('{"choice": "{label} {choise}"}', "choise"),
        ('{"choose": "x"}', "choose"),
        ('{"cue": 3}', "str"),
        ("[1]", "mapping"),
        ("{", "Expecting"),
        ('{"choice": "{label}"}', "{choice}"),
        ('{"label": " A"}', "{label}"),
        ('{"cue": "\\ud800"}', "surrogates"),
        ('{"null": "\\ud800"}', "surrogates"),
    ],
)
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, held: str, problem: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(held)
    with pytest.raises(InputError, match=r"mine\.json: .*") as caught:
        template_named(str(path))
    assert problem in str(caught.value)


def test_a_template_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"choice": "{label}) {choice}\\n"}')
    assert template_named(str(path)) == Template(choice="{label}) {choice}\n")
    made = make_method(f"standard(template={path})", {})[1]
    assert made.template == template_named(str(path))
    with pytest.raises(InputError, match='template "mmlo" is unknown; use one of default, mmlu'):
        template_named("mmlo")
    with pytest.raises(InputError, match="authors has no place for shots"):
        make_method("standard(template=authors)", {"solved": (WET, OTHER)})


def test_an_evaluation_crosses_prompts_and_shots(tmp_path: Path) -> None:
    words = "eval --task miniature --limit 3 --cut-to 4 --trials 1 --template mmlu --shots 2 -o"
    methods = "standard,standard(template=paren),self-ensemble,cot(max_new_tokens=4)"
    assert main([*words.split(), str(tmp_path), "--method", methods]) == 0
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["template"], run["shots"]) == ("mmlu", "2")
    (task,) = run["tasks"].values()
    written = {name: one["settings"].get("template") for name, one in task["methods"].items()}
    assert "{label}. {choice}" in written["standard"]
    assert "Answer: (" in written["standard(template=paren)"]
    assert "{label}. {choice}" in written["self-ensemble"]
    assert len(task["options"]["solved"]) == 3
