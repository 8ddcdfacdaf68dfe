"""The folder of a run: it holds one run, of one model, code and questions, or is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minise.commands.cli import main
from minise.evaluation import run
from minise.loading import identity
from tests.support.runs import METHODS, arguments, assert_resumes, copy_of, no_drawing, samples
from tests.support.tiny import FAMILIES, make_tokenizer, write_checkpoint

for module in ("scipy", "sklearn", "matplotlib"):
    pytest.importorskip(module)
pytestmark = pytest.mark.usefixtures("undrawn")
SMALL = ("--method", "standard", "--limit", 5)


@pytest.fixture(scope="module")
def small(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run on a few questions."""
    folder = tmp_path_factory.mktemp("small")
    with no_drawing():
        assert main(arguments(model, data, folder, *SMALL)) == 0
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestAFolder:
    def test_of_another_configuration_is_refused(
        self, model: Path, data: Path, whole: Path, capsys
    ) -> None:
        before = samples(whole)
        options = ("--method", METHODS, "--resume")
        for changed, named in [
            (("--seed", 1), "seeds.0 is 0 there and 1 here"),
            (("--dtype", "float64"), 'dtype is "float32" there and "float64" here'),
            (("--limit", 5), "limit is null there and 5 here"),
            (("--engine", "dense"), 'engine is "tree" there and "dense" here'),
        ]:
            assert main(arguments(model, data, whole, *options, *changed)) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert named in err
            assert err.count("\n") == 1
        assert samples(whole) == before

    def test_of_other_weights_is_refused(
        self, data: Path, whole: Path, tmp_path: Path, capsys
    ) -> None:
        other = write_checkpoint(tmp_path, FAMILIES["llama"], seed=1)
        assert main(arguments(other, data, whole, "--method", METHODS, "--resume")) == 2
        assert "holds another run (model is" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (
                lambda f: edit_config(f, rope_theta=501.0),
                "config.rope_theta is 500.0 there and 501.0",
            ),
            (lambda f: edit_config(f, rms_norm_eps=1e-6), "config.rms_norm_eps is 1e-05 there"),
            (
                lambda f: make_tokenizer(bos=False).save(str(f / "tokenizer.json")),
                "tokenizer_sha256",
            ),
            (
                lambda f: write_checkpoint(f, FAMILIES["llama"], seed=1),
                "weights_sha256.model.safetensors is",
            ),
        ],
    )
    def test_of_a_changed_model_is_refused(
        self, model: Path, data: Path, tmp_path: Path, capsys, change: Any, named: str
    ) -> None:
        """Its path is the same, and two models would be mixed in one result."""
        copy = shutil.copytree(model, tmp_path / "model")
        options = (copy, data, tmp_path / "run", "--method", "standard", "--limit", 2, "--resume")
        assert main(arguments(*options)) == 0
        before = samples(tmp_path / "run")
        # Another layout of the same facts is no other model.
        (copy / "config.json").write_text(
            json.dumps(json.loads((copy / "config.json").read_text()), indent=3)
        )
        assert main(arguments(*options)) == 0
        capsys.readouterr()
        change(copy)
        assert main(arguments(*options)) == 2
        out, err = capsys.readouterr()
        assert f"run holds another run ({named}" in err
        assert (out, err.count("\n")) == ("", 1)
        assert samples(tmp_path / "run") == before

    def test_of_changed_code_is_refused(
        self, model: Path, data: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys
    ) -> None:
        changed = {**identity.code_identity(), "minise/rope.py": "0"}
        monkeypatch.setattr(run, "code_identity", lambda: changed)
        assert main(arguments(model, data, whole, "--method", METHODS, "--resume")) == 2
        assert "another run (code_sha256.minise/rope.py is" in capsys.readouterr().err

    def test_of_another_machine_is_resumed_with_a_message(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, monkeypatch, capsys
    ) -> None:
        folder = copy_of(whole, tmp_path)
        monkeypatch.setattr(run, "machine", lambda: {**identity.machine(), "threads": 64})
        assert_resumes(model, data, folder, whole)
        err = capsys.readouterr().err
        assert err.startswith("minise: threads is 1 there and 64 here")
        assert "the last digits may be rounded otherwise" in err
        assert err.count("\n") == 1

    def test_of_other_questions_is_refused(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, capsys
    ) -> None:
        changed = tmp_path / "words.jsonl"
        changed.write_text(data.read_text().replace("Number 7?", "Number seven?"))
        assert main(arguments(model, changed, whole, "--method", METHODS, "--resume")) == 2
        assert "holds another run (tasks.words.hash" in capsys.readouterr().err

    def test_with_a_run_in_it_needs_resume(
        self, model: Path, data: Path, whole: Path, capsys
    ) -> None:
        assert main(arguments(model, data, whole, "--method", METHODS)) == 2
        assert "go on with --resume" in capsys.readouterr().err

    def test_with_a_line_that_is_no_sample_is_refused(
        self, model: Path, data: Path, whole: Path, tmp_path: Path, capsys
    ) -> None:
        folder = copy_of(whole, tmp_path)
        path = folder / "samples-words-cyclic.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:3], "rubbish\n", *lines[3:]]))
        assert main(arguments(model, data, folder, "--method", METHODS, "--resume")) == 2
        assert "samples-words-cyclic.jsonl, line 4: not a sample" in capsys.readouterr().err

    def test_is_written_by_one_run_at_a_time(
        self, model: Path, data: Path, tmp_path: Path, capsys
    ) -> None:
        hold = (
            "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); "
            "print('held', flush=True); time.sleep(60)"
        )
        command = [sys.executable, "-c", hold, str(tmp_path / ".lock")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert main(arguments(model, data, tmp_path, "--method", "standard")) == 2
            assert "another run is writing here" in capsys.readouterr().err
            other.kill()
        assert main(arguments(model, data, tmp_path, "--method", "standard")) == 0

    @pytest.mark.parametrize(
        "content",
        [
            *(b"", b"{", b"[]", b"[" * 100_000, b"\xff", b'{"timing": 3}', None),
            b'{"timing": {"words": {"standard": {"peak_bytes": "x\\u001b"}}}}',
        ],
    )
    def test_with_damaged_results_gets_new_ones_from_the_samples(
        self, model: Path, data: Path, small: Path, tmp_path: Path, capsys, content: bytes | None
    ) -> None:
        folder = copy_of(small, tmp_path)
        path = folder / "results.json"
        path.unlink()
        if content is None:
            path.symlink_to("nowhere")
        else:
            path.write_bytes(content)
        assert_resumes(model, data, folder, small, *SMALL)
        err = capsys.readouterr().err
        assert err.count("\n") == (content is not None)
        if content is not None:
            assert f"{path}: damaged (" in err
            assert "it is written again from the samples" in err

    def test_with_a_long_name_is_refused_at_once(
        self, model: Path, data: Path, tmp_path: Path, capsys
    ) -> None:
        longest = shutil.copy(data, tmp_path / f"{'a' * 240}.jsonl")
        folder = tmp_path / "run"
        assert main(arguments(model, longest, folder, "--method", "standard")) == 2
        assert "too long for the name of a file" in capsys.readouterr().err
        assert not folder.exists()

    def test_of_another_run_is_refused_before_the_model_is_loaded(
        self, data: Path, tmp_path: Path, capsys
    ) -> None:
        (tmp_path / "file").write_text("")
        assert main(arguments("no/such", data, tmp_path / "file", "--method", "standard")) == 2
        assert "file is a file" in capsys.readouterr().err

    def test_that_cannot_be_written_is_one_line(
        self, model: Path, data: Path, tmp_path: Path, capsys
    ) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert main(arguments(model, data, blocked, "--method", "standard")) == 2
        assert capsys.readouterr().err.startswith(f"minise: {blocked}: could not be")
