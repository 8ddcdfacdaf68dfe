"""`minise ask`: what it prints for a person and as JSON, and that each option has its effect."""

import io
import json
import re
import shlex
import statistics
from pathlib import Path

import pytest
import torch

from minise.commands import ask
from minise.commands.cli import main
from minise.commands.options import QUESTION, ModelOptions, load_model

Q = ("--question", "Which is a bird?", "--choice", "wren", "--choice", "trout", "--choice", "oak")


@pytest.fixture
def report(call):
    """The JSON object of a call."""

    def run(*words: object):
        status, out, err = call("ask", "--json", *words)
        assert (status, err) == (0, "")
        return json.loads(out)

    return run


@pytest.fixture
def text(call):
    """What a call prints."""

    def run(*words: object) -> str:
        status, out, err = call("ask", *words)
        assert (status, err) == (0, "")
        return out

    return run


@pytest.fixture
def as_file(tmp_path: Path):
    """A file of questions."""

    def write(*rows: object) -> Path:
        path = tmp_path / "q.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    return write


def test_json_is_the_object_of_the_contract(report) -> None:
    done = report(*Q, "--group-size", 2, "--trials", 3, "--seed", 5, "--engine", "packed")
    assert list(done) == [
        "model", "method", "engine", "template", "group_size", "trials", "seed", "question",
        "choices", "prediction", "on_labels", "groups", "tokens",
    ]  # fmt: skip
    settings = [done[name] for name in list(done)[:8]]
    assert settings == [
        "weights/tiny-llama", "self-ensemble", "packed", "default", 2, 3, 5, "Which is a bird?",
    ]  # fmt: skip
    assert [choice["text"] for choice in done["choices"]] == ["wren", "trout", "oak"]
    assert sum(choice["normalized"] for choice in done["choices"]) == pytest.approx(1)
    scores = [choice["score"] for choice in done["choices"]]
    assert done["prediction"] == scores.index(max(scores))
    assert len(done["groups"]) == 6
    for group in done["groups"]:
        assert list(group) == ["choices", "probabilities", "null"]
        assert sum(group["probabilities"]) + group["null"] == pytest.approx(1)
    assert 0 < done["on_labels"] < 1
    assert list(done["tokens"]) == ["separate", "packed", "tree"]
    assert done["tokens"]["separate"] > done["tokens"]["packed"] > done["tokens"]["tree"] > 0


@pytest.fixture
def scores(report):
    """The scores of a question's choices by an engine."""

    def run(engine: object, *words: object) -> list[float]:
        done = report(*Q, "--trials", 2, "--engine", engine, *words)
        assert done["engine"] == str(engine)
        return [choice["score"] for choice in done["choices"]]

    return run


def test_all_engines_give_the_same_answer(scores) -> None:
    tree = scores("tree")
    assert scores("packed") == pytest.approx(tree, abs=1e-5)
    assert scores("separate") == pytest.approx(tree, abs=1e-5)


@pytest.mark.lab
def test_all_engines_give_the_same_bits_with_equal_bits(scores) -> None:
    tree = scores("tree", "--equal-bits")
    assert tree == scores("packed", "--equal-bits") == scores("separate", "--equal-bits")


def test_an_ablation_is_an_engine_and_gives_another_answer(scores) -> None:
    tree = scores("tree", "--group-size", 2)
    for engine in ("without-mask", "without-positions"):
        assert scores(engine, "--group-size", 2) != pytest.approx(tree, abs=1e-3)


def test_an_engine_of_ones_own_answers(scores, text, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from minise.engines import packed, without_mask\n"
        "def own(decoder, prefix, branches):\n"
        "    return (packed if len(branches) == 1 else without_mask)(decoder, prefix, branches)\n"
    )
    words = ("--group-size", 2)
    assert scores(f"{mine}:own", *words) == scores("without-mask", *words)
    said = " ".join(text(*Q, *words, "--engine", f"{mine}:own").split())
    assert f"(this run: {mine}:own)" in said


