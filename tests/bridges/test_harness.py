"""Tasks of lm-evaluation-harness, from YAML files and data of our own, and its JSON layout."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="the harness, extra [lm-eval], is missing")

import datasets
import torch
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from minise import InputError, branch_logits, load
from minise.bridges import harness
from minise.bridges.harness import _answer, _listed, _split, as_harness, load_task, main
from tests.support.commands import assert_one_line, run

DOCS: list[dict[str, Any]] = [
    {"q": "Which is a bird?", "options": ["wren", "trout", "oak"], "gold": 0, "key": "A"},
    {"q": "Which is a fish?", "options": ["owl", "trout", "elm"], "gold": 1, "key": "B"},
    {"q": "Which is a tree?", "options": ["ash", "carp", "gull"], "gold": 0, "key": "A"},
]
BIRD = ("Which is a bird?", ("wren", "trout", "oak"), 0)
LISTED = "{{q}}\\n{% for o in options %}{{'ABC'[loop.index0]}}. {{o}}\\n{% endfor %}Answer:"
TEXTS = {"doc_to_text": "{{q}}\\nAnswer:", "doc_to_choice": "options", "doc_to_target": "gold"}
LETTERS = {"doc_to_text": LISTED, "doc_to_choice": ["A", "B", "C"], "doc_to_target": "key"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def write_task(folder: Path, name: str = "birds", **settings: Any) -> Path:
    """A YAML file beside its data. A value of JSON is one of YAML."""
    folder.mkdir(exist_ok=True)
    data = folder / f"{name}.jsonl"
    docs = settings.pop("docs", DOCS)
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    whole = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data), "train": str(data)}},
        "test_split": "test",
        "fewshot_split": "train",
        "output_type": "multiple_choice",
        "metadata": {"version": 2.0},
        **settings,
    }
    path = folder / f"{name}.yaml"
    lines = [
        f'{key}: "{value}"' if isinstance(value, str) else f"{key}: {json.dumps(value)}"
        for key, value in whole.items()
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def read(path: Path, settings: str = "") -> list[tuple[str, tuple[str, ...], int | None]]:
    task = load_task(f"lm-eval:{path}{settings}")
    return [(q.text, tuple(q.choices), q.answer) for q in task.questions]


@pytest.mark.parametrize(
    "settings",
    [
        TEXTS,
        {**TEXTS, "doc_to_text": "{{q}}"},
        {**TEXTS, "doc_to_target": "{{options[gold]}}"},
        {**TEXTS, "doc_to_text": LISTED.replace("Answer:", "The answer:")},
        LETTERS,
        {**LETTERS, "doc_to_text": LISTED.replace(". {{o}}", ") {{o}}")},
        {**LETTERS, "doc_to_text": LISTED.replace("\\n{% for", "\\nOptions:\\n{% for")},
        {
            **LETTERS,
            "doc_to_text": LISTED.replace("'ABC'", "'abc'"),
            "doc_to_choice": ["a", "b", "c"],
            "doc_to_target": "gold",
        },
        {**LETTERS, "doc_to_choice": None, "output_type": "generate_until"},
        {
            **LETTERS,
            "doc_to_choice": None,
            "doc_to_target": "({{key}})",
            "output_type": "generate_until",
        },
    ],
    ids=lambda settings: settings["doc_to_text"][-30:],
)
def test_question_choices_and_answer(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Choices beside a text, or listed in it; answers by index, text or letter."""
    given = {key: value for key, value in settings.items() if value is not None}
    found = read(write_task(tmp_path, **given))
    assert found[0] == BIRD
    assert [answer for *_, answer in found] == [0, 1, 0]


def test_examples_stand_before_the_question_as_the_harness_writes_them(tmp_path: Path) -> None:
    path = write_task(tmp_path, **LETTERS, description="Birds and others.\\n\\n")
    ((name, task),) = TaskManager(include_defaults=False).load(str(path))["tasks"].items()
    task.set_fewshot_seed(1234)
    for (text, _, _), doc in zip(read(path, "(num_fewshot=1)"), task.eval_docs, strict=True):
        theirs = task.fewshot_context(doc, num_fewshot=1)
        assert theirs.startswith(text + "\n")
        assert text.startswith("Birds and others.\n\n")
        assert text.count("Answer:") == 1
        assert text.endswith(doc["q"])
    assert name == "birds"
    assert load_task(f"lm-eval:{path}").source["num_fewshot"] == 0


