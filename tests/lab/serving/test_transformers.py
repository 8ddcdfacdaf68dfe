"""Models of the library transformers: packed where they pack right, else by separate prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minise import Question, load
from minise.engines import separate
from minise.errors import InputError, Unsuited
from minise.lab.methods.cloze import Cloze
from minise.lab.serving import transformers as serving
from minise.lab.serving.transformers import TransformersModel, error_of_packing
from minise.lm import LocalModel
from minise.method import SelfEnsemble, ask
from tests.lab.serving.families import FAMILIES, load_family
from tests.reference.support.tiny import FAMILIES as OUR_FAMILIES
from tests.reference.support.tiny import write_checkpoint

library = pytest.importorskip("transformers")
PAGE = Path(__file__).parents[3] / "docs/serving.md"
DRAW = torch.Generator().manual_seed(0)


def some_ids(count: int) -> list[int]:
    return torch.randint(5, 288, (count,), generator=DRAW).tolist()


# Longer than all windows and chunks of FAMILIES.
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


PACKING = ["gemma3_text", "mistral with a window", "gpt_neox", "opt", "granite", "gpt_oss"]


@pytest.mark.parametrize("name", PACKING)
def test_packed_equals_what_the_library_gives_for_each_prompt(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_family(tmp_path, name)
    capsys.readouterr()
    expected = by_the_library(lm)
    assert float(expected.std()) > 0.05
    for engine in ("tree", "packed", "separate"):
        assert gap(lm.with_engine(engine).ends(PREFIX, BRANCHES), expected) < 1e-5
    assert lm.packing.right_to == LENGTH  # it did pack
    assert capsys.readouterr().err == ""
    for engine in ("without-mask", "without-positions"):
        assert gap(lm.with_engine(engine).ends(PREFIX, BRANCHES), expected) > 1e-2


def test_bfloat16_packs_too(tmp_path: Path) -> None:
    lm = load_family(tmp_path, "gemma3_text", dtype="bfloat16")
    lm.ends(PREFIX, BRANCHES)
    assert lm.decoder.dtype == torch.bfloat16
    assert lm.packing.right_to == LENGTH


@pytest.mark.parametrize("name", ["mpt", "gpt_neo", "llama4_text"])
def test_a_model_that_packs_wrongly_is_asked_by_separate_prompts_and_one_line_says_so(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_family(tmp_path, name)
    capsys.readouterr()
    expected = by_the_library(lm)
    for engine in ("tree", "packed", "tree"):
        assert gap(lm.with_engine(engine).ends(PREFIX, BRANCHES), expected) < 1e-5
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert (
        f"from {LENGTH} tokens on is asked by separate prompts, because packed, its error" in said
    )


@pytest.mark.parametrize("name", ["gpt_neo", "llama4_text"])
def test_shorter_passes_are_packed_whatever_ran_before(name: str, tmp_path: Path) -> None:
    """A window by index shows only in a pass that is longer."""
    lm = load_family(tmp_path, name)
    prefix, branches = SHORT
    for first, second in [(SHORT, (PREFIX, BRANCHES)), ((PREFIX, BRANCHES), SHORT)]:
        fresh = load(lm.name, dtype="float32")
        assert isinstance(fresh, TransformersModel)
        fresh.ends(*first)
        fresh.ends(*second)
        assert fresh.packing.wrong_from == LENGTH
        assert fresh.packing.right_to == len(prefix) + sum(map(len, branches))


def test_only_a_pass_that_is_longer_than_any_before_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = load_family(tmp_path, "llama")
    compared = []

    def watch(decoder: Any, layout: Any, logits: torch.Tensor) -> float:
        compared.append(len(layout.tokens))
        return error_of_packing(decoder, layout, logits)

    monkeypatch.setattr(serving, "error_of_packing", watch)
    one_prompt = PREFIX, [BRANCHES[0] * 5]  # it is longer, and proves nothing
    for prefix, branches in [one_prompt, SHORT, (PREFIX, BRANCHES), SHORT, (PREFIX, BRANCHES)]:
        lm.ends(prefix, branches)
        lm.with_engine("without-mask").ends(prefix, branches)
    assert compared == [9, LENGTH]


@pytest.mark.parametrize("name", ["bloom", "falcon, alibi"])
def test_a_model_that_takes_no_mask_is_asked_separately(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_family(tmp_path, name)
    capsys.readouterr()
    assert gap(lm.ends(PREFIX, BRANCHES), by_the_library(lm)) < 1e-5
    assert "refuses this mask" in capsys.readouterr().err
    with pytest.raises(Unsuited, match=r"refuses this mask.*; use the engine separate"):
        lm.with_engine("without-mask").ends(PREFIX, BRANCHES)


@pytest.mark.parametrize("name", ["phi3, longrope", "llama, dynamic rope"])
def test_angles_that_depend_on_the_longest_prompt_are_never_packed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = load_family(tmp_path, name)
    assert lm.engine == "separate"
    assert "is asked by separate prompts, because its rope_type is" in capsys.readouterr().err
    expected = by_the_library(lm)
    for engine in ("separate", "tree", "packed"):
        assert gap(lm.with_engine(engine).ends(PREFIX, BRANCHES), expected) < 1e-5
    assert lm.packing.right_to == 0


def test_methods_and_engines_of_a_local_model_run(tmp_path: Path, question: Question) -> None:
    lm = load_family(tmp_path, "gemma2")
    assert isinstance(lm, LocalModel)
    method = SelfEnsemble(group_size=2, trials=3)
    answers = {}
    for engine in ("tree", "separate", "without-mask"):
        answers[engine] = ask(lm.with_engine(engine), method, question).probabilities
    assert gap(answers["tree"], answers["separate"]) < 1e-5
    assert gap(answers["tree"], answers["without-mask"]) > 1e-3
    own = lm.with_engine("mine.py:backwards", lambda d, p, b: separate(d, p, b[::-1]).flip(0))
    assert gap(ask(own, method, question).probabilities, answers["separate"]) < 1e-6
    assert float(ask(lm, Cloze(), question).probabilities.sum()) == pytest.approx(1)


def test_a_total_is_of_the_whole_vocabulary(tmp_path: Path, question: Question) -> None:
    lm = load_family(tmp_path, "cohere")
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
    assert theirs.packing.right_to > 0


def test_a_run_can_describe_the_model(tmp_path: Path) -> None:
    lm = load_family(tmp_path, "gpt2")
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
    with pytest.raises(InputError, match=f"{folder}: not for transformers"):
        load(f"transformers:{folder}")
    assert not (tmp_path / "run").exists()


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


# The table of families in docs/serving.md.

REFUSED = "refuses the mask"
NEVER = "refused by config"


def line_of(name: str, folder: Path) -> str:
    """The line of a family: how its prompts run, and the largest error of a packed pass."""
    lm = load_family(folder, name)
    if lm.engine == "separate":
        return f"| {name} | separate prompts | {NEVER} |"
    lm.ends(PREFIX, BRANCHES)
    errors = []
    for engine in ("tree", "packed"):
        layout = serving.pack(PREFIX, BRANCHES, tree=engine == "tree")
        try:
            logits = lm.decoder(layout.tokens, layout.positions, layout.mask, layout.ends)
            errors.append(error_of_packing(lm.decoder, layout, logits))
        except Unsuited:
            return f"| {name} | separate prompts | {REFUSED} |"
    how = "packed" if lm.packing.right_to == LENGTH else "separate prompts"
    return f"| {name} | {how} | {max(errors):.1g} |"


@pytest.mark.slow
def test_the_table_of_families_is_what_is_found(tmp_path: Path) -> None:
    """If it is not, the table that was found is shown: put it into docs/serving.md."""
    page = PAGE.read_text("utf-8")
    table = page.partition("<!-- families -->\n")[2].partition("<!-- end of families -->")[0]
    written = table.splitlines()[2:]
    found = [line_of(name, tmp_path / name) for name in FAMILIES]
    shown = "\n".join(found)
    assert len(written) == len(found), shown
    for there, here in zip(written, found, strict=True):
        *facts, error = [cell.strip() for cell in there.strip("|").split("|")]
        *facts_here, error_here = [cell.strip() for cell in here.strip("|").split("|")]
        assert facts == facts_here, shown
        if error in (REFUSED, NEVER):
            assert error == error_here, shown
        elif "packed" in facts:
            assert max(float(error), float(error_here)) < 1e-5, shown
        else:
            assert min(float(error), float(error_here)) > 0.1, shown
