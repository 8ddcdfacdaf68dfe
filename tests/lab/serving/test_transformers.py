"""Models of the library transformers: packed where they pack right, else by separate prompts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from minise import Question, load
from minise.engines import NamedEngine, separate
from minise.errors import InputError, Unsuited
from minise.lab.methods.cloze import Cloze
from minise.lab.serving import transformers as serving
from minise.lab.serving.packable import unknown_part
from minise.lab.serving.transformers import MOST_ERROR, TransformersDecoder, TransformersModel
from minise.lm import LocalModel
from minise.loading.source import INDEX, SINGLE
from minise.method import SelfEnsemble, ask
from tests.lab.serving.zoo import load_tiny_of
from tests.reference.support.tiny import FAMILIES as OUR_FAMILIES
from tests.reference.support.tiny import write_checkpoint

library = pytest.importorskip("transformers")
DRAW = torch.Generator().manual_seed(0)


def some_ids(count: int) -> list[int]:
    return torch.randint(5, 288, (count,), generator=DRAW).tolist()


# Longer than all windows and chunks of the zoo.
PREFIX = some_ids(40)
BRANCHES = [some_ids(count) for count in (9, 10, 11, 12, 9, 13)]
LENGTH = len(PREFIX) + sum(len(branch) for branch in BRANCHES)
# Shorter than all of them.
SHORT = PREFIX[:4], [[6, 7], [8], [9, 10]]


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def by_the_library(lm: TransformersModel) -> torch.Tensor:
    """The logits (G, V) that the library gives for each prompt alone."""
    rows = []
    for branch in BRANCHES:
        ids = torch.tensor([PREFIX + branch])
        rows.append(lm.decoder.model(input_ids=ids).logits[0, -1])
    return torch.stack(rows)


PACKING = ["gemma3_text", "mistral", "gpt_neox", "opt", "granite", "gpt_oss"]


@pytest.mark.parametrize("name", PACKING)
def test_packed_equals_what_the_library_gives_for_each_prompt(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_tiny_of(tmp_path, name)
    capsys.readouterr()
    expected = by_the_library(lm)
    assert float(expected.std()) > 0.05
    for engine in ("tree", "packed", "separate"):
        assert gap(lm.with_engine(engine).hidden_at_ends(PREFIX, BRANCHES), expected) < 1e-5
    assert lm.packing.tokens == LENGTH  # it did pack
    assert capsys.readouterr().err == ""
    for engine in ("without-mask", "without-positions"):
        assert gap(lm.with_engine(engine).hidden_at_ends(PREFIX, BRANCHES), expected) > 1e-2


def test_bfloat16_packs_too(tmp_path: Path) -> None:
    lm = load_tiny_of(tmp_path, "gemma3_text", dtype="bfloat16")
    lm.hidden_at_ends(PREFIX, BRANCHES)
    assert lm.decoder.dtype == torch.bfloat16
    assert lm.packing.tokens == LENGTH


REFUSED = {
    "llama4_text": "its layers of kind chunked_attention are not known",
    "deepseek_v32": "its layers of kind indexed_attention are not known",
    "inkling2_text": "its layers of kind hybrid are not known",
    "rwkv": "its part ZeroPad2d is not known",
    "moshi": "its model_type moshi is not in the table of transformers",
    "gpt_neo": "its model_type gpt_neo is not in the table of transformers",
    "mpt": "its model_type mpt is not in the table of transformers",
    "falcon, alibi": "it has alibi, which counts by index",
    "phi3, longrope": "its rope_type is longrope",
    "llama, dynamic rope": "its rope_type is dynamic",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_to_read_a_mask_is_asked_separately_and_one_line_names_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_tiny_of(tmp_path, name)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("minise")]
    assert len(said) == 1
    assert f"is asked by separate prompts, because {REFUSED[name]}" in said[0]
    assert lm.engine == "separate"
    expected = by_the_library(lm)
    for engine in ("tree", "packed", "separate"):
        assert gap(lm.with_engine(engine).hidden_at_ends(PREFIX, BRANCHES), expected) < 1e-5
    assert lm.packing.tokens == 0
    assert capsys.readouterr().err == ""


def test_a_part_that_came_to_a_known_model_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a later version of the library may bring one."""
    lm = load_tiny_of(tmp_path, "llama")
    assert unknown_part(lm.decoder.model) is None
    attention = lm.decoder.model.model.layers[1].self_attn
    for part, named in [(torch.nn.Conv1d(4, 4, 3), "Conv1d"), (torch.nn.GRU(4, 4), "GRU")]:
        attention.own = part
        assert unknown_part(lm.decoder.model) == f"its part {named} is not known"
        del attention.own
    monkeypatch.setattr(
        lm.decoder.model.config, "layer_types", ["sliding_attention"], raising=False
    )
    assert unknown_part(lm.decoder.model) == "the size of its window is not known"