def test_a_wrong_engine_is_refused_before_a_model_is_loaded(refused, tmp_path: Path) -> None:
    no_model = ("--model", tmp_path / "no-such-model")
    mine = tmp_path / "mine.py"
    mine.touch()
    assert "no-such-model" in refused("ask", "--engine", "packed", *no_model)
    for engine, named in (
        ("plain", "without-positions, FILE.py:NAME"),
        ("no.py:own", "no.py"),
        ("./mine:own", "write FILE.py:NAME"),
        (f"{mine}:own", "defines no own"),
    ):
        assert named in refused("ask", "--engine", engine, *no_model)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_every_dtype_answers_and_is_named(text, dtype: str) -> None:
    out = text(*Q, "--trials", 1, "--dtype", dtype)
    assert f"\nModel: weights/tiny-llama, {dtype} on cpu\n" in out


@pytest.mark.lab
def test_equal_bits_are_named(text) -> None:
    out = text(*Q, "--trials", 1, "--equal-bits")
    assert "\nModel: weights/tiny-llama, float32 on cpu, with equal bits\n" in out


@pytest.mark.lab
def test_the_options_of_the_groups_reach_the_method(report) -> None:
    prompts = [
        (("--group-size", 2), 40),
        (("--trials", 7), 7),
        (("--grouping", "independent", "--group-size", 2), 20),
        (("--grouping", "exact", "--group-size", 2), 3 * 2 + 3 * 2),
        (("--method", "self-ensemble(trials=2)"), 2),
        (("--method", "full-list", "--trials", 4), 4),
        (("--method", "cyclic"), 3),
    ]
    for words, count in prompts:
        assert len(report(*Q, *words)["groups"]) == count, words
    assert {group["null"] for group in report(*Q, "--no-null-option")["groups"]} == {None}
    one, other = (report(*Q, "--seed", seed)["groups"] for seed in (0, 1))
    assert [group["choices"] for group in one] != [group["choices"] for group in other]


@pytest.mark.lab
def test_a_file_gives_the_same_as_the_options(report, refused, as_file) -> None:
    one = {"question": "Which is a bird?", "choices": ["wren", "trout", "oak"]}
    by_words = report(*Q, "--trials", 2, "--method", "standard")
    assert report("--file", as_file(one), "--trials", 2, "--method", "standard") == by_words
    two = as_file(one, {**one, "question": "Which is a fish?"})
    assert "q.jsonl" in refused("ask", "--file", two)


@pytest.mark.lab
def test_of_several_methods_ask_says_that_it_takes_one(refused) -> None:
    said = refused("ask", "--method", "standard,self-ensemble(trials=2,group_size=3)")
    assert "names 2 methods; give one, or take minise eval" in said


def test_the_text_has_both_methods_side_by_side(text) -> None:
    out = text()
    note = "docs/miniature.md"  # its numbers are of the default options
    assert note in out
    assert note not in text("--trials", 1)
    assert out.startswith(
        "What is the capital of Canada?\n\n"
        "                     Standard inference    Self-Ensemble\n"
        "  New Delhi              3.7%                  6.5% ± 1.9  █\n"
    )
    assert "\n  Ottawa                26.4% ███          >  87.2% ± 1.5  █████████\n" in out
    assert "\n  Kingston           >  30.4% ███              1.5% ± 0.3\n" in out
    assert out.split("\n\n")[2:4] == [
        "Standard inference answers: Kingston (wrong)\n"
        "  cost: 1 prompt with all 8 choices, 74 tokens",
        "Self-Ensemble answers: Ottawa (right)\n"
        "  cost: 20 trials of groups of 4 = 40 prompts,\n"
        "    2,060 tokens as separate prompts, 1,709 packed, 1,252 with common prefixes\n"
        "    merged (this run: tree)\n"
        "  score: 87.2%, its mean probability in the prompts that list it, with a\n"
        "  standard error of 1.5 points",
    ]
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.lab
def test_each_method_says_what_it_ran_and_its_score(text) -> None:
    for words, prompts, score in (
        (("--method", "cyclic"), "3 prompts", ", with"),
        (("--method", "presence"), "3 prompts", ""),
        (("--grouping", "exact", "--group-size", 2), "12 prompts", ", .* in the prompts that"),
        (("--group-size", 2, "--trials", 3), "3 trials of groups of 2 = 6 prompts", ", .* with"),
    ):
        out = text(*Q, *words)
        assert f"  cost: {prompts},\n" in out
        assert re.search(rf" score: [\d.]+%{score}", " ".join(out.split()))


