"""The SmolLM3 and the Gemma 3 of docs/extending.md against the reference library's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers", reason="the reference library, extra [parity], is missing")

import minise
from minise.layout import causal_mask
from minise.loading.plugin import find_object
from tests.lab.support.extending import (
    ROOT,
    SECTIONS,
    patched_package,
    run_patched,
    write_gemma3,
    write_olmo2,
)
from tests.reference.support import reference
from tests.reference.support.reference import SIZES, reference_logits, runs, write_checkpoint

# One layer of three is not rotated. (By default it would be every fourth.)
SMOLLM3: dict[str, Any] = {
    **SIZES,
    "model_type": "smollm3",
    "no_rope_layers": [1, 0, 1],
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),  # outside of 96 tokens
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}

LOGITS = """
import torch
from safetensors.torch import load_file, save_file

from minise import load

decoder = load("checkpoint", dtype=torch.float32).decoder
given = load_file("runs.safetensors")
names = {name.partition(".")[0] for name in given}
inputs = {n: [given[f"{n}.{part}"] for part in ("tokens", "positions", "mask")] for n in names}
save_file({n: decoder.logits(decoder(*inputs[n])) for n in names}, "logits.safetensors")
"""


def test_its_logits_are_the_librarys(tmp_path: Path) -> None:
    """On a plain prompt, where the library masks by itself, and on a packed one."""
    folder = patched_package(tmp_path)
    checkpoint = write_checkpoint(SMOLLM3, folder / "checkpoint")
    names = load_file(checkpoint / "model.safetensors").keys()
    assert "lm_head.weight" not in names  # its output is tied, unless config.json says otherwise
    given = runs()
    parts = ("tokens", "positions", "mask")
    save_file(
        {
            f"{name}.{part}": value
            for name, values in given.items()
            for part, value in zip(parts, values, strict=True)
        },
        folder / "runs.safetensors",
    )
    run_patched(folder, "-c", LOGITS)
    ours = load_file(folder / "logits.safetensors")
    for name, (tokens, positions, mask) in given.items():
        library_mask = None if name == "causal" else mask
        expected = reference_logits(checkpoint, tokens, positions, library_mask, torch.float32)
        assert expected.abs().max() > 5
        assert (ours[name] - expected).abs().max() <= 1e-4, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_file_of_gemma3_gives_the_librarys_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Of packed prompts, against the library's separate runs."""
    folder = write_gemma3(tmp_path / "gemma-3-270m")
    [text] = [text for _, text in SECTIONS["A model"] if text.startswith("# gemma3.py")]
    (tmp_path / "gemma3.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lm = minise.load("./gemma3.py:gemma3", dtype=dtype)
    assert isinstance(lm, minise.LocalModel)
    theirs = reference.transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    prefix, *branches = torch.randint(1024, (4, 9), generator=torch.Generator().manual_seed(1))
    ours = minise.branch_logits(lm, prefix.tolist(), [branch.tolist() for branch in branches])
    expected = []
    for branch in branches:
        with torch.no_grad():
            expected.append(theirs(torch.cat([prefix, branch])[None]).logits[0, -1])
    logits = torch.stack(expected)
    assert logits.abs().max() > 2
    limit = 1e-4 if dtype == "float32" else 0.1
    assert (ours - logits).abs().max() <= limit


def test_the_definition_of_olmo2_gives_the_librarys_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_olmo2(tmp_path / "olmo2")
    blocks = [text for _, text in SECTIONS["Is it right?"]]
    for name in ("olmo2.py", "olmo2_definition.py"):
        [text] = [text for text in blocks if text.startswith(f"# {name}")]
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    theirs = reference.transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", attn_implementation="eager"
    )
    define = find_object("./olmo2_definition.py:defined")
    definition = define(load_file(folder / "model.safetensors"))
    ids = torch.randint(1024, (40,), generator=torch.Generator().manual_seed(1))
    logits = definition.logits(ids, torch.arange(40), causal_mask(40))
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0]
    assert expected.abs().max() > 2
    assert (logits - expected).abs().max() <= 1e-4


def test_an_engine_that_calls_the_decoder_alone_runs_on_the_librarys_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`blind` of the page, on minise's decoder, on that with equal bits, and on the library's."""
    [text] = [
        text for _, text in SECTIONS["An engine of your own"] if text.startswith("# blind.py")
    ]
    (tmp_path / "blind.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder = ROOT / "weights" / "tiny-llama"
    question = minise.Question("Which is a bird?", ["wren", "trout", "oak", "quartz"])
    answers = []
    for source, equal_bits in ((folder, False), (folder, True), (f"transformers:{folder}", False)):
        lm = minise.load(source, dtype="float32", engine="blind.py:blind", equal_bits=equal_bits)
        answers.append(minise.self_ensemble(lm, question, group_size=2).normalized)
    seeing = minise.self_ensemble(minise.load(folder), question, group_size=2).normalized
    assert (answers[0] - answers[1]).abs().max() < 1e-5
    assert (answers[0] - answers[2]).abs().max() < 1e-5
    assert (answers[0] - seeing).abs().max() > 1e-2
