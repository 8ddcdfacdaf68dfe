"""What mask.svg draws: the first trial's packed sequence and its mask, from the page's data."""

from __future__ import annotations

from typing import Any

from minise.explaining.data import Data

CELL = 12  # units of the picture


def mask_picture(data: Data) -> dict[str, Any]:
    """The tokens of the first trial (texts, position ids, groups, whether they read out), and each
    row's visible columns as runs (first column, how many)."""
    shown = data["groups"][: data["shown"]]
    trial = [number for number, group in enumerate(shown) if group["trial"] == 0]
    packed = data["packed"]
    T = packed["ends"][trial[-1]] + 1
    parents, seen = packed["parents"], []
    for row in range(T):
        columns, at = [], row
        while at >= 0:
            columns.append(at)
            at = parents[at]
        seen.append(columns[::-1])
    tokens = [
        {
            "text": packed["texts"][row],
            "position": packed["positions"][row],
            "group": packed["groups"][row],
            "reads": row in {packed["ends"][number] for number in trial},
            "runs": _runs(seen[row]),
        }
        for row in range(T)
    ]
    return {"tokens": tokens, "cell": CELL, "T": T, "groups": len(trial)}


def _runs(columns: list[int]) -> list[tuple[int, int]]:
    """Rising numbers as runs.

    >>> _runs([0, 1, 2, 7, 8])
    [(0, 3), (7, 2)]
    """
    runs: list[tuple[int, int]] = []
    for column in columns:
        if runs and sum(runs[-1]) == column:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((column, 1))
    return runs
