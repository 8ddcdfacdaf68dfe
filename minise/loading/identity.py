"""What a result depends on: which model, which code, which machine."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from minise import __version__
from minise.engines import LanguageModel
from minise.exact.machine import facts
from minise.loading.quantize import format_of
from minise.loading.source import finder, optional_file, weight_files

# The rooms of the package whose code decides an answer; "": the core.
ANSWERING = ("", "exact", "loading", "groupings", "writing", "methods")

# The files of a checkpoint that say how it writes text.
WRITING = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja")


def model_identity(lm: LanguageModel) -> dict[str, Any]:
    """Which model this is: the facts of its config as minise reads them, and the hub's commit or
    the hashes of a folder's weights and tokenizer.

    Facts, not the bytes of config.json: another layout of the file is no other model, and of two
    models the fact that differs can be named.
    """
    facts: dict[str, Any] = {"config": asdict(lm.config)}
    if (packed := format_of(lm.decoder)) is not None:
        facts["quantize"] = packed
    if lm.revision is not None:
        return {"revision": lm.revision, **facts}
    find = finder(lm.name, None)
    tokenizer, config = find("tokenizer.json"), find("config.json")
    hashes = {path.name: sha256(path) for path in weight_files(find, config.parent)}
    writing = {}
    for name in WRITING:
        path = optional_file(find, name)
        if path is not None:
            writing[path.name] = sha256(path)
    return {
        **facts,
        "tokenizer_sha256": sha256(tokenizer),
        "weights_sha256": hashes,
        "writing_sha256": writing,
    }


@cache  # what this process runs, even if a file is edited meanwhile
def code_identity() -> dict[str, str]:
    """Hashes of the files that decide an answer, by their names."""
    package = Path(__file__).parents[1]
    hashes = {}
    for room in ANSWERING:
        for path in sorted((package / room).glob("*.py")):
            hashes[path.relative_to(package.parent).as_posix()] = sha256(path)[:16]
    return hashes


def machine() -> dict[str, Any]:
    """Versions, the number of threads, and the facts that decide how this machine rounds."""
    packages = ("torch", "safetensors", "tokenizers", "numpy", "scipy", "scikit-learn")
    versions = {"minise": __version__, "python": platform.python_version()}
    versions |= {"platform": platform.platform(), **{name: version(name) for name in packages}}
    return {"versions": versions, "threads": torch.get_num_threads(), "machine": facts()}


def sha256(path: Path) -> str:
    """The hash of a file's content, read in pieces: weights may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
