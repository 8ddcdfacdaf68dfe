"""A folder is loaded as a model, bit for bit, or refused in one line that says what to fix."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import minise
from minise import InputError, Question
from minise.loading import DTYPES
from minise.loading.source import INDEX, SINGLE
from tests.reference.support.equal import needs_lab
from tests.reference.support.tiny import ALL_FAMILIES, FAMILIES, write_checkpoint

NORM, OUTPUT, EMBEDDING = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
WEIGHTS = Path(minise.__file__).parents[1] / "weights" / "tiny-llama"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint to damage."""
    return shutil.copytree(llama_folder, tmp_path / "llama")


def edit(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Rewrite the weights after `change`."""
    state = {name: tensor.clone() for name, tensor in load_file(folder / SINGLE).items()}
    change(state)
    (folder / SINGLE).unlink()  # another model may have its pages in use
    save_file({name: tensor.clone() for name, tensor in state.items()}, folder / SINGLE)


def configure(folder: Path, **facts: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **facts}))


def shard(folder: Path) -> list[Path]:
    """Split the weights over two files and an index."""
    state = load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    where: dict[str, str] = {}
    for number, names in enumerate((sorted(state)[::2], sorted(state)[1::2]), 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file({key: state[key] for key in names}, folder / name)
        where |= dict.fromkeys(names, name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return [folder / name for name in sorted(set(where.values()))]


def refusal(source: str | Path, **options: Any) -> str:
    """The one line of the refusal."""
    with pytest.raises(InputError) as caught:
        minise.load(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[x], second[x]) for x in first)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
def test_weights_are_loaded_exactly_from_and_to_each_dtype(
    tmp_path: Path, stored: str, dtype: str
) -> None:
    folder = write_checkpoint(tmp_path, FAMILIES["qwen2"], dtype=getattr(torch, stored))
    for wanted in (dtype, getattr(torch, dtype)):
        lm = minise.load(folder, dtype=wanted, device="cpu")
        written = {
            name: x.to(getattr(torch, dtype)) for name, x in load_file(folder / SINGLE).items()
        }
        assert same(lm.decoder.state_dict(), written)
        assert {x.dtype for x in lm.decoder.parameters()} == {getattr(torch, dtype)}


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize(("multiplies", "large"), [(["AMX"], True), (["AMX"], False), ([], True)])
def test_auto_is_bfloat16_on_a_cpu_where_that_gains_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: str, multiplies: list[str], large: bool
) -> None:
    monkeypatch.setattr("minise.loading.machine.for_bfloat16", lambda: multiplies)
    monkeypatch.setattr("minise.loading.checkpoint.LARGE_MODEL", 0 if large else 20_000_000)
    folder = write_checkpoint(tmp_path, FAMILIES["llama"], dtype=getattr(torch, stored))
    gains = multiplies and large and stored in ("bfloat16", "float16")
    auto = minise.load(folder, device="cpu").decoder.dtype
    assert auto == (torch.bfloat16 if gains else torch.float32)


def test_shards_hold_the_same_model_as_one_file(folder: Path) -> None:
    whole = minise.load(folder).decoder.state_dict()
    first, _ = shard(folder)
    shutil.copy(first, folder / "left-over.safetensors")  # not in the index: not read
    assert same(minise.load(folder).decoder.state_dict(), whole)


def test_a_tied_output_may_be_stored_if_it_is_the_embedding(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, FAMILIES["qwen2"])
    assert OUTPUT not in load_file(tmp_path / SINGLE)
    absent = minise.load(tmp_path).decoder.state_dict()
    edit(tmp_path, lambda state: state.update({OUTPUT: state[EMBEDDING]}))
    assert same(minise.load(tmp_path).decoder.state_dict(), absent)
    edit(tmp_path, lambda state: state[OUTPUT][3].add_(1))
    message = refusal(tmp_path)
    assert OUTPUT in message
    assert "tie_word_embeddings" in message


def test_an_untied_output_that_is_absent_says_how_to_fix_it(folder: Path) -> None:
    edit(folder, lambda state: state.pop(OUTPUT))
    assert "set tie_word_embeddings to true" in refusal(folder)
    configure(folder, tie_word_embeddings=True)
    assert minise.load(folder).decoder.lm_head is None


def test_stored_tables_of_rotary_frequencies_are_ignored(folder: Path) -> None:
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.full((4,), torch.nan)}
    edit(folder, lambda state: state.update(table))
    minise.load(folder)


# Whatever the damage, the message names what is wrong.


def put(name: str, tensor: Tensor) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda state: state.update({name: tensor}))


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder, lambda state: state.pop(name))


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """The file is changed where it lies."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def write_index(content: Any) -> Callable[[Path], object]:
    text = content if isinstance(content, str) else json.dumps(content)
    return lambda folder: (folder / INDEX).write_text(text)


def with_shards(change: Callable[[Path, Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: change(*shard(folder))


def link(name: str, to: str | Path) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(to)

    return change


def away(path: Path) -> None:
    """The file lies beside the folder, and a link to it in its place."""
    other = path.rename(path.parent.parent / path.name)
    path.symlink_to(other)


def value(x: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.ones(32, dtype=dtype).index_fill(0, torch.tensor([17]), x)


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a tensor too many": (put("model.layers.3.x", torch.ones(1)), "model.layers.3.x"),
    "a bias too many": (put(UP.replace("weight", "bias"), torch.ones(48)), "up_proj.bias"),
    "a name of commands": (put("\x1b[2J\n" + "x" * 9999, torch.ones(1)), "xxx..."),
    "a tensor too few": (drop(NORM), NORM),
    "no tensor": (lambda folder: edit(folder, lambda state: state.clear()), EMBEDDING),
    "a wrong shape": (put(NORM, torch.ones(31)), NORM),
    "whole numbers": (put(NORM, torch.ones(32).int()), f"{NORM} is torch.int32"),
    "8 bits": (put(NORM, torch.ones(32).to(torch.float8_e4m3fn)), "float8"),
    "NaN": (put(NORM, value(torch.nan)), f"{NORM} has values that are not finite"),
    "beyond float32": (put(NORM, value(1e300)), f"{NORM} has values that are not finite"),
    "a byte too few": (rewrite(SINGLE, lambda data: data[:-1]), SINGLE),
    "an unknown dtype": (rewrite(SINGLE, lambda data: data.replace(b"F32", b"Q32", 1)), SINGLE),
    "no weights": (lambda folder: (folder / SINGLE).unlink(), SINGLE),
    "a folder in place of a file": (lambda folder: (folder / INDEX).mkdir(), INDEX),
    "a link to nothing": (link(SINGLE, "gone"), SINGLE),
    "a missing shard": (with_shards(lambda one, two: two.unlink()), "00002-of-00002"),
    "half a shard": (with_shards(lambda one, two: two.write_bytes(b"x")), "00002-of-00002"),
    "twice": (with_shards(lambda one, two: shutil.copy(one, two)), "also in another file"),
    "an index of another place": (write_index({"weight_map": {"a": "/etc/hosts"}}), "/etc/hosts"),
    "an index of a place above": (write_index({"weight_map": {"a": f"../{SINGLE}"}}), "lie beside"),
    "weights elsewhere": (link(SINGLE, WEIGHTS / SINGLE), f"{SINGLE}: is a link out of the folder"),
    "a shard elsewhere": (with_shards(lambda one, two: away(two)), "is a link out of the folder"),
    "a config elsewhere": (link("config.json", WEIGHTS / "config.json"), "is a link out"),
    "a tokenizer elsewhere": (link("tokenizer.json", WEIGHTS / "tokenizer.json"), "is a link out"),
    "links in a circle": (link("config.json", "config.json"), "config.json"),
    "a pipe": (link("tokenizer.json", "/dev/stdin"), "tokenizer.json: is a link out"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    "a damaged tokenizer": (rewrite("tokenizer.json", lambda data: b"{}"), "tokenizer.json"),
    "another model's config": (lambda folder: configure(folder, vocab_size=99), EMBEDDING),
    "huge sizes": (lambda folder: configure(folder, hidden_size=4 * 10**7), EMBEDDING),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(folder: Path, case: str) -> None:
    damage, named = REFUSED[case]
    damage(folder)
    message = refusal(folder)
    assert named in message
    assert str(folder) in message
    assert "\x1b" not in message
    assert len(message) < len(str(folder)) + 600


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": torch.int8},
        {"dtype": "float8"},
        {"dtype": "load"},
        {"device": "abacus"},
        {"device": "meta"},
        {"device": "cuda:77"},
        {"quantize": "int4"},
        {"quantize": ""},
    ],
    ids=str,
)
def test_an_unknown_option_is_refused_by_its_value(folder: Path, options: dict[str, Any]) -> None:
    assert str(*options.values()).removeprefix("torch.") in refusal(folder, **options)


def test_weights_beyond_float16_are_refused_in_float16_only(folder: Path) -> None:
    put(NORM, value(-1e5, torch.float32))(folder)
    assert f"{NORM} has values that are not finite in torch.float16" in refusal(
        folder, dtype=torch.float16
    )
    for dtype in ("bfloat16", "float32", "float64"):
        minise.load(folder, dtype=dtype)


# Weights that need no cast are pages of their file.


def places(lm: minise.LocalModel, folder: Path) -> dict[str, bool]:
    """Whether each weight lies in the mapped file."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in maps if str(folder) in line]
    ranges = [range(int(first, 16), int(last, 16)) for first, last in ends]
    return {
        name: any(x.data_ptr() in one for one in ranges)
        for name, x in lm.decoder.named_parameters()
    }


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's list of maps")
def test_only_what_is_stored_in_another_dtype_is_copied(folder: Path) -> None:
    edit(folder, lambda state: state.update({NORM: state[NORM].bfloat16()}))
    lm = minise.load(folder)
    assert {name for name, is_mapped in places(lm, folder).items() if not is_mapped} == {NORM}
    assert not any(places(minise.load(folder, dtype="float64"), folder).values())


@needs_lab
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_weights_at_any_place_in_the_file_give_equal_bits_where_they_are_asked_for(
    tmp_path: Path, question: Question, family: str
) -> None:
    """The head of each file is longer by some bytes."""
    state = load_file(write_checkpoint(tmp_path, ALL_FAMILIES[family]) / SINGLE)
    answers, offsets = set(), set()
    for more in range(0, 64, 8):
        (tmp_path / SINGLE).unlink()
        save_file(state, tmp_path / SINGLE, {"padding": "x" * more})
        lm = minise.load(tmp_path, equal_bits=True)
        offsets |= {parameter.data_ptr() % 64 for parameter in lm.decoder.parameters()}
        for engine in ("tree", "packed", "separate"):
            answer = minise.self_ensemble(lm, question, 3, 2, engine=engine)
            answers.add(tuple(answer.scores.tolist()))
    assert len(offsets) > 1
    assert len(answers) == 1


def test_a_mapped_file_can_be_replaced_and_is_never_written(folder: Path) -> None:
    lm, before = minise.load(folder), (folder / SINGLE).read_bytes()
    expected = load_file(folder / SINGLE)[EMBEDDING].clone()
    lm.decoder.model.norm.weight.zero_()
    assert (folder / SINGLE).read_bytes() == before
    other = write_checkpoint(folder / "other", FAMILIES["llama"], seed=1)
    os.replace(other / SINGLE, folder / SINGLE)
    assert torch.equal(lm.decoder.model.embed_tokens.weight, expected)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", [NORM, OUTPUT, UP])
def test_mapped_weights_that_are_not_finite_are_refused_at_the_first_answer(
    folder: Path, question: Question, name: str, number: float
) -> None:
    edit(folder, lambda state: state[name].fill_(number))
    lm = minise.load(folder)
    for answer in (minise.self_ensemble, minise.standard):
        with pytest.raises(InputError, match="overflow"):
            answer(lm, question)


@needs_lab
def test_a_model_is_loaded_with_equal_bits(folder: Path) -> None:
    lm = minise.load(folder, engine="packed", equal_bits=True)
    assert lm.engine == "packed"
    assert type(lm.decoder).__name__ == "EqualBits"


def test_a_model_is_loaded_with_an_engine(folder: Path) -> None:
    lm = minise.load(folder)
    assert (lm.engine, type(lm.decoder)) == ("tree", minise.Decoder)
    own = folder / "own.py"
    own.write_text("from minise.engines import separate as alone\n")
    lm = minise.load(folder, engine=f"{own}:alone")
    assert lm.engine == f"{own}:alone"
    assert minise.branch_logits(lm, [40, 41], [[50], [51]]).shape == (2, 288)


def test_an_engine_that_does_not_exist_is_refused_before_the_weights_are_read(folder: Path) -> None:
    (folder / SINGLE).unlink()
    for engine, named in {"dense": '"dense"', "nowhere.py:mine": "nowhere.py"}.items():
        with pytest.raises(InputError, match=re.escape(named)):
            minise.load(folder, engine=engine)


OWN = """
import minise

def whole():
    lm = minise.load({folder!r})
    return minise.LocalModel("mine", lm.config, lm.decoder, lm.tokenizer)

def pair():
    lm = minise.load({folder!r})
    return lm.decoder, lm.tokenizer

class Uniform:
    name, family, engine = "uniform", "", "by chance"

    def __init__(self):
        lm = minise.load({folder!r})
        self.tokenizer, self.limits = lm.tokenizer, lm.limits

    def logits(self, prompts):
        ids = [torch.zeros(len(labels), dtype=torch.float64) for labels in prompts.label_ids]
        total = torch.tensor(9.0, dtype=torch.float64)
        return [minise.LabelLogits(labels, total) for labels in ids]

def neither():
    return 5

def no_facts():
    class Empty:
        device, dtype, logits = "cpu", torch.float32, None
    return Empty(), None

def no_sizes():
    made, tokenizer = no_facts()
    made.config = None
    return made, tokenizer
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file with functions that make models."""
    path = tmp_path / "mine.py"
    path.write_text("import torch\n" + OWN.replace("{folder!r}", repr(str(WEIGHTS))))
    return str(path)


def test_a_function_of_ones_own_makes_the_model(own: str) -> None:
    question = minise.Question("What is the capital of Kenya?", ["Accra", "Nairobi", "Lagos"])
    expected = minise.self_ensemble(minise.load(WEIGHTS), question, group_size=2).scores
    for name in ("whole", "pair"):
        lm = minise.load(f"{own}:{name}")
        assert lm.name == f"{own}:{name}"
        assert torch.equal(minise.self_ensemble(lm, question, group_size=2).scores, expected)
        wide = minise.load(f"{own}:{name}", dtype="float64", engine="packed")
        assert isinstance(wide, minise.LocalModel)
        assert (wide.decoder.dtype, wide.engine) == (torch.float64, "packed")
    uniform = minise.self_ensemble(minise.load(f"{own}:Uniform"), question, group_size=3)
    assert uniform.scores.tolist() == pytest.approx([1 / 4] * 3)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("none", {}, "defines no none"),
        ("neither", {}, "what it returns has no name; return a LanguageModel, or a decoder"),
        ("no_facts", {}, "its decoder has no config"),
        ("no_sizes", {}, "its decoder's config has no model_type"),
        ("pair", {"quantize": "nf4"}, "a function of yours says its weights"),
        ("pair", {"equal_bits": True}, "a function of yours says its weights"),
        ("Uniform", {"engine": "packed"}, "returns no LocalModel"),
    ],
)
def test_what_is_no_model_of_ones_own_is_refused(
    own: str, name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said) as refused:
        minise.load(f"{own}:{name}", **settings)
    assert own in str(refused.value)


def test_a_decoder_of_ones_own_whose_values_are_of_another_kind_is_refused_by_what_it_gives(
    tmp_path: Path,
) -> None:
    """Its call gives hidden states (R, D), its `logits` floats (R, V)."""
    path = tmp_path / "mine.py"
    wrongs = {
        "x.flatten()": "a tensor .* of float32",
        "x[:1]": "a tensor .* of float32",
        "x[:, 0]": "a tensor .* of float32",
        "x[None]": "a tensor .* of float32",
        "x.long()": "a tensor .* of int64",
        "x.numpy()": "a ndarray, no tensor",
        "x.tolist()": "a list, no tensor",
        "None": "a NoneType, no tensor",
        "(x,)": "a tuple, no tensor",
    }
    for in_call, in_logits, gives in [
        *((wrong, "x", gives) for wrong, gives in wrongs.items()),
        *(("x", wrong, gives) for wrong, gives in wrongs.items()),
        ("x", "x[:, :5]", r"a tensor \(2, 5\) of float32"),
    ]:
        path.write_text(
            "import minise\n"
            f"lm = minise.load({str(WEIGHTS)!r})\n"
            "class Mine:\n"
            "    config, device, dtype = lm.config, lm.decoder.device, lm.decoder.dtype\n"
            "    def __call__(self, *given):\n"
            "        x = lm.decoder(*given)\n"
            f"        return {in_call}\n"
            "    def logits(self, hidden):\n"
            "        x = lm.decoder.logits(hidden)\n"
            f"        return {in_logits}\n"
            "def mine():\n"
            "    return Mine(), lm.tokenizer\n"
        )
        of = "its decoder" if in_logits == "x" else "`logits` of its decoder"
        with pytest.raises(InputError, match=f"mine.py:mine: {of} gives {gives}; give") as refused:
            minise.load(f"{path}:mine")
        assert "\n" not in str(refused.value)
