"""The command line: exit status, one clear line for anything unusable, and what is imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import minise
from minise.commands.cli import COMMANDS, main
from minise.data.tasks import TASKS
from minise.evaluation.experiments import EXPERIMENTS
from minise.methods.registry import OFFERED
from tests.support.commands import Q, assert_one_line, run
from tests.support.tiny import make_tokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def broken(llama_folder: Path, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, to be damaged."""
    return shutil.copytree(llama_folder, tmp_path / "checkpoint")


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, edit) -> None:
    state = load_file(folder / "model.safetensors")
    edit(state)
    save_file(state, folder / "model.safetensors")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


NORM = "model.norm.weight"
DAMAGED = {
    "unknown model_type": (lambda f: edit_config(f, model_type="gpt2"), ["model_type", "gpt2"]),
    "unknown rotary type": (
        lambda f: edit_config(f, rope_scaling={"rope_type": "yarn", "factor": 2.0}),
        ["rope_scaling", "yarn", "llama3"],
    ),
    "unknown activation": (lambda f: edit_config(f, hidden_act="gelu"), ["hidden_act", "gelu"]),
    "no config": (lambda f: (f / "config.json").unlink(), ["config.json", "no such file"]),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ["tokenizer.json"]),
    "truncated weights": (
        lambda f: cut(f / "model.safetensors"),
        ["model.safetensors", "fetch it again"],
    ),
    "corrupt weights": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 500),
        ["model.safetensors"],
    ),
    "missing shard": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {NORM: "model-00001-of-00002.safetensors"}})
        ),
        ["1 of 1 shards are missing: model-00001-of-00002.safetensors"],
    ),
    "missing tensor": (lambda f: edit_weights(f, lambda s: s.pop(NORM)), [NORM, "missing"]),
    "misshapen tensor": (
        lambda f: edit_weights(f, lambda s: s.update({NORM: torch.ones(31)})),
        [NORM, "(31,)", "(32,)", "model.safetensors"],
    ),
    "NaN weights": (
        lambda f: edit_weights(f, lambda s: s[NORM].fill_(float("nan"))),
        [NORM, "NaN"],
    ),
    "a label of two tokens": (
        lambda f: make_tokenizer(split_labels=True).save(str(f / "tokenizer.json")),
        ["tokenizer.json", "' A'", "not one token"],
    ),
    "too few positions": (
        lambda f: edit_config(f, max_position_embeddings=20),
        ["positions for 20", "shorten"],
    ),
    "another model's tokenizer": (
        lambda f: (
            edit_config(f, vocab_size=20),
            edit_weights(
                f,
                lambda s: s.update(
                    {
                        name: s[name][:20].clone()
                        for name in ("lm_head.weight", "model.embed_tokens.weight")
                    }
                ),
            ),
        ),
        ["beyond the vocabulary", "another model"],
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_one_line(capsys, broken: Path, name: str) -> None:
    damage, parts = DAMAGED[name]
    damage(broken)
    assert_one_line(*run(capsys, "ask", "--model", broken, *Q), parts)


WHY_9 = ["--question", "Why?", *["--choice", "x"] * 9]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["ask", "--question", "Why?"], ["no choices", "at least two"]),
        (["ask", "--question", "Why?", "--choice", "a"], ["1 choice", "at least two"]),
        (["ask", "--question", "", "--choice", "a", "--choice", "b"], ["question is empty"]),
        (["ask", "--question", "Why?", "--choice", "a", "--choice", ""], ["choice 2 is empty"]),
        (["ask", "--choice", "a"], ["--question"]),
        (["ask", *Q, "--group-size", "0"], ["group size 0", "at least one"]),
        (["ask", *Q, "--trials", "0"], ["trials 0", "at least one"]),
        (["ask", *Q, "--trials", "many"], ["--trials", "many", "--help"]),
        (["ask", "--question", "Why?", *["--choice", "x"] * 27, "--group-size", "27"], ["26"]),
        (["ask", "--method", "guess"], ["--method", "guess"]),
        (["ask", "--engine", "fast"], ["--engine", "fast"]),
        (["ask", "--dtype", "int8"], ["--dtype", "int8"]),
        (["ask", "--device", "nonsense"], ["nonsense", "try cpu"]),
        (["ask", "--file", "no/such.json"], ["no/such.json", "no such file"]),
        (["ask", "--file", "x.json", *Q], ["--file", "exclude"]),
        (["ask", "--model", "./no/such/folder"], ["./no/such/folder", "no such folder"]),
        (["ask", "--tri", "5"], ["--tri"]),  # no abbreviations
        (
            ["ask", *WHY_9, "--grouping", "exact", "--group-size", "7"],
            ["exact", "181,512", "50,000"],
        ),
        (["verify", "--tolerance", "-1"], ["--tolerance"]),
        (["verify", "--tolerance", "nan"], ["--tolerance"]),
        (["guess"], ["guess"]),
        (["ask", "--frobnicate"], ["--frobnicate; see minise ask --help"]),
        (
            ["ask", "--modle", "x"],
            ["--modle x (did you mean --model?); see minise ask --help"],
        ),
        (["ask", "Up?", "yes", "no"], ["(write --question or --choice before each text); see"]),
        (["verify", "--tolerence=1"], ["(did you mean --tolerance?); see minise verify --help"]),
        (["ask", "--threads", "0"], ["--threads", "0: give a number from 1; this machine has"]),
        (["ask", "--threads", "9999"], ["--threads", "9999: give a number from 1"]),
        (["ask", "--threads", "two"], ["--threads", "two: give a number from 1"]),
    ],
)
def test_unusable_arguments_are_one_line(capsys, llama_folder, arguments, parts) -> None:
    if arguments and "--model" not in arguments:
        arguments = [arguments[0], "--model", llama_folder, *arguments[1:]]
    assert_one_line(*run(capsys, *arguments), parts)


