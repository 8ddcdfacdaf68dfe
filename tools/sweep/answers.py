"""What the sweep's questions have in common, whatever the library."""

from __future__ import annotations

from typing import Any

import numpy as np

LENGTHS = [7, 5, 9]  # of documents; as a trunk and two branches too
MOST = 1e-3  # of a token's logits: rounding of float32 is below, a leak above
SLOW = -3.0  # log of a decay: as libraries draw it, a state is gone before it could leak


def off(got: Any, right: Any) -> float:
    """The largest difference of a token's logits, by their size. got, right: (..., vocabulary).
    Infinite for no number."""
    got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
    apart = np.linalg.norm(got - right, axis=-1) / np.linalg.norm(right, axis=-1)
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max())


def answer(far: float, one_text: float | None = None) -> str:
    if far < MOST:
        return "right"
    if one_text is not None and one_text < MOST:
        return f"{far:.1f}, as one text"
    return f"{far:.2g}"
