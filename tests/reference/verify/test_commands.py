"""`minise verify`: what it prints, and its exit status."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import minise.verify.training as training
from minise import LabelLogits, LocalModel
from minise.loading.machine import facts, processor
from tests.reference.support.commands import assert_one_line, run

RUNS = ["packed", "tree", "without_mask", "without_positions"]
Capture = pytest.CaptureFixture[str]


def verified(capsys: Capture, folder: Path, *options: object) -> tuple[int, Any]:
    status, out, err = run(capsys, "verify", "--model", folder, "--trials", 1, *options)
    assert err == ""
    return status, json.loads(out) if "--json" in options else out


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_json_has_the_keys_of_the_contract(capsys: Capture, llama_folder: Path, dtype: str) -> None:
    status, report = verified(capsys, llama_folder, "--dtype", dtype, "--json")
    assert status == 0
    known = "model dtype tokens groups tolerance passed engines ablations definition influence"
    assert set(report) == {*known.split(), "float64", "same", "machine"}
    assert (report["dtype"], report["passed"], report["tolerance"]) == (dtype, True, 1e-10)
    assert list(report["engines"]) == ["packed", "tree"]
    assert list(report["ablations"]) == ["without_mask", "without_positions"]
    assert list(report["float64"]) == RUNS
    for numbers in (report["engines"] | report["ablations"]).values():
        assert set(numbers) == {"layers", "logits", "labels", "probabilities", "changed"}
        assert len(numbers["layers"]) == 4
    assert report["same"] == {name: "without" not in name for name in RUNS}
    assert min(report["float64"][name] for name in RUNS[2:]) > 1e-3
    dtypes = [held["dtype"] for held in report["definition"]]
    assert dtypes == (["float64"] if dtype == "float64" else ["float64", dtype])
    for held in report["definition"]:
        assert max(*held["layers"], held["logits"]) <= held["limit"]
        assert held["first"] is None
    assert report["influence"].keys() == {"runs", "scrambled_equal"}
    assert report["machine"] == {"device": "cpu", **facts(), "threads": torch.get_num_threads()}


def test_the_text_has_the_verdict_of_float64_beside_each_run(capsys: Capture, llama_folder) -> None:
    status, out = verified(capsys, llama_folder, "--dtype", "bfloat16")
    assert status == 0
    assert out.splitlines()[1].startswith(f"on cpu: {processor()}, ")
    for dtype in ("float64", "bfloat16"):
        assert re.search(rf"\n  {dtype}, 2 prompts: off by at most \d\.\de-\d\d of a row", out)
    number = r" +\d\.\de[-+]\d\d"
    for name in ("packed", "tree"):
        assert re.search(rf"\n  {name}({number}){{3}} +\d+% +\w+ +\d\.\de-1\d +the same\n", out)
    for name in ("without-mask", "without-positions"):
        assert re.search(rf"\n  {name}({number}){{3}} +\d+% +differ{number} +different\n", out)
    assert re.search(rf"\n  rounding({number}){{3}} +\d+% +differ{number} +allowed\n", out)
    passed = "\npassed: the decoder is its definition; separate, packed and tree are the same;"
    assert out.endswith(f"{passed} no group sees another\n")


def test_a_failed_check_is_status_1(capsys: Capture, llama_folder: Path, monkeypatch) -> None:
    """A last bit is none where no equal bits are promised."""
    real = LocalModel.logits
    noise = {"tree": 1 + 1e-14}

    def logits(self: LocalModel, prompts: Any) -> list[LabelLogits]:
        factor = noise.get(self.engine, 1)
        return [LabelLogits(one.labels * factor, one.total) for one in real(self, prompts)]

    monkeypatch.setattr(LocalModel, "logits", logits)
    assert verified(capsys, llama_folder)[0] == 0
    noise["tree"] = 1.01
    status, out = verified(capsys, llama_folder)
    assert status == 1
    assert out.endswith("\nFAILED: tree: not the numbers of the separate runs\n")


def test_training_says_how_far_the_gradients_are_apart(
    capsys: Capture, llama_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out = verified(capsys, llama_folder, "--training")
    assert (status, out.count("of a tensor's largest entry")) == (0, 2)
    assert out.endswith("\npassed: all within 1e-12\n")
    real = training.packed_loss
    monkeypatch.setattr(training, "packed_loss", lambda *given: 2 * real(*given))
    status, report = verified(capsys, llama_folder, "--training", "--json")
    assert (status, report["passed"]) == (1, False)


@pytest.mark.parametrize(
    "options",
    [
        "--proof --training",
        "--equal-bits --training",
        "--group-size 0",
        "--proof --model transformers:ID",
        "--training --model server:http://127.0.0.1:9",
    ],
)
def test_unusable_options_are_one_line(capsys: Capture, options: str) -> None:
    assert_one_line(*run(capsys, "verify", *options.split()), [options.split()[0]])


def test_a_model_of_ones_own_is_verified(capsys: Capture, llama_folder: Path, tmp_path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "import json\n"
        "from pathlib import Path\n"
        "import minise\n"
        "from minise.definition import Decoder\n"
        "class Mine(minise.Decoder):\n"
        "    def run(self, *inputs):\n"
        "        return super().run(*inputs) / 2\n"
        "def half():\n"
        f"    lm = minise.load({str(llama_folder)!r})\n"
        "    lm.decoder.__class__ = Mine\n"
        "    return lm\n"
        "def defined(weights):\n"
        f"    facts = json.loads(Path({str(llama_folder)!r}, 'config.json').read_text())\n"
        "    class Half(Decoder):\n"
        "        def read_out(self, x):\n"
        "            return super().read_out(x) / 2\n"
        "    return Half(facts, weights)\n"
        "def remote():\n"
        "    lm = half()\n"
        "    class Remote:\n"
        "        name = family = engine = 'remote'\n"
        "        tokenizer, limits, logits = lm.tokenizer, lm.limits, lm.logits\n"
        "    return Remote()\n"
    )
    status, report = verified(capsys, Path(f"{path}:half"), "--json")
    assert (status, report["dtype"], report["passed"]) == (1, "float64", False)
    assert report["definition"][0]["first"].startswith("output (logits)")
    own = ("--definition", f"{path}:defined")
    status, report = verified(capsys, Path(f"{path}:half"), "--json", *own)
    assert (status, report["dtype"], report["passed"]) == (0, "float64", True)
    status, out, err = run(capsys, "verify", *own, "--training")
    assert_one_line(status, out, err, ["--definition is for the numbers of a decoder"])
    for option in ("--equal-bits", "--proof", "--training"):
        status, out, err = run(capsys, "verify", "--model", f"{path}:half", option)
        assert_one_line(status, out, err, [f"{option} needs weights that minise loads itself"])
    status, out, err = run(capsys, "verify", "--model", f"{path}:remote")
    assert_one_line(status, out, err, ["returns no LocalModel, so no engines can be compared"])
