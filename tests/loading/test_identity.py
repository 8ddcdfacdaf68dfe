"""The facts by which two results are known to come from the same model and the same code."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch

import minise
from minise.loading.identity import code_identity, machine, model_identity, sha256
from tests.loading.test_checkpoint import NORM, WEIGHTS, edit, put, shard


def test_a_folder_is_identified_by_its_config_and_the_hashes_of_its_files(
    llama_folder: Path,
) -> None:
    facts = model_identity(minise.load(llama_folder))
    assert facts.keys() == {"config", "tokenizer_sha256", "weights_sha256", "writing_sha256"}
    assert facts["config"]["hidden_size"] == 32
    weights = hashlib.sha256((llama_folder / WEIGHTS).read_bytes()).hexdigest()
    assert facts["weights_sha256"] == {WEIGHTS: weights}
    assert json.dumps(facts)


def test_a_change_of_any_file_that_decides_an_answer_is_another_model(
    llama_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(llama_folder, tmp_path / "llama")
    identities = [model_identity(minise.load(folder))]
    edit(folder, put(NORM, torch.full((32,), 1.5)))
    identities.append(model_identity(minise.load(folder)))
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    identities.append(model_identity(minise.load(folder)))
    shard(folder)
    identities.append(model_identity(minise.load(folder)))
    assert all(a != b for a, b in itertools.pairwise(identities))
    assert len(identities[-1]["weights_sha256"]) == 2
    assert identities[-1]["writing_sha256"].keys() == {"generation_config.json"}


def test_another_layout_of_config_json_is_the_same_model(
    llama_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(llama_folder, tmp_path / "llama")
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw, indent=8, sort_keys=True))
    assert model_identity(minise.load(folder)) == model_identity(minise.load(llama_folder))


def test_another_4_bit_format_is_another_model(llama_folder: Path) -> None:
    packed = model_identity(minise.load(llama_folder, quantize="nf4-double"))
    assert packed.pop("quantize") == "nf4-double"
    assert packed == model_identity(minise.load(llama_folder))


def test_a_model_of_the_hub_is_identified_by_its_commit(llama_folder: Path) -> None:
    lm = replace(minise.load(llama_folder), revision="c" * 40)
    facts = model_identity(lm)
    assert facts.keys() == {"revision", "config"}
    assert facts["revision"] == "c" * 40


def test_the_code_is_identified_by_the_rooms_that_decide_an_answer() -> None:
    hashes = code_identity()
    for name in ("minise/method.py", "minise/exact/calls.py", "minise/loading/quantize.py"):
        assert len(hashes[name]) == 16
    assert not any(name.startswith(("minise/report/", "minise/commands/")) for name in hashes)


def test_the_versions_threads_and_processor_are_recorded() -> None:
    facts = machine()
    assert facts["versions"]["torch"] == version("torch")
    assert facts["threads"] == torch.get_num_threads()
    assert facts["machine"]["cpu"]
    assert json.dumps(facts)


def test_a_large_file_hashed_in_pieces_has_the_same_hash(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000  # 2.4 pieces
    (tmp_path / "large").write_bytes(content)
    assert sha256(tmp_path / "large") == hashlib.sha256(content).hexdigest()