@pytest.fixture
def no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """All models are taken for known, so that only the numbers stand against wrong ones."""
    monkeypatch.setattr(serving, "unknown_part", lambda model: None)


@pytest.mark.usefixtures("no_rule")
@pytest.mark.parametrize("name", ["mpt", "gpt_neo", "llama4_text"])
def test_by_the_numbers_a_model_that_packs_wrongly_is_asked_by_separate_prompts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_tiny_of(tmp_path, name)
    capsys.readouterr()
    expected = by_the_library(lm)
    for engine in ("tree", "packed", "tree"):
        assert gap(lm.with_engine(engine).hidden_at_ends(PREFIX, BRANCHES), expected) < 1e-5
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is asked by separate prompts, because packed logits are" in said


@pytest.mark.usefixtures("no_rule")
def test_a_longer_prompt_in_a_shorter_pass_is_compared(tmp_path: Path) -> None:
    """Chunks are right for many short prompts, and wrong for a few that are longer."""
    lm = load_tiny_of(tmp_path, "llama4_text").with_engine("packed")
    assert isinstance(lm, TransformersModel)
    lm.hidden_at_ends([4, 5], [[token] for token in range(6, 80)])
    assert (lm.packing.tokens, lm.packing.longest_prompt) == (76, 3)
    longer = some_ids(20), [some_ids(20), some_ids(20)]
    assert gap(lm.hidden_at_ends(*longer), separate(lm.decoder, *longer)) < 1e-5
    assert lm.packing.given_up