@pytest.mark.parametrize("name", ["weights/tiny-llamma", "tiny-lama", "weight/tiny-llama"])
def test_a_misspelt_shipped_model_is_answered_with_its_name(capsys, name: str) -> None:
    done = run(capsys, "ask", "--model", name)
    message = f"minise: {name}: no such folder; did you mean weights/tiny-llama, which ships?\n"
    assert done == (2, "", message)


def test_minise_alone_prints_its_help(capsys) -> None:
    """Nothing was asked, so nothing is wrong: status 0."""
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    assert out.startswith("usage: minise [-h] [--version] COMMAND ...\n")
    assert re.findall(r"^    (\w+) ", out, re.M) == list(COMMANDS)


def test_tasks_lists_what_the_other_commands_take(capsys) -> None:
    status, out, err = run(capsys, "tasks")
    assert (status, err) == (0, "")
    assert re.findall(r"^(\w+) \(", out, re.M) == ["tasks", "methods", "experiments", "models"]
    assert (
        "\n  qasc                    QASC; 20 trials of groups of 4; fetched from the hub\n" in out
    )
    assert "\n *self-ensemble           the paper's method\n" in out
    assert "\n  weights/tiny-llama      the default, in the package\n" in out
    lists = json.loads(run(capsys, "tasks", "--json")[1])
    assert set(lists["tasks"]) == {*TASKS, "FILE"}
    assert set(lists["methods"]) == {*OFFERED, "FILE.py:CLASS"}
    assert set(lists["experiments"]) == set(EXPERIMENTS)
    shipped = ("llama", "mistral", "qwen2", "reasoner")
    assert set(lists["models"]) == {f"weights/tiny-{name}" for name in shipped}


