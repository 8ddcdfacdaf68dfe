"""The commands: what they print, the contract's JSON, and one clear line for anything unusable."""

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

from minise.cli import main
from tests.tiny import make_tokenizer

ROOT = Path(__file__).parents[1]

Q = ["--question", "Which is a bird?", "--choice", "wren", "--choice", "trout", "--choice", "oak"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


class TestAsk:
    def test_json_is_the_contracts(self, capsys, llama_folder) -> None:
        status, out, err = run(
            capsys,
            "ask",
            "--model",
            llama_folder,
            *Q,
            "--group-size",
            2,
            "--trials",
            3,
            "--seed",
            5,
            "--engine",
            "dense",
            "--json",
        )
        assert (status, err) == (0, "")
        report = json.loads(out)
        assert set(report) == {
            "model",
            "method",
            "engine",
            "group_size",
            "trials",
            "seed",
            "question",
            "choices",
            "prediction",
            "lead",
            "balance",
            "groups",
            "tokens",
        }
        assert report["model"] == str(llama_folder)
        assert report["method"] == "self-ensemble"
        assert report["engine"] == "dense"
        assert (report["group_size"], report["trials"], report["seed"]) == (2, 3, 5)
        assert report["question"] == "Which is a bird?"
        assert [choice["text"] for choice in report["choices"]] == ["wren", "trout", "oak"]
        assert sum(choice["probability"] for choice in report["choices"]) == pytest.approx(1)
        scores = [choice["score"] for choice in report["choices"]]
        assert report["prediction"] == scores.index(max(scores))
        assert len(report["groups"]) == 6
        for group in report["groups"]:
            assert set(group) == {"choices", "probabilities", "null"}
            assert sum(group["probabilities"]) + group["null"] == pytest.approx(1)
        tokens = report["tokens"]
        assert tokens["separate"] > tokens["dense"] > tokens["tree"] > 0
        first, second = sorted(scores, reverse=True)[:2]
        assert report["lead"]["score"] == pytest.approx(first - second)
        assert report["lead"]["standard_error"] > 0
        assert all(choice["standard_error"] >= 0 for choice in report["choices"])

    def test_it_says_how_precise_it_is(self, capsys, llama_folder) -> None:
        asked = ("ask", "--model", llama_folder, *Q, "--group-size", 2)
        _, out, _ = run(capsys, *asked, "--trials", 30)
        assert re.search(
            r"leads the next by 0\.\d+; the lead (exceeds|is within) its standard", out
        )
        _, out, _ = run(capsys, *asked, "--trials", 30, "--show-groups")
        assert len(re.findall(r"^ +\S.* 0\.\d+, standard error 0\.\d+$", out, re.M)) == 3
        for options in (("--trials", 1), ("--trials", 6, "--grouping", "balanced")):
            _, out, _ = run(capsys, *asked, *options)
            assert "its standard error cannot be told from these trials" in out
        assert "balance: pairs meet 2 times; each choice takes each label" in out

    def test_text_shows_question_choices_answer_groups_and_tokens(
        self, capsys, llama_folder
    ) -> None:
        status, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--show-groups")
        assert status == 0
        assert out.startswith("Which is a bird?\n")
        for choice in ("wren", "trout", "oak"):
            assert f" {choice} " in out
        assert "\nAnswer: " in out
        assert "%" in out
        assert "20 trials of groups of 4 = 20 prompts" in out
        assert out.count("none of the above") == 20

    def test_standard_inference_is_one_prompt(self, capsys, llama_folder) -> None:
        status, out, _ = run(
            capsys, "ask", "--model", llama_folder, *Q, "--method", "standard", "--json"
        )
        report = json.loads(out)
        assert status == 0
        assert report["method"] == "standard"
        assert (report["group_size"], report["trials"]) == (3, 1)
        assert [group["null"] for group in report["groups"]] == [None]

    def test_without_a_question_a_built_in_one_is_asked(self, capsys, llama_folder) -> None:
        status, out, _ = run(capsys, "ask", "--model", llama_folder, "--trials", 1)
        assert status == 0
        assert out.startswith("What is the capital of Spain?")

    def test_a_file_gives_the_same_as_the_options(self, capsys, llama_folder, tmp_path) -> None:
        path = tmp_path / "q.json"
        path.write_text(
            json.dumps({"question": "Which is a bird?", "choices": ["wren", "trout", "oak"]})
        )
        by_file = run(capsys, "ask", "--model", llama_folder, "--file", path, "--json")
        assert by_file == run(capsys, "ask", "--model", llama_folder, *Q, "--json")

    def test_no_null_option_and_presets_reach_the_method(self, capsys, llama_folder) -> None:
        _, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--no-null-option", "--json")
        assert {group["null"] for group in json.loads(out)["groups"]} == {None}
        _, out, _ = run(
            capsys,
            "ask",
            "--model",
            llama_folder,
            *Q,
            "--preset",
            "authors-code",
            "--group-size",
            2,
            "--json",
        )
        assert len(json.loads(out)["groups"]) == 20  # one draw a trial, not a partition

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
    def test_every_dtype_answers(self, capsys, llama_folder, dtype: str) -> None:
        status, out, _ = run(capsys, "ask", "--model", llama_folder, *Q, "--dtype", dtype, "--json")
        assert status == 0
        total = sum(choice["probability"] for choice in json.loads(out)["choices"])
        assert total == pytest.approx(1)

    def test_bars_are_plain_where_the_terminal_is(self, llama_folder) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "minise", "ask", "--model", llama_folder, *Q],
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            check=True,
        )
        assert b"#" in done.stdout


