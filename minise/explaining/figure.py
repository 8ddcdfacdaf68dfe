"""What mask.svg draws: the first trial's packed sequence and its mask, from the page's data."""

from __future__ import annotations

from typing import Any

from minise.explaining.data import Data

CELL = 12  # units of the picture


def mask_picture(data: Data) -> dict[str, Any]:
    """The tokens of the first trial (texts, position ids, groups, whether they read out), and each
    row's visible columns as runs (first column, number of columns)."""
    groups = data["groups"][: data["shown"]]
    first_trial = [number for number, group in enumerate(groups) if group["trial"] == 0]
    packed = data["packed"]
    ends = [packed["ends"][number] for number in first_trial]
    tokens = []
    for row in range(ends[-1] + 1):
        columns, column = [], row
        while column >= 0:
            columns.append(column)
            column = packed["parents"][column]
        tokens.append(
            {
                "text": "…" if row in packed["inside"] else packed["texts"][row],
                "position": packed["positions"][row],
                "group": packed["groups"][row],
                "reads": row in ends,
                "runs": _runs(columns[::-1]),
            }
        )
    return {"tokens": tokens, "cell": CELL, "T": len(tokens), "groups": len(first_trial)}


def _runs(columns: list[int]) -> list[tuple[int, int]]:
    """Rising numbers as runs (first number, how many).

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
