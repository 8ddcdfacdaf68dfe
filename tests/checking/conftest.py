"""The models on which `verify` is tested."""

from __future__ import annotations

import pytest
import torch

from minise import LanguageModel, Plan, SelfEnsemble, load
from minise.commands.options import QUESTION
from tests.support.tiny import FAMILIES, write_checkpoint
from tests.support.verified import BIRD, SHIPPED, Models


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A freshly loaded model of the name, and a plan with a few groups."""
    folders = {
        name: write_checkpoint(tmp_path_factory.mktemp(name), raw) for name, raw in FAMILIES.items()
    }

    def make(name: str, dtype: torch.dtype) -> tuple[LanguageModel, Plan]:
        lm = load(folders.get(name, SHIPPED), dtype=dtype)
        if name == "shipped":
            return lm, SelfEnsemble(4, 1).plan(lm, QUESTION)
        return lm, SelfEnsemble(2, 1).plan(lm, BIRD)

    return make
