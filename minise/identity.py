"""What a result depends on: which weights, which code, which machine."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from minise import __version__
from minise.engines import LanguageModel
from minise.source import finder, weight_files


def weights_identity(lm: LanguageModel) -> dict[str, Any]:
    """Which weights these are: the hub's commit, or the hashes of a folder's files."""
    if lm.revision is not None:
        return {"revision": lm.revision}
    find = finder(lm.name, None)
    paths = weight_files(find, find("config.json").parent)
    return {"weights_sha256": {path.name: sha256(path) for path in paths}}


def machine() -> dict[str, Any]:
    """Versions and the number of threads."""
    packages = ("torch", "safetensors", "tokenizers", "numpy", "scipy", "scikit-learn")
    versions = {"minise": __version__, "python": platform.python_version()}
    versions |= {"platform": platform.platform(), **{name: version(name) for name in packages}}
    return {"versions": versions, "threads": torch.get_num_threads()}


def sha256(path: Path) -> str:
    """The hash of a file's content, read in pieces: weights may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
