"""The names that the command line knows without torch are those of the code with torch."""

from __future__ import annotations

import torch

from minise.loading import names
from minise.loading.quantize import TABLES
from minise.loading.source import shipped_models
from minise.loading.stored import DTYPES


def test_every_dtype_is_one_of_torch() -> None:
    assert [getattr(torch, name) for name in names.DTYPES] == list(DTYPES)
    assert set(names.SHORT_DTYPES.values()) == set(names.DTYPES)


def test_every_table_of_4_bits_has_a_format() -> None:
    assert {*names.FOUR_BIT} == {*TABLES, "nf4-double"}


def test_the_default_model_is_shipped() -> None:
    assert names.DEFAULT_MODEL in shipped_models()