class TestVerify:
    def test_json_is_the_contracts(self, capsys, llama_folder) -> None:
        status, out, err = run(capsys, "verify", "--model", llama_folder, "--trials", 2, "--json")
        assert (status, err) == (0, "")
        report = json.loads(out)
        assert set(report) == {
            "model",
            "dtype",
            "tokens",
            "groups",
            "tolerance",
            "passed",
            "engines",
            "ablations",
        }
        assert report["dtype"] == "float64"
        assert report["passed"] is True
        assert report["tolerance"] == 1e-10
        for engine in ("dense", "tree"):
            assert max(report["engines"][engine]["layers"]) <= 1e-10
            assert report["engines"][engine]["probabilities"] <= 1e-12
        for ablation in ("without_mask", "without_positions"):
            assert report["ablations"][ablation]["logits"] > 1e-3

    def test_text_has_a_row_a_layer_and_a_verdict(self, capsys, llama_folder) -> None:
        status, out, _ = run(capsys, "verify", "--model", llama_folder, "--trials", 2)
        assert status == 0
        for row in ("layer 0", "layer 2", "final norm", "logits", "probabilities"):
            assert f"\n  {row} " in out
        assert "without mask" in out
        assert "without positions" in out
        assert out.endswith("passed: packed and separate agree within 1.0e-10\n")

    def test_a_difference_beyond_the_tolerance_is_status_1(self, capsys, llama_folder) -> None:
        status, out, err = run(
            capsys,
            "verify",
            "--model",
            llama_folder,
            "--dtype",
            "float32",
            "--trials",
            2,
            "--tolerance",
            1e-12,
        )
        assert (status, err) == (1, "")
        assert "FAILED" in out

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_narrower_dtypes_pass_within_rounding(self, capsys, llama_folder, dtype) -> None:
        status, out, _ = run(
            capsys, "verify", "--model", llama_folder, "--dtype", dtype, "--trials", 2, "--json"
        )
        report = json.loads(out)
        assert status == 0
        assert report["tolerance"] > 1e-10


@pytest.fixture
def broken(llama_folder: Path, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, to be spoilt."""
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
SPOILT = {
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
        ["model-00001-of-00002.safetensors", "no such file"],
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


def assert_one_line(status: int, out: str, err: str, parts: list[str]) -> None:
    assert status == 2
    assert out == ""
    assert err.startswith("minise: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    for part in parts:
        assert part in err


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_checkpoint_is_one_line(capsys, broken: Path, name: str) -> None:
    spoil, parts = SPOILT[name]
    spoil(broken)
    assert_one_line(*run(capsys, "ask", "--model", broken, *Q), parts)


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
        (["verify", "--tolerance", "-1"], ["--tolerance"]),
        (["verify", "--tolerance", "nan"], ["--tolerance"]),
        (["guess"], ["guess"]),
        ([], ["COMMAND", "--help"]),
        (["ask", "--no-such-option"], ["--no-such-option"]),
    ],
)
def test_unusable_arguments_are_one_line(capsys, llama_folder, arguments, parts) -> None:
    if arguments and "--model" not in arguments:
        arguments = [arguments[0], "--model", llama_folder, *arguments[1:]]
    assert_one_line(*run(capsys, *arguments), parts)


def test_a_hub_id_while_offline_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minise", "ask", "--model", "owner/name"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert_one_line(
        done.returncode, done.stdout, done.stderr, ["owner/name", "HF_HUB_OFFLINE", "config.json"]
    )


@pytest.mark.parametrize("command", ["ask", "verify"])
def test_help_has_an_example(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minise", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "example: minise " + command in done.stdout


def test_a_reader_that_goes_away_is_no_error(llama_folder: Path) -> None:
    command = f'"{sys.executable}" -m minise ask --model "{llama_folder}" --json | head -c 1'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{", "")


def test_only_evaluations_need_the_extras() -> None:
    """In a plain installation `ask` works, and `eval` says in one line what to install."""
    extras = ("scipy", "sklearn", "matplotlib", "pyarrow")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({extras}))"
    start = f"{blocked}; from minise.cli import main; sys.exit(main())"
    for arguments, status, said in [
        (["ask", "--trials", "1"], 0, ""),
        (["eval", "--preset", "main", "--output-path", "x"], 2, "pip install 'minise[eval]'"),
        (["report", "x"], 2, "pip install 'minise[eval]'"),
    ]:
        done = subprocess.run(
            [sys.executable, "-c", start, *arguments],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status
        assert said in done.stderr
        assert done.stderr.count("\n") == (status == 2)


def test_out_of_memory_is_one_line(capsys, monkeypatch, llama_folder) -> None:
    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee more")

    monkeypatch.setattr("minise.cli.run", refuse)
    status, out, err = run(capsys, "ask", "--model", llama_folder, *Q)
    assert (status, out) == (2, "")
    assert err.startswith("minise: out of memory (CUDA out of memory.")
    assert err.count("\n") == 1