@pytest.mark.lab
def test_a_score_has_the_standard_error_of_its_prompts(text, report) -> None:
    """And in JSON the interval of 95%; none where all groups run, or one prompt lists a choice."""
    done = report(*Q, "--group-size", 2)
    for i, choice in enumerate(done["choices"]):
        values = []
        for group in done["groups"]:
            if i in group["choices"]:
                values.append(group["probabilities"][group["choices"].index(i)])
        error = statistics.stdev(values) / len(values) ** 0.5
        shown = text(*Q, "--group-size", 2)
        assert re.search(rf"{choice['score']:6.1%} ± {100 * error:.1f}( |$)", shown, re.M)
        low, high = choice["interval"]
        assert low == pytest.approx(max(0.0, choice["score"] - 1.96 * error))
        assert high == pytest.approx(min(1.0, choice["score"] + 1.96 * error))
    for words in (("--grouping", "exact", "--group-size", 2), ("--method", "presence")):
        assert {choice["interval"] for choice in report(*Q, *words)["choices"]} == {None}
        assert "±" not in text(*Q, *words)


@pytest.mark.lab
def test_a_lead_within_its_error_is_said(text) -> None:
    city = ("--question", "Hauptstadt von Finnland?", "--method", "cyclic")
    choices = ("--choice", "Helsinki", "--choice", "Riga")
    assert "not sure: its lead over" in text(*city, *choices)
    assert "not sure" not in text()


@pytest.mark.lab
def test_where_the_model_chose_none_of_the_choices_it_is_said(text, as_file) -> None:
    out = " ".join(text(*Q).split())
    assert "Self-Ensemble answers: oak" in out
    said = r"the model chose none: in the prompts that list oak, none of the above has (\d\d\.\d)%"
    [null] = re.findall(said, out)
    assert float(null) > 90
    assert "chose none" not in text()
    assert "chose none" not in text(*Q, "--no-null-option")
    # In a group of two of four the answer is often not there: of all prompts none has 70.7%.
    cities = ["Accra", "Nairobi", "Lagos", "Cairo"]
    kenya = as_file({"question": "What is the capital of Kenya?", "choices": cities})
    assert "chose none" not in text("--file", kenya, "--group-size", 2)


def test_the_example_of_the_help_is_answered_rightly(text) -> None:
    _, _, example = (ask.__doc__ or "").partition("example: minise ask ")
    out = text(*shlex.split(example))
    assert "Self-Ensemble answers: Cairo" in out
    assert "chose none" not in out


@pytest.mark.lab
def test_few_probability_on_the_labels_is_said(text, tmp_path: Path) -> None:
    template = tmp_path / "odd.json"
    template.write_text(json.dumps({"cue": ""}))
    out = text(*Q, "--template", template)
    said = r"only \d+% of the probability is on the labels; try --template mmlu or paren, or chat"
    assert re.search(said, " ".join(out.split()))
    assert "on the labels" not in text()


def test_the_shipped_model_says_what_it_knows(text) -> None:
    assert "knows only the small world" in text(*Q)
    assert "knows only the small world" not in text("--trials", 1)


@pytest.mark.lab
def test_none_of_the_above_can_be_written_in_another_language(
    text, refused, tmp_path: Path
) -> None:
    template = tmp_path / "deutsch.json"
    template.write_text(json.dumps({"null": "Nichts davon"}))
    out = text(*Q, "--template", template, "--show-prompts")
    assert out.count("(D) Nichts davon\nAnswer:") == 20
    for wrong in ("", 5):
        template.write_text(json.dumps({"null": wrong}))
        assert "deutsch.json" in refused("ask", *Q, "--template", template)


