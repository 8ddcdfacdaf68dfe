"""The states of a run and the differences of two runs, from which `verify` decides."""

from __future__ import annotations

import math

import pytest
import torch

from minise import LanguageModel, pack
from minise.checking.traces import Apart, absolute, largest, pick, relative, row_sizes, trace
from minise.exact.run import read_ends


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_trace_has_the_rows_that_the_run_computed(lm: LanguageModel) -> None:
    """Nine distinct tokens; in the top layer and after the final norm the three ends."""
    tree = pack([40, 41, 42], [[50, 51], [50, 52, 53], [60, 61]], tree=True)
    states, ends = trace(lm.decoder, lambda: read_ends(lm.decoder, tree))
    assert [state.shape for state in states] == [(n, lm.config.hidden_size) for n in (9, 9, 3, 3)]
    assert torch.equal(states[-1], ends)
    assert not any(module._forward_hooks for module in lm.decoder.modules())


def test_rows_that_a_run_does_not_have_are_left_out() -> None:
    layers = [rows([1.0], [2.0], [3.0])] * 2 + [rows([7.0], [8.0])] * 2
    below, _, top, final = pick(layers, [2, 3, 0], top=[1, 2])
    assert below.tolist() == [[3.0], [1.0]]
    assert top.tolist() == final.tolist() == [[8.0]]
    assert [len(layer) for layer in pick(layers, [0, 2])] == [2, 2, 1, 1]


def test_a_difference_is_judged_at_the_size_of_its_own_row() -> None:
    a, b = rows([3.0, 4.0], [300.0, 400.0]), rows([3.0, 3.0], [300.0, 390.0])
    assert row_sizes(a).tolist() == pytest.approx([12.5**0.5, 125000**0.5])
    assert relative(a, b) == pytest.approx(0.2)  # 1 of 5, in the first row
    assert absolute(a, b) == 10.0


def test_a_row_of_zeros_differs_from_any_other_by_a_huge_number() -> None:
    zeros = rows([0.0, 0.0])
    assert relative(zeros, zeros) == 0.0
    assert relative(zeros, zeros + 1e-30) > 1e200


def test_the_difference_of_other_shapes_is_infinite() -> None:
    assert relative(rows([1.0]), rows([1.0], [1.0])) == math.inf
    assert absolute(rows([1.0]), rows([1.0], [1.0])) == math.inf


@pytest.mark.parametrize("values", [[math.nan, 1.0], [1.0, math.nan], [math.inf, math.nan]])
def test_the_largest_difference_is_nan_if_one_is(values: list[float]) -> None:
    assert math.isnan(largest(values))
    assert largest([1.0, 3.0, 2.0]) == 3.0


def test_the_largest_difference_of_each_layer_is_kept() -> None:
    differences = Apart()
    differences.add([rows([1.0]), rows([1.0])], [rows([1.5]), rows([1.0])])
    assert not differences.equal
    differences.add([rows([2.0]), rows([2.0])], [rows([2.0]), rows([3.0])])
    assert differences.absolute == [0.5, 1.0]
    assert differences.relative == [0.5, 0.5]
    differences.add([rows([1.0])] * 2, [rows([1.0])] * 2)
    assert not differences.equal
    assert differences.absolute == [0.5, 1.0]


def test_runs_with_different_numbers_of_layers_cannot_be_compared() -> None:
    differences = Apart()
    with pytest.raises(ValueError, match="zip"):
        differences.add([rows([1.0])] * 2, [rows([1.0])])
    differences.add([rows([1.0])], [rows([1.0])])
    assert differences.equal
    with pytest.raises(ValueError, match="zip"):
        differences.add([rows([1.0])] * 2, [rows([1.0])] * 2)