def count_runs(lm: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each run of the library from now on."""
    runs: list[int] = []
    real = lm.decoder.model.forward

    def forward(**arguments: Any) -> Any:
        runs.append(arguments["input_ids"].shape[1])
        return real(**arguments)

    monkeypatch.setattr(lm.decoder.model, "forward", forward)
    return runs


def test_all_prompts_are_compared_at_first_and_when_a_pass_or_a_prompt_is_longer_by_a_quarter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load_tiny_of(tmp_path, "llama").with_engine("packed")
    assert isinstance(lm, TransformersModel)
    runs = count_runs(lm, monkeypatch)
    for prefix, branches, compared in [
        (40, [20, 20, 20], True),  # the first: 100 tokens, prompts of 60
        (40, [20, 20, 20], False),
        (40, [20, 20, 20, 20], False),  # 120 tokens
        (60, [10], False),  # one prompt alone proves nothing
        (40, [20, 20, 20, 26], True),  # 126 tokens
        (65, [10, 10], False),  # prompts of 75
        (66, [10, 10], False),  # 76, a quarter more than 60 is 75, than 66 is 82
        (63, [20, 10], True),  # prompts of 83
        (63, [40], False),
    ]:
        runs.clear()
        lengths = [length + prefix for length in branches]
        lm.hidden_at_ends(some_ids(prefix), [some_ids(length) for length in branches])
        packed = [prefix + sum(branches)]
        assert runs == (packed + lengths if compared else packed), (prefix, branches)


@pytest.mark.parametrize("row", [0, 3, 5])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_one_prompt_that_is_off_by_more_than_the_limit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: int, dtype: str
) -> None:
    lm = load_tiny_of(tmp_path, "gemma3_text", dtype=dtype)
    real = TransformersDecoder.__call__
    off = [0.0]

    def call(self: Any, tokens: Any, positions: Any, mask: Any, rows: Any = None) -> torch.Tensor:
        logits = real(self, tokens, positions, mask, rows)
        if len(tokens) == LENGTH:
            logits[row, 7] += off[0] * logits[row].std()
        return logits

    monkeypatch.setattr(TransformersDecoder, "__call__", call)
    lm.hidden_at_ends(PREFIX, BRANCHES)
    assert lm.packing.tokens == LENGTH
    lm.packing.tokens = lm.packing.longest_prompt = 0
    off[0] = 2 * MOST_ERROR[lm.decoder.dtype]
    lm.hidden_at_ends(PREFIX, BRANCHES)
    assert lm.packing.given_up


def test_a_model_that_was_wrong_once_is_packed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_tiny_of(tmp_path, "llama")
    lm.hidden_at_ends(*SHORT)
    monkeypatch.setattr(serving, "error_of_packing", lambda packed, alone: float("nan"))
    lm.hidden_at_ends(PREFIX, BRANCHES)
    monkeypatch.undo()
    capsys.readouterr()
    runs = count_runs(lm, monkeypatch)
    for prefix, branches in (SHORT, (PREFIX, BRANCHES)):
        runs.clear()
        lm.hidden_at_ends(prefix, branches)
        assert runs == [len(prefix) + len(branch) for branch in branches]
    assert capsys.readouterr().err == ""  # it is said once


@pytest.mark.usefixtures("no_rule")
@pytest.mark.parametrize("name", ["bloom", "falcon, alibi"])
def test_a_model_that_takes_no_mask_is_asked_separately(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_tiny_of(tmp_path, name)
    capsys.readouterr()
    assert gap(lm.hidden_at_ends(PREFIX, BRANCHES), by_the_library(lm)) < 1e-5
    assert "refuses this mask" in capsys.readouterr().err
    with pytest.raises(Unsuited, match=r"refuses this mask.*; use the engine separate"):
        lm.with_engine("without-mask").hidden_at_ends(PREFIX, BRANCHES)


def test_methods_and_engines_of_a_local_model_run(tmp_path: Path, question: Question) -> None:
    lm = load_tiny_of(tmp_path, "gemma2")
    assert isinstance(lm, LocalModel)
    method = SelfEnsemble(group_size=2, trials=3)
    answers = {}
    for engine in ("tree", "separate", "without-mask"):
        answers[engine] = ask(lm.with_engine(engine), method, question).normalized
    assert gap(answers["tree"], answers["separate"]) < 1e-5
    assert gap(answers["tree"], answers["without-mask"]) > 1e-3
    own = lm.with_engine(
        NamedEngine("mine.py:backwards", lambda d, p, b: separate(d, p, b[::-1]).flip(0))
    )
    assert gap(ask(own, method, question).normalized, answers["separate"]) < 1e-6
    assert float(ask(lm, Cloze(), question).normalized.sum()) == pytest.approx(1)


def test_a_total_is_of_the_whole_vocabulary(tmp_path: Path, question: Question) -> None:
    lm = load_tiny_of(tmp_path, "cohere")
    _, prompts = SelfEnsemble(group_size=2, trials=1).prompts(lm, question)
    read = lm.logits(prompts)[0]
    ids = torch.tensor([[*prompts.prefix, *prompts.branches[0]]])
    whole = lm.decoder.model(input_ids=ids).logits[0, -1].double()
    torch.testing.assert_close(read.labels, whole[prompts.label_ids[0]], rtol=0, atol=1e-6)
    assert float(read.total) == pytest.approx(float(whole.logsumexp(-1)), abs=1e-5)


def test_a_known_family_has_the_numbers_of_minise(tmp_path: Path, question: Question) -> None:
    folder = write_checkpoint(tmp_path, OUR_FAMILIES["mistral"])
    ours, theirs = (load(f"{kind}{folder}", dtype="float64") for kind in ("", "transformers:"))
    _, prompts = SelfEnsemble().prompts(ours, question)
    for a, b in zip(ours.logits(prompts), theirs.logits(prompts), strict=True):
        # The library computes angles and norms in float32.
        torch.testing.assert_close(a.labels, b.labels, rtol=0, atol=1e-4)
    assert isinstance(theirs, TransformersModel)
    assert theirs.packing.tokens > 0


def test_a_run_can_describe_the_model(tmp_path: Path) -> None:
    lm = load_tiny_of(tmp_path, "gpt2")
    decoder = lm.decoder
    assert (lm.family, str(decoder.dtype), str(decoder.device)) == ("gpt2", "torch.float32", "cpu")
    assert sum(x.numel() for x in decoder.parameters()) > 10_000
    assert "transformer.wte.weight" in decoder.state_dict()
    assert str(tmp_path) not in repr(lm.config)  # it is hashed, and folders move


@pytest.mark.parametrize(
    "settings", [{"tokenizer": "x"}, {"quantize": "nf4"}, {"equal_bits": True}], ids=str
)
def test_settings_that_it_does_not_have_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="takes no --tokenizer, no --quantize and no --equal-bits"):
        load("transformers:weights/tiny-llama", **settings)


def test_a_package_that_is_missing_is_not_called_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, OUR_FAMILIES["llama"])

    def read(*_: object, **facts: object) -> None:
        raise ImportError("This needs the package guess: `pip install guess`")

    monkeypatch.setattr(library.AutoModelForCausalLM, "from_pretrained", read)
    with pytest.raises(InputError, match=r"pip install guess.*; install that package$"):
        load(f"transformers:{folder}")


@pytest.mark.parametrize("kind", ["code", "pickle"])
def test_neither_code_nor_pickles_of_a_checkpoint_are_loaded(tmp_path: Path, kind: str) -> None:
    folder = write_checkpoint(tmp_path, OUR_FAMILIES["llama"])
    if kind == "code":
        facts = {"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}
        (folder / "config.json").write_text(json.dumps(facts))
        (folder / "own.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    else:
        torch.save({}, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    named = "not for transformers" if kind == "code" else f"{SINGLE} missing.* pickled weights"
    with pytest.raises(InputError, match=f"{folder}: {named}"):
        load(f"transformers:{folder}")
    assert not (tmp_path / "run").exists()


def by_an_index(folder: Path, other: Path) -> None:
    names = load_file(folder / SINGLE)
    shard = f"../{other.name}/{SINGLE}"
    content = {"metadata": {}, "weight_map": dict.fromkeys(names, shard)}
    (folder / INDEX).write_text(json.dumps(content))
    (folder / SINGLE).unlink()


def by_a_link(folder: Path, other: Path) -> None:
    (folder / SINGLE).unlink()
    (folder / SINGLE).symlink_to(other / SINGLE)


def by_a_folder_that_is_a_link(folder: Path, other: Path) -> None:
    (folder / "inside").symlink_to(other)
    by_a_key("transformers_weights", f"inside/{SINGLE}")(folder, other)


def by_an_adapter(folder: Path, other: Path) -> None:
    content = {"base_model_name_or_path": str(other), "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(content))


def by_a_key(key: str, value: Any, part: str = "") -> Callable[[Path, Path], None]:
    def change(folder: Path, other: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config |= {part: {key: value}} if part else {key: value}
        (folder / "config.json").write_text(json.dumps(config))

    return change


KERNEL = "kernels-community/flash-attn3"


@pytest.mark.parametrize(
    ("lead", "named"),
    [
        (by_an_index, f"{INDEX}: leads to "),
        (by_a_link, f"{SINGLE}: is a link out of the folder"),
        (by_a_folder_that_is_a_link, "config.json: transformers_weights is "),
        (by_an_adapter, "adapter_config.json: the folder is a LoRA adapter"),
        (by_a_key("attn_implementation", KERNEL), "config.json: attn_implementation is "),
        (by_a_key("_attn_implementation", {"": KERNEL}), "config.json: _attn_implementation is "),
        (
            by_a_key("experts_implementation", KERNEL, "text_config"),
            "config.json: experts_implementation is ",
        ),
    ],
)
def test_a_checkpoint_leads_to_no_file_but_its_own(
    tmp_path: Path, lead: Callable[[Path, Path], None], named: str
) -> None:
    folder = write_checkpoint(tmp_path / "mine", OUR_FAMILIES["llama"])
    other = write_checkpoint(tmp_path / "other", OUR_FAMILIES["llama"], seed=1)
    load(f"transformers:{folder}")
    lead(folder, other)
    with pytest.raises(InputError, match=named) as refused:
        load(f"transformers:{folder}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("stored", [b"I32", b"U32"])
def test_bits_of_whole_numbers_are_not_taken_for_weights(tmp_path: Path, stored: bytes) -> None:
    folder = write_checkpoint(tmp_path, OUR_FAMILIES["llama"])
    weights = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(weights.replace(b"F32", stored, 1))
    named = f"not for transformers .the tensor .*weight is {stored.decode()}"
    with pytest.raises(InputError, match=named):
        load(f"transformers:{folder}")


def test_tensors_that_are_missing_are_not_made_up(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {**OUR_FAMILIES["llama"], "num_hidden_layers": 2})
    text = (
        (folder / "config.json")
        .read_text()
        .replace('"num_hidden_layers": 2', '"num_hidden_layers": 3')
    )
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"made up the tensor model\.layers\.2"):
        load(f"transformers:{folder}")