@pytest.mark.lab
def test_with_more_choices_than_labels_standard_inference_is_left_out(text, refused) -> None:
    words = ["--question", "Which?", "--trials", 1]
    for number in range(27):
        words += ["--choice", f"c{number}"]
    out = text(*words)
    assert "\nNo standard inference: 27 choices" in out
    assert "Self-Ensemble answers" in out
    said = refused("ask", *words, "--method", "standard")
    assert "26 labels (A-Z); ask by self-ensemble, in groups of at most 25" in said


def test_prompts_are_shown_as_the_model_reads_them(text, report) -> None:
    words = (*Q, "--group-size", 2, "--trials", 1, "--show-prompts")
    out = text(*words)
    assert re.findall(r"^--- .* ---$", out, re.M) == [
        "--- Standard inference, prompt 1 of 1 ---",
        "--- Self-Ensemble, prompt 1 of 2 ---",
        "--- Self-Ensemble, prompt 2 of 2 ---",
    ]
    assert "Which is a bird?\n(A) wren\n(B) trout\n(C) oak\nAnswer:" in out
    assert out.count("None of the above\nAnswer:") == 2
    prompts = report(*words)["prompts"]
    assert [prompt.count("None of the above") for prompt in prompts] == [1, 1]


@pytest.mark.lab
def test_none_of_the_above_has_a_row(text, as_file) -> None:
    wrong = ["New Delhi", "Riyadh", "Kingston", "Baghdad", "Athens", "Tokyo", "Nairobi"]
    out = text("--file", as_file({"question": QUESTION.text, "choices": wrong}))
    assert re.search(r"^  none of the above .* \d\d\.\d% mean over all prompts$", out, re.M)
    assert "none of the above" not in text(*Q, "--no-null-option")


@pytest.mark.lab
def test_escape_sequences_in_a_question_are_shown_as_text(text, report, as_file) -> None:
    question = {"question": "Wh\x1b[2Jich?", "choices": ["wr\x1b[31men", "oa\x9bk", "elm\ttree"]}
    path = as_file({**question, "answer": 0})
    out = text("--file", path, "--trials", 1, "--show-prompts")
    assert "Wh\\x1b[2Jich?" in out
    assert "wr\\x1b[31men" in out
    assert not {"\x1b", "\x9b"} & set(out)
    assert len(re.findall(r"answers: .* \((right|wrong)\)$", out, re.M)) == 2
    assert report("--file", path, "--trials", 1)["question"] == question["question"]


def test_bars_are_ascii_where_the_terminal_is(monkeypatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", output)
    assert main(["ask", "--trials", "2", "--question", "É?", *Q[2:]]) == 0
    out = output.buffer.getvalue().decode("ascii")
    assert out.startswith("\\xc9?\n")
    assert re.search(r"\d+\.\d% #+ ", out)
    assert re.search(r"\d+\.\d% \+- \d+\.\d( |$)", out, re.M)


def test_a_small_model_runs_on_one_thread_unless_told_otherwise(monkeypatch) -> None:
    """Several threads would wait for each other. Torch decides for a large model, and for any if
    the environment sets the number."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    load_model(ModelOptions())
    load_model(ModelOptions(threads=3))
    load_model(ModelOptions(threads=99))
    assert threads == [1, 3, 8]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    load_model(ModelOptions())
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("minise.commands.options.ONE_THREAD_BELOW", 10)
    load_model(ModelOptions())
    assert threads == [1, 3, 8]


def test_a_model_that_runs_elsewhere_leaves_the_threads_alone(monkeypatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", pytest.fail)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    elsewhere = object()
    monkeypatch.setattr("minise.loading.checkpoint.load", lambda *_, **__: elsewhere)
    assert load_model(ModelOptions()) is elsewhere
