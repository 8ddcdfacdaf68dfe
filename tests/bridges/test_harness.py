"""Tasks of lm-evaluation-harness, from YAML files and data of our own, and its JSON layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="the harness, extra [lm-eval], is missing")

import datasets
from lm_eval import utils
from lm_eval.tasks import TaskManager

from minise import InputError
from minise.bridges.harness import as_harness, load_task, main
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
        (["no/such/run"], ["no/such/run/results.json: no such file"]),
    ],
)
def test_the_harness_command_refuses_bad_input_in_one_line(
    arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(arguments)
    captured = capsys.readouterr()
    assert_one_line(status, captured.out, captured.err, parts)


def test_damaged_results_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text('{"config": {}, "results": {"t": {"m": 3}}}')
    status = main([str(tmp_path)])
    captured = capsys.readouterr()
    assert_one_line(status, captured.out, captured.err, [f"{tmp_path / 'results.json'}: "])
