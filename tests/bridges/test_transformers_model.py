"""Models of the transformers library as models of minise: what they answer, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import transformers
from tokenizers import processors

import minise
from minise import InputError, Question, from_transformers
from minise.bridges.transformers_model import _quiet, load
from tests.support.bridges import make_model, make_reader, scores
from tests.support.commands import Q, assert_one_line, run
from tests.support.tiny import FAMILIES as OURS
from tests.support.tiny import make_tokenizer, write_checkpoint


@pytest.mark.parametrize("family", OURS)
def test_our_decoder_and_the_library_answer_alike(
    family: str, question: Question, tmp_path: Path
) -> None:
    """One checkpoint, loaded by both: the same ids, the same label ids, the same scores."""
    folder = write_checkpoint(tmp_path, OURS[family])
    bos = family != "qwen2"
    make_reader(bos).save_pretrained(folder)
    ours, theirs = minise.load(folder), load(str(folder), dtype=torch.float32)
    texts = ["Which is a bird?\n(A) wren\nAnswer: A", "", "é A"]
    assert theirs.tokenizer.encode(texts) == ours.tokenizer.encode(texts)
    assert theirs.tokenizer.decode([0, 5, 9]) == ours.tokenizer.decode([0, 5, 9])
    for engine in ("separate", "dense", "tree"):
        expected = scores(ours, question, engine)
        assert (scores(theirs, question, engine) - expected).abs().max() <= 1e-4


def test_a_quantized_model(question: Question, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="4-bit weights, extra [parity], are missing")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    make_model("qwen3", **sizes).save_pretrained(tmp_path)
    packing = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=packing, dtype=torch.float32
    )
    lm = from_transformers(model.eval(), make_reader())
    expected = scores(lm, question, "separate")
    for engine in ("dense", "tree"):
        assert (scores(lm, question, engine) - expected).abs().max() <= 1e-5


def test_a_slow_tokenizer(question: Question) -> None:
    class Slow(transformers.PythonBackend):
        def __init__(self, **settings: Any) -> None:
            self.letters = [chr(i) for i in range(128)]
            super().__init__(unk_token="?", **settings)

        vocab_size = 128

        def get_vocab(self) -> dict[str, int]:
            return {letter: i for i, letter in enumerate(self.letters)}

        def _tokenize(self, text: str, **settings: Any) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            return ord(token)

        def _convert_id_to_token(self, index: int) -> str:
            return chr(index)

    lm = from_transformers(make_model("qwen3"), Slow())
    with pytest.raises(InputError, match="is not one token"):  # " A" is two of its tokens
        minise.standard(lm, question)
    bare = minise.Template(cue="Answer: ", label="{label}")
    answer = minise.standard(lm, question, preset=minise.Preset(standard_template=bare))
    assert answer.probabilities.sum() == pytest.approx(1)


# What cannot be asked.


def bad_models() -> dict[str, tuple[Any, str]]:
    shape = {"d_model": 8, "num_layers": 1}
    split, training = make_model("qwen3"), make_model("qwen3")
    split.lm_head.to("meta")
    training.train()
    t5 = transformers.T5Config(**shape, d_ff=8, num_heads=1, d_kv=8, vocab_size=9)
    headless = transformers.AutoModel.from_config(make_model("qwen3").config).eval()
    return {
        "an encoder": (transformers.T5ForConditionalGeneration(t5).eval(), "has an encoder"),
        "two devices": (split, "is on cpu, meta"),
        "training": (training, "is in training mode"),
        "no output": (headless, "has no output matrix"),
        "no model": (torch.nn.Linear(2, 2), "a Linear is no model"),
    }


@pytest.mark.parametrize("kind", bad_models())
def test_what_cannot_be_asked_is_one_line(kind: str) -> None:
    model, reason = bad_models()[kind]
    with pytest.raises(InputError, match=reason) as error:
        from_transformers(model, make_reader())
    assert "\n" not in str(error.value)


def test_a_gemma_needs_its_beginning_token() -> None:
    with pytest.raises(InputError, match="writes no beginning token"):
        from_transformers(make_model("gemma3_text"), make_reader(bos=False))
    from_transformers(make_model("qwen3"), make_reader(bos=False))


def test_a_tokenizer_that_ends_each_text_is_refused() -> None:
    backend = make_tokenizer()
    end = processors.TemplateProcessing(single="$A <s>", special_tokens=[("<s>", 0)])
    backend.post_processor = end
    reader = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>")
    with pytest.raises(InputError, match="its tokenizer ends each text; set add_eos_token=False"):
        from_transformers(make_model("qwen3"), reader)


def test_a_model_is_named_by_what_is_given_its_config_or_its_class() -> None:
    model, reader = make_model("qwen3"), make_reader()
    assert from_transformers(model, reader).name == "transformers:Qwen3ForCausalLM"
    model.config._name_or_path = "maker/model"
    assert from_transformers(model, reader).name == "transformers:maker/model"
    assert from_transformers(model, reader, "mine").name == "mine"


def test_a_model_inside_an_adapter_runs_with_it(question: Question) -> None:
    """As PEFT has it: `get_base_model` returns what is inside, which has config and embedding."""

    class Adapted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model("qwen3")

        def get_base_model(self) -> torch.nn.Module:
            return self.inner

        def forward(self, **arguments: Any) -> Any:
            output = self.inner(**arguments)
            output.logits = -output.logits
            return output

    adapted = from_transformers(Adapted().eval(), make_reader())
    plain = from_transformers(adapted.library.network.inner, make_reader())
    assert adapted.name == plain.name
    for engine in ("separate", "dense", "tree"):
        logits = minise.branch_logits(adapted, [0, 5], [[8, 9], [7]], engine)
        expected = minise.branch_logits(plain, [0, 5], [[8, 9], [7]], engine)
        assert torch.equal(logits, -expected)


def test_identity_depends_on_names_shapes_dtypes_and_values() -> None:
    model = make_model("qwen3")

    def identity() -> Any:
        return from_transformers(model, make_reader()).identity()["weights_sha256"]

    found = [identity()]
    gate = model.model.layers[2].mlp.gate_proj
    gate.weight.data = gate.weight.data.view(gate.weight.shape[1], -1)
    found.append(identity())
    model.to(torch.float64)
    found.append(identity())
    norm = model.model.norm.weight.data
    norm[-1] += 1e-9  # of a small tensor every value counts
    found.append(identity())
    model.model.norm.register_parameter("other", model.model.norm._parameters.pop("weight"))
    found.append(identity())
    assert len({*found}) == len(found) == 5


@pytest.mark.parametrize("bars", [True, False])
def test_loading_leaves_the_librarys_notes_as_they_were(bars: bool) -> None:
    log = transformers.utils.logging
    (log.enable_progress_bar if bars else log.disable_progress_bar)()
    level = log.get_verbosity()
    try:
        with _quiet(transformers):
            assert log.get_verbosity() == log.ERROR != level
            assert not log.is_progress_bar_enabled()
        assert log.get_verbosity() == level
        assert log.is_progress_bar_enabled() == bars
    finally:
        log.disable_progress_bar()


def test_an_empty_prompt_and_a_tokenizer_that_is_none() -> None:
    model = make_model("qwen3")
    with pytest.raises(InputError, match="makes no token of a prompt"):
        minise.branch_logits(from_transformers(model, make_reader()), [], [[]])
    with pytest.raises(InputError, match="a str is no tokenizer"):
        from_transformers(model, "gpt2")


# The command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    make_model("qwen3").save_pretrained(folder)
    make_reader().save_pretrained(folder)
    return folder


def test_a_checkpoint_is_loaded_as_it_is_asked_for(folder: Path) -> None:
    lm = load(str(folder), dtype=torch.bfloat16, attention="eager")
    assert (lm.decoder.dtype, lm.library.config.attention) == (torch.bfloat16, "eager")
    assert load(str(folder), device="cpu").decoder.dtype == torch.float32  # as it is stored
    assert load(str(folder)).name == f"transformers:{folder}"
    assert not lm.library.network.training


def test_weights_that_a_file_can_run_code_by_are_not_read_but_can_be_converted(
    folder: Path, tmp_path: Path
) -> None:
    """Only safetensors are read. The message is a command that makes them."""
    pickled = Path(shutil.copytree(folder, tmp_path / "pickled"))
    (pickled / "model.safetensors").unlink()
    torch.save(make_model("qwen3").state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(InputError) as refusal:
        load(str(pickled))
    start = f"{pickled}: pytorch_model*.bin, no safetensors; convert it there, if you trust it: "
    command = str(refusal.value).removeprefix(start)
    assert command != str(refusal.value)
    subprocess.run(["sh", "-c", command], cwd=pickled, check=True)
    converted, whole = (load(str(path)).library.network.state_dict() for path in (pickled, folder))
    assert all(torch.equal(converted[name], whole[name]) for name in whole)
    (pickled / "model.safetensors").write_bytes(b"damaged")  # then this one is fetched again
    with pytest.raises(InputError, match=r"the library cannot load it .*; fetch it again"):
        load(str(pickled))


def test_ask_and_eval(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", f"transformers:{folder}", "--group-size", 2, "--trials", 2)
    status, out, err = run(capsys, "ask", *Q, *model, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert (report["model"], report["dtype"]) == (f"transformers:{folder}", "float32")
    # Its tree merges what all prompts share, and no more.
    tokens = report["tokens"]
    assert tokens["tree"] == tokens["dense"] < tokens["separate"]
    evaluation = ("eval", *model, "--task", "miniature", "--questions", 3)
    evaluation += ("--method", "standard,self-ensemble", "--output-path", tmp_path / "run")
    assert run(capsys, *evaluation)[0] == 0
    first = (tmp_path / "run" / "results.json").read_text()
    assert run(capsys, *evaluation, "--resume")[0] == 0
    again = (tmp_path / "run" / "results.json").read_text()
    assert json.loads(again)["results"] == json.loads(first)["results"]
    assert run(capsys, *evaluation[:-1], tmp_path / "dense", "--engine", "dense")[0] == 0
    dense = json.loads((tmp_path / "dense" / "results.json").read_text())["results"]["miniature"]
    for name, cell in json.loads(first)["results"]["miniature"].items():
        assert cell["tokens"] == dense[name]["tokens"]


def test_bad_checkpoints_and_options_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lacking = Path(shutil.copytree(folder, tmp_path / "lacking"))
    model = make_model("qwen3")
    weights = {name: x for name, x in model.state_dict().items() if "layers.1.mlp" not in name}
    model.save_pretrained(lacking, state_dict=weights)
    unknown = Path(shutil.copytree(folder, tmp_path / "unknown"))
    own_code = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    raw = {"model_type": "no-such-model", "auto_map": own_code}
    (unknown / "config.json").write_text(json.dumps(raw))
    ran = tmp_path / "ran"
    (unknown / "code.py").write_text(f"open({str(ran)!r}, 'w')")
    for source, options, part in [
        (lacking, (), "missing keys"),
        (unknown, (), "the library cannot load it"),
        (tmp_path / "nowhere", (), "the library cannot load it"),
        (folder, ("--quantize", "nf4"), "--quantize is for minise's own models"),
        (folder, ("--dry-run",), "--dry-run is for minise's own models"),
        (folder, ("--method", "cot"), "needs minise's own decoder"),
    ]:
        result = run(capsys, "ask", *Q, "--model", f"transformers:{source}", *options)
        assert_one_line(*result, [part])
    assert not ran.exists()  # no code of a checkpoint is run


@pytest.mark.parametrize("command", ["ask", "verify", "eval"])
def test_without_the_library_one_line_names_the_extra(
    command: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    more = ("--task", "miniature", "--method", "standard", "-o", tmp_path / "run")
    arguments = (command, "--model", f"transformers:{folder}", *(more if command == "eval" else ()))
    assert_one_line(*run(capsys, *arguments), ["minise[transformers]"])


def test_only_commands_and_the_page_import_a_bridge() -> None:
    """Neither the core nor a method does."""
    package = Path(minise.__file__).parent
    bridges = package / "bridges"
    naming = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if bridges not in path.parents and "minise.bridges" in path.read_text()
    }
    naming = {name for name in naming if not name.startswith("commands/")}
    assert naming <= {"explaining/collect.py", "explaining/library_model.py"}