def test_a_task_says_where_its_questions_come_from(tmp_path: Path) -> None:
    path = write_task(tmp_path, **TEXTS, num_fewshot=1)
    task = load_task(f"lm-eval:{path}(num_fewshot=0)")
    assert (task.name, task.dataset, task.skipped) == ("birds", "own", [])
    assert [question.id for question in task.questions] == ["0", "1", "2"]
    assert task.places == {str(i): f"lm-eval:{path}(num_fewshot=0), document {i}" for i in range(3)}
    rows = [[q.text, list(q.choices), q.answer] for q in task.questions]
    sha256 = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    source = {"task": str(path), "version": 2.0, "num_fewshot": 0, "sha256": sha256}
    assert task.source == source
    # Without a number there are as many examples as the task says.
    one = load_task(f"lm-eval:{path}")
    assert one.source["num_fewshot"] == 1
    assert [q.text.count("Answer:") for q in one.questions] == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("Which?\nA. wren\nB. oak\nAnswer:", ("Which?", ["wren", "oak"])),
        ("Which?\n\n  (a)  wren \n\n\t(b) oak", ("Which?\n", ["wren", "oak"])),
        ("Which?\nOptions:\nA: wren\nB: oak", ("Which?", ["wren", "oak"])),
        ("A. x\nB. y\nAnswer: A\nWhich?\nA. wren\nB. oak", None),  # the last list
        ("Which?\nA. wren\nB. oak\nbut\nC. elm", ("Which?", ["wren", "oak"])),
        ("Which?\nA. wren\nC. elm", ()),
        ("Which?\nB. wren\nC. elm", ()),
        ("Which?\nA. wren", ()),
        ("A. wren\nB. oak", ("", ["wren", "oak"])),
    ],
)
def test_a_list_is_lines_of_letters_in_their_order(text: str, listed: Any) -> None:
    """At least two of them; the last list of a text counts."""
    if listed is None:
        listed = ("A. x\nB. y\nAnswer: A\nWhich?", ["wren", "oak"])
    assert _listed(text) == (listed or None)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("Which flies?", "Which flies?"),
        ("\uff1f", "\uff1f"),
        ("\u061f ", "\u061f "),
        ("\u037e", "\u037e"),
        ("It flies.\nAnswer:", "It flies."),
        ("It flies. The answer\uff1a ", "It flies."),
        ("It flies. This is the answer:", None),
        ("It flies", None),
    ],
)
def test_a_text_asks_by_a_question_mark_or_a_cue(text: str, question: str | None) -> None:
    """A cue is one or two words and a colon; it is left out."""
    if question is None:
        with pytest.raises(InputError, match="its choices continue the text, which ends in"):
            _split(text, ["wren", " oak"], "multiple_choice")
    else:
        assert _split(text, ["wren", " oak"], "multiple_choice") == (question, ["wren", "oak"])


def test_an_answer_is_an_index_a_text_or_a_letter() -> None:
    choices = ["wren", "oak", "B"]
    rights = {1: 1, "1": 1, " 2 ": 2, "oak": 1, "B": 2, "(a)": 0, "c.": 2, 0: 0}
    assert {target: _answer(target, choices, choices) for target in rights} == rights
    assert _answer("B", [], choices) == 1  # without options beside the text it is a letter
    for target in (-1, 3, "3", "D", "elm", True, 1.0, None):
        with pytest.raises(InputError, match="is none of its 3 choices"):
            _answer(target, choices, choices)


