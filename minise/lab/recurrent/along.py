"""How a recurrent layer runs along the paths of a sequence. Attention has `attend` for that, which
says how queries read keys; a layer with a state has this.

Dimension legend: T tokens in one sequence; C channels of the convolution, N its taps; H heads; k, v
sizes of a key and a value; n is 1 or k. Next to read: qwen35.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from minise.lab.recurrent.chunks import by_chunks
from minise.lab.recurrent.convolution import convolve
from minise.lab.recurrent.paths import Paths, paths_of


class Along(Protocol):
    """`AlongPaths`, or for tokens that follow others kept.py's `GoingOn`."""

    def convolve(self, x_TC: Tensor, weight_CN: Tensor) -> Tensor: ...

    def rule(
        self, q_THk: Tensor, k_THk: Tensor, v_THv: Tensor, g_THn: Tensor, beta_TH: Tensor
    ) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class AlongPaths:
    """All tokens at once."""

    paths: Paths

    def convolve(self, x_TC: Tensor, weight_CN: Tensor) -> Tensor:
        return convolve(x_TC, weight_CN, None, self.paths)

    def rule(
        self, q_THk: Tensor, k_THk: Tensor, v_THv: Tensor, g_THn: Tensor, beta_TH: Tensor
    ) -> Tensor:
        return by_chunks(q_THk, k_THk, v_THv, g_THn, beta_TH, self.paths)


def along_each(mask_BTT: Tensor) -> list[Along]:
    """How each sequence runs. Raises InputError for a mask that is no tree."""
    if (mask_BTT == mask_BTT[0]).all():
        return [AlongPaths(paths_of(mask_BTT[0]))] * len(mask_BTT)
    return [AlongPaths(paths_of(mask_TT)) for mask_TT in mask_BTT]