def test_tasks_and_the_help_of_ask_name_the_same_methods(capsys) -> None:
    marked = re.findall(r"^ \*(\S+)  +(.*)$", run(capsys, "tasks")[1], re.M)
    with pytest.raises(SystemExit):
        main(["ask", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    listed = text[text.index("--method NAME standard: ") :].partition("; settings in")[0]
    assert listed == "--method NAME " + "; ".join(f"{name}: {about}" for name, about in marked)
    for method in OFFERED:
        one = run(capsys, "ask", "--method", method, "--trials", "0")[2]
        assert ("is for minise eval; use one of" in one) == (method not in dict(marked)), method


def test_the_shell_can_complete_a_command(tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    completions = tmp_path / "found"
    line = "minise verify --tol"
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(completions),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "minise"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False)
    assert completions.read_text().split() == ["--tolerance"]


def test_the_mask_is_drawn_on_an_ascii_terminal() -> None:
    """On others it is the README's drawing."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.draw_mask"],
        cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert f"\nThe               1  {'#' * 2}{'.' * 24}\n" in done.stdout


def test_the_released_codes_preset_of_an_unknown_family_is_one_line(capsys, broken: Path) -> None:
    edit_config(broken, model_type="gemma2")
    command = ("ask", "--model", broken, *Q, "--preset", "authors-code")
    assert_one_line(*run(capsys, *command), ["gemma2"])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(capsys, command: str) -> None:
    with pytest.raises(SystemExit):
        run(capsys, command, "--help")
    assert "example: minise " + command in capsys.readouterr().out


def test_a_closed_pipe_is_no_error(llama_folder: Path) -> None:
    command = f'"{sys.executable}" -m minise ask --model "{llama_folder}" --json | head -c 1'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{", "")


def test_out_of_memory_is_one_line(capsys, monkeypatch, llama_folder) -> None:
    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee more")

    monkeypatch.setattr("minise.rounds.label_logits", refuse)
    status, out, err = run(capsys, "ask", "--model", llama_folder, *Q)
    assert (status, out) == (2, "")
    assert err.startswith("minise: out of memory (CUDA out of memory.")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."),
        RuntimeError("unable to mmap 8 bytes from file <x>: Cannot allocate memory (12)"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"),
    ],
)
def test_out_of_memory_on_any_device_is_one_line(capsys, monkeypatch, llama_folder, error) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr("minise.rounds.label_logits", refuse)
    done = run(capsys, "ask", "--model", llama_folder, *Q)
    assert_one_line(*done, ["minise: out of memory (", "use a smaller dtype or fewer trials"])


def test_an_error_of_the_system_is_one_line(capsys, monkeypatch, llama_folder) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error", "some/file")

    monkeypatch.setattr("minise.rounds.label_logits", refuse)
    done = run(capsys, "ask", "--model", llama_folder, *Q)
    assert_one_line(*done, ["some/file: Input/output error; check disk"])


LONG = "\x1b[31m" + "x" * 50_000 + "\x9b\ud800\r\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            [LONG],
            [LONG, LONG],
            ["ask", LONG],
            ["ask", "--trials", LONG],
            ["ask", "--engine", LONG],
        ),
        *(["ask", "--file", LONG], ["ask", "--model", LONG], ["ask", "--grouping", LONG]),
        *(["ask", "--device", LONG], ["verify", "--tolerance", LONG], ["report", LONG]),
        ["eval", "--task", LONG, "--method", "standard", "--output-path", "x"],
        ["eval", "--task", "miniature", "--method", LONG, "--output-path", "x"],
        ["eval", "--task", "miniature", "--method", "standard", "--output-path", LONG],
    ],
    ids=lambda arguments: " ".join(arguments)[:20],
)
def test_a_message_is_short_and_has_no_escape_sequence_for_any_argument(capsys, arguments) -> None:
    status, out, err = run(capsys, *arguments)
    assert_one_line(status, out, err, [])
    assert not set(err) & set("\x1b\x9b\ud800\r")


def test_a_models_name_is_printed_without_escape_sequences(
    capsys, llama_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(llama_folder, tmp_path / "\x1b[31mred")
    status, out, err = run(capsys, "verify", "--trials", 1, "--model", folder)
    assert (status, err) == (0, "")
    assert "\\x1b[31mred" in out
    assert "\x1b" not in out


def test_version_is_that_of_the_package(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        run(capsys, "--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"minise {minise.__version__}\n"


def test_an_interrupt_exits_with_status_130(capsys, monkeypatch, llama_folder) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minise.rounds.label_logits", interrupt)
    assert run(capsys, "ask", "--model", llama_folder, *Q) == (130, "", "")


def test_another_runtime_error_is_not_hidden(capsys, monkeypatch, llama_folder) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("minise.rounds.label_logits", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run(capsys, "ask", "--model", llama_folder, *Q)