ENDING = {"doc_to_text": "{{q[:-1]}} because it", "doc_to_choice": "options"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "continuations": ({**TEXTS, **ENDING}, "its choices continue the text"),
    "several answers": ({**TEXTS, "doc_to_target": "{{[0, 1]}}"}, "it has several answers"),
    "letters without a list": (
        {**LETTERS, "doc_to_text": "{{q}}\\nAnswer:"},
        "its text lists no lines A. ...",
    ),
    "numbers of a list": (
        {
            **LETTERS,
            "doc_to_text": LISTED.replace("'ABC'", "'123'"),
            "doc_to_choice": ["1", "2", "3"],
            "doc_to_target": "gold",
        },
        "its choices are labels",
    ),
    "free text": (
        {
            "doc_to_text": "{{q}}",
            "doc_to_target": "{{options[0]}}",
            "output_type": "generate_until",
        },
        "its output_type is generate_until",
    ),
    "several texts": (
        {**TEXTS, "doc_to_text": "{{gold}}", "doc_to_target": "{{q}}"},
        "texts with one ending",
    ),
    "an answer that is no choice": (
        {**TEXTS, "doc_to_target": "seven"},
        'its answer "seven" is none',
    ),
    "a template that fails": ({**TEXTS, "doc_to_choice": "{{nothing.at}}"}, "cannot load it"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_question_is_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    settings, reason = REFUSED[kind]
    path = write_task(tmp_path, **settings)
    with pytest.raises(InputError) as error:
        load_task(f"lm-eval:{path}")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_one_bad_document_can_be_left_out(tmp_path: Path) -> None:
    path = write_task(tmp_path, **TEXTS, docs=[*DOCS, {**DOCS[0], "gold": 9}])
    with pytest.raises(InputError, match=r"document 3: its answer 9 .* --skip-bad-rows"):
        load_task(f"lm-eval:{path}")
    task = load_task(f"lm-eval:{path}", skip_bad_rows=True)
    assert (len(task.questions), len(task.skipped)) == (3, 1)


def test_the_command_writes_what_the_harness_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--task lm-eval:NAME with a folder of its own, then python -m minise.bridges.harness: a file
    for each method, which the harness's own table shows with the numbers of results.json."""
    write_task(tmp_path / "tasks", **LETTERS, docs=DOCS * 4)
    folder = tmp_path / "run"
    status, _, err = run(
        *(capsys, "eval", "--task", f"lm-eval:birds(num_fewshot=1,include_path={tmp_path}/tasks)"),
        *("--method", "standard,self-ensemble", "--group-size", 2, "--trials", 2),
        *("--output-path", folder),
    )
    assert (status, err) == (0, "")
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.count("written: ") == 2
    results = json.loads((folder / "results.json").read_text())
    assert results["config"]["sources"]["birds"]["num_fewshot"] == 1
    written = sorted((folder / "lm-eval").glob("*/results_*.json"))
    assert [path.parent.name for path in written] == [
        "tiny-llama__self-ensemble",
        "tiny-llama__standard",
    ]
    for path in written:
        told = json.loads(path.read_text())
        method = told["model_name"].rpartition("/")[2]
        mine = results["results"]["birds"][method]
        theirs = told["results"]["birds"]
        assert theirs["acc,none"] == mine["accuracy"]
        assert theirs["brier_score,none"] == mine["brier"]
        table = utils.make_table(told)
        assert f"{mine['accuracy']:.4f}" in table
        assert f"{theirs['acc_stderr,none']:.4f}" in table
        assert told["n-shot"] == {"birds": 1}
        assert told["versions"] == {"birds": 2.0}


def test_results_have_the_harnesses_layout() -> None:
    """A method that not every task has is left out of those."""
    settings = {"group_size": 4}
    told = {"n": 5, "accuracy": 0.8, "nll": 1.5, "brier": 0.25, "settings": settings}
    config = {"model": "a/b", "dtype": "bfloat16", "device": "cuda", "limit": 5}
    config |= {"wall_seconds": 2.5, "versions": {"minise": "9"}}
    config |= {"sources": {"t": {"version": 2.0, "num_fewshot": 3}}}
    results = {"t": {"ours": told}, "u": {"standard": told, "ours": {**told, "n": 1}}}
    whole = as_harness({"config": config, "results": results})
    assert list(whole) == ["ours", "standard"]
    assert list(whole["standard"]["results"]) == ["u"]
    layout = whole["ours"]
    assert abs(layout.pop("date") - time.time()) < 1000
    metrics = {"sample_len": 5, "acc,none": 0.8, "acc_stderr,none": pytest.approx(0.2)}
    metrics |= {"nll,none": 1.5, "nll_stderr,none": "N/A"}
    metrics |= {"brier_score,none": 0.25, "brier_score_stderr,none": "N/A"}
    one = {**metrics, "sample_len": 1, "acc_stderr,none": "N/A"}
    kind = {"output_type": "multiple_choice"}
    higher = {"acc": True, "nll": False, "brier_score": False}
    assert layout == {
        "results": {
            "t": {"name": "t", "alias": "t", **metrics},
            "u": {"name": "u", "alias": "u", **one},
        },
        "group_subtasks": {"t": [], "u": []},
        "configs": {
            "t": {"task": "t", **kind, "metadata": {"version": 2.0, "num_fewshot": 3}},
            "u": {"task": "u", **kind, "metadata": {}},
        },
        "versions": {"t": 2.0, "u": "N/A"},
        "n-shot": {"t": 3, "u": 0},
        "higher_is_better": {"t": higher, "u": higher},
        "n-samples": {
            "t": {"original": 5, "effective": 5},
            "u": {"original": 1, "effective": 1},
        },
        "config": {
            "model": "minise",
            "model_args": {"pretrained": "a/b", "method": "ours", "group_size": 4},
            "model_dtype": "bfloat16",
            "device": "cuda",
            "limit": 5,
            "minise_version": "9",
        },
        "git_hash": None,
        "model_source": "minise",
        "model_name": "a/b/ours",
        "model_name_sanitized": "a__b__ours",
        "total_evaluation_time_seconds": "2.5",
    }


def test_its_standard_error_is_the_harnesses() -> None:
    from lm_eval.api.metrics import mean_stderr

    right = [1, 0, 0, 1, 1, 0, 1]
    told = {"n": 7, "accuracy": sum(right) / 7, "nll": 1.0, "brier": 0.5, "settings": {}}
    config = dict.fromkeys(("dtype", "device", "limit", "wall_seconds"), "")
    config |= {"model": "m", "versions": {"minise": "0"}}
    found = as_harness({"config": config, "results": {"t": {"standard": told}}})
    assert found["standard"]["results"]["t"]["acc_stderr,none"] == pytest.approx(mean_stderr(right))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--task", "lm-eval:nothing.yaml"], ["lm-eval:nothing.yaml", "cannot load it"]),
        (["--task", "lm-eval:birds(include_path=nowhere)"], ["nowhere: is no folder"]),
        (["--task", "lm-eval:nothing.yaml(num_fewshot=-1)"], ["num_fewshot=-1", "N from 0"]),
        (["--task", "lm-eval:nothing.yaml(shots=1)"], ["shots=1", "sets nothing"]),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    parts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["--method", "standard", "--output-path", "run"]
    assert_one_line(*run(capsys, "eval", *arguments, *more), parts)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["give one folder", "python -m minise.bridges.harness DIR"]),
        (["--help"], ["give one folder"]),
        (["a", "b"], ["give one folder"]),
        (["no/such/run"], ["no/such/run: no such folder"]),
    ],
)
def test_the_harness_command_refuses_bad_input_in_one_line(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(arguments)
    captured = capsys.readouterr()
    assert_one_line(status, captured.out, captured.err, parts)


def test_a_group_of_tasks_is_refused_with_the_first_five_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks = {f"mmlu_{name}": None for name in ("art", "law", "sea", "sun", "war", "zoo", "age")}
    monkeypatch.setattr(harness, "_find", lambda *_: tasks)
    some = "mmlu_art, mmlu_law, mmlu_sea, mmlu_sun, mmlu_war"
    with pytest.raises(InputError, match=f"mmlu: is a group of 7 tasks; name one, such as {some}$"):
        load_task("lm-eval:mmlu")


def test_results_of_tasks_without_answers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {"config": {"model": "m", "versions": {"minise": "0"}}, "results": {}}
    monkeypatch.setattr(harness, "read_results", lambda folder: SimpleNamespace(raw=raw))
    with pytest.raises(InputError, match="none of its tasks has answers, so there are no results"):
        harness.convert(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_damaged_results_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text('{"config": {}, "results": {"t": {"m": 3}}}')
    status = main([str(tmp_path)])
    captured = capsys.readouterr()
    assert_one_line(status, captured.out, captured.err, [f"{tmp_path / 'results.json'}: "])


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-reasoner"])
def test_the_harnesses_own_model_runs_the_shipped_checkpoints(name: str) -> None:
    """Its `hf` model finds a beginning and an end token, and gives minise's probability of A."""
    context = "What is the capital of Peru?\n(A) Lima\n(B) Oslo\nAnswer:"
    theirs = HFLM(f"weights/{name}", device="cpu", dtype="float32")
    request = Instance("loglikelihood", {}, (context, " A"), 0)
    ((found, _),) = theirs.loglikelihood([request], disable_tqdm=True)
    lm = load(f"weights/{name}", dtype=torch.float32)
    prefix, whole = lm.tokenizer.encode([context, f"{context} A"])
    (logits,) = branch_logits(lm, prefix, [[]])
    assert whole[:-1] == prefix
    assert found == pytest.approx(float(logits.log_softmax(0)[whole[-1]]), abs=1e-4)
