"""The models on which this room is tested."""

import pytest
import torch

from minise import LocalModel, load
from tests.support.tiny import ALL_FAMILIES, write_checkpoint
from tests.verify.cases import SHIPPED, Models


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A freshly loaded model of the name: a tiny random one of a family, or "shipped"."""
    folders = {
        name: write_checkpoint(tmp_path_factory.mktemp(name), raw)
        for name, raw in ALL_FAMILIES.items()
    }

    def make(name: str, dtype: torch.dtype = torch.float64, equal_bits: bool = False) -> LocalModel:
        lm = load(folders.get(name, SHIPPED), dtype=dtype, equal_bits=equal_bits)
        assert isinstance(lm, LocalModel)
        return lm

    return make
